"""Recommenders with a network, generators and sequential models: settings, training, validation, weights."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from resid.core.artifact import Artifact
from resid.core.errors import InputError
from resid.core.runtime import Runtime
from resid.data.batches import EpochBatches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset
from resid.data.new_items import NewItems
from resid.data.splits import Split
from resid.evaluate.metrics import ranking_metrics
from resid.recommend.base import Recommender
from resid.recommend.settings import RecommenderSettings
from resid.train import TrainableModule, TrainSettings, best_epoch, train
from resid.train.weights import load_weights, weight_name, weights_as_arrays

MONITOR = "ndcg@10"  # selects the best epoch


_S = TypeVar("_S", bound=RecommenderSettings)
_M = TypeVar("_M", bound=TrainableModule)


class TrainedRecommender(Recommender, Generic[_S, _M]):
    """Base class of recommenders with a network.

    A subclass builds the network, says what it is trained on, and calls `_train` in its `fit`.

    Parameters
    ----------
    settings
        An instance of `settings_class`; the defaults if None.
    """

    distributed = True
    settings: _S
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
    def _restore(self, artifact: Artifact, catalogue: Catalogue) -> None:
        """Build the network that an artifact describes; its weights are loaded afterwards."""

    def _seeded(self, build: Callable[[], _M]) -> _M:
        """Build a network with the random initial weights of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return build()

    def _train(self, data: Dataset, configuration: Mapping[str, Any], runtime: Runtime | None) -> None:
        """Train the network; see `_train_module`."""
        self._train_module(self.model_, self.settings, data, configuration, runtime)

    def _train_module(
        self,
        module: TrainableModule,
        settings: TrainSettings,
        data: Dataset,
        configuration: Mapping[str, Any],
        runtime: Runtime | None,
    ) -> None:
        """Train the network, or a module around it, and validate by the NDCG@10 of validation users.

        See `resid.train.train`; `history_` and `best_epoch_` are those of this training.
        """
        self._forget_vectors()
        users = data.validation.sample(self.settings.validation_users)
        self.history_ = train(
            module,
            self._batches(data),
            settings,
            runtime,
            evaluate=lambda: self._validate(users),
            monitor=MONITOR,
            configuration={"model": self.kind, **configuration},
        )
        self.best_epoch_ = best_epoch(self.history_, MONITOR)

    def _validate(self, users: Split) -> dict[str, float]:
        """Return the metrics of the current weights."""
        return ranking_metrics(self.ranks(users, whole=False)[0])

    def _item_tables(self) -> list[nn.Embedding]:
        """Return the embedding tables of the network that have a row for every item."""
        return []

    def _new_rows(self, new: NewItems) -> dict[str, NDArray[np.float32]]:
        """Return rows for new items by the name of an item table: the mean of the rows of the items that training saw."""
        seen = torch.from_numpy(self.catalogue_.counts > 0)
        rows = {}
        for table in self._item_tables():
            mean = table.weight.detach().cpu()[seen].mean(dim=0, keepdim=True)
            rows[weight_name(self.model_, table.weight)] = mean.expand(len(new), -1).numpy()
        return rows

    def _pack(self) -> dict[str, Any]:
        arrays: dict[str, NDArray[Any]] = weights_as_arrays(self.model_)
        return {"facts": {}, "arrays": arrays, "tables": {}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        model = cls(cast(_S, cls.settings_class(**artifact.facts["settings"])))
        model._restore(artifact, cls._catalogue(artifact))
        load_weights(model.model_, artifact.arrays)
        return model
