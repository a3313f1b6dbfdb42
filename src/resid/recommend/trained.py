"""What the recommenders that are trained have in common, generators and sequential models: settings, validation, weights."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import polars as pl
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import nn

from resid.core.artifact import Bundle
from resid.data.batches import EpochBatches
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.core.errors import InputError
from resid.evaluate import ranking_metrics
from resid.core.progress import Progress
from resid.recommend.base import Catalogue, Recommender
from resid.train.loop import best_epoch, train
from resid.train.settings import RecommenderSettings
from resid.train.weights import take_weights, weights_as_arrays

MONITOR = "ndcg@10"  # decides which epoch is best

_S = TypeVar("_S", bound=RecommenderSettings)
_M = TypeVar("_M", bound=nn.Module)


class TrainedRecommender(Recommender, Generic[_S, _M]):
    """Base of the recommenders with a network: a subclass builds it, says what it is trained on, and fits.

    Parameters
    ----------
    settings
        Those of the subclass, its `settings_class`; the defaults if there are none.
    """

    settings_class: ClassVar[type[RecommenderSettings]]
    model_: _M

    def __init__(self, settings: _S | None = None) -> None:
        wanted = self.settings_class
        if settings is not None and type(settings) is not wanted:
            raise InputError(f"a {type(self).__name__} takes {wanted.__name__}, not a {type(settings).__name__}.")
        self.settings = settings or cast(_S, wanted())

    @abstractmethod
    def _batches(self, data: Dataset) -> EpochBatches[Any]:
        """Return what the network is trained on."""

    @abstractmethod
    def _rebuild(self, bundle: Bundle, catalogue: Catalogue) -> None:
        """Build the network for what a bundle has, before it gets its weights."""

    def _seeded(self, make: Callable[[], _M]) -> _M:
        """Build a network whose random weights are those of the settings' seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return make()

    def _train(
        self,
        data: Dataset,
        configuration: dict[str, Any],
        folder: str | Path | None,
        *,
        fabric: Fabric | None,
        trackers: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Train the network, and judge every epoch by the ranks of validation users; see `resid.train.train`."""
        watched = data.validation.sample(self.settings.validation_users)
        self.history_ = train(
            self.model_,
            self._batches(data),
            self.settings,
            folder,
            evaluate=lambda: self._validate(watched),
            monitor=MONITOR,
            configuration={"model": self.name} | configuration,
            fabric=fabric,
            trackers=trackers,
            progress=progress,
        )
        self.best_epoch_ = best_epoch(self.history_, MONITOR)

    def _validate(self, watched: Split) -> dict[str, float]:
        """Return the figures of the network as it is."""
        return ranking_metrics(self.ranks(watched, whole=False)[0])

    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        return {"settings": self.settings.plain()}, weights_as_arrays(self.model_), {}

    @classmethod
    def _restore(cls, bundle: Bundle, catalogue: Catalogue) -> Self:
        model = cls(cast(_S, cls.settings_class(**bundle.facts["settings"])))
        model._rebuild(bundle, catalogue)
        take_weights(model.model_, bundle.arrays)
        return model
