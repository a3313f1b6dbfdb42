"""Recommenders with a network, generators and sequential models: settings, training, validation, weights."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.errors import InputError, counted
from resid.core.runtime import Runtime
from resid.data.batches import EpochBatches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.growth import all_in_training, new_targets, with_replay
from resid.data.new_items import NewItems
from resid.data.prepare import LATEST
from resid.data.splits import Split
from resid.evaluate.metrics import ranking_metrics
from resid.recommend.base import Recommender
from resid.recommend.items import change_record
from resid.recommend.settings import RecommenderSettings, UpdateSettings
from resid.recommend.update import TrainedFurther, split_of_grown
from resid.train import TrainableModule, TrainSettings, best_epoch, train
from resid.train.weights import load_weights, weight_name, weights_as_arrays

MONITOR = "ndcg@10"  # selects the best epoch
_SHARES = (0.75, 0.5, 0.25)  # of the new weights in a mean with the old ones


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
    needs_inputs: ClassVar[bool] = False  # training reads embeddings or parts that the fitted model does not keep
    settings: _S
    model_: _M
    _stop_after: int | None = None  # the last epoch, if that is before the end of the schedule

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
            evaluate=(lambda: self._validate(users)) if len(users) else None,
            monitor=MONITOR if len(users) else "",
            monitor_title="validation NDCG@10",
            configuration={"model": self.kind, **configuration},
            stop_after=self._stop_after,
        )
        self.best_epoch_ = best_epoch(self.history_, MONITOR) if len(users) else len(self.history_)

    def _validate(self, users: Split) -> dict[str, float]:
        """Return the metrics of the current weights."""
        return ranking_metrics(self.ranks(users, whole=False)[0])

    def update(
        self,
        data: Dataset,
        earlier: Dataset | None = None,
        *,
        settings: UpdateSettings | None = None,
        final: bool | None = None,
        runtime: Runtime | None = None,
    ) -> TrainedFurther:
        """Train further on a Dataset that has grown; semantic IDs and the encoder stay as they are.

        Trains on the targets that are new and on a sample of those of the fit, and stops by the validation users of the grown
        Dataset. The weights become a mean of those before and after, the one that is best on these users: it keeps more of what was
        learned from the whole log than the last weights do. Training counts and co-occurrences are counted anew.
        After an error, the model is what it was.

        Parameters
        ----------
        data
            The grown Dataset (`resid.data.growth.grow`), with the items of this model.
        earlier
            The Dataset that the model was fitted to, from which the other grew. None if it is not known: then all training targets of
            `data` are new, and its counts are added to those of the model.
        settings
            How to train.
        final
            Train on everything but the last interactions of a tenth of the users with new ones, as after `refit_on_all`. By default
            if the model was trained on all interactions.
        runtime
            Folder, devices, trackers and progress.

        Returns
        -------
        TrainedFurther
            What was trained, and the metrics before and after.
        """
        self._require_trainable("updated")
        require_dataset(data)
        if self.user_ids_ is not None:
            raise InputError(
                f"this {type(self).__name__} has embeddings of users and cannot be updated; fit it again, or with "
                "user_embeddings=false."
            )
        if data.n_items != len(self.catalogue_) or not (data.item_ids == self.catalogue_.item_ids).all():
            raise InputError(
                "the grown Dataset does not have the items of the model; make it with resid.data.growth.grow."
            )
        if earlier is not None:
            self.require_data(earlier)
        how, was_final = settings or UpdateSettings(), self.measured_ is not None
        final = was_final if final is None else final
        data = split_of_grown(data, earlier, final, how.seed)
        new = new_targets(data, earlier, all_known=was_final)
        if not new.any():
            raise InputError(
                "there is nothing to train on: no user has a new interaction that is not held out and has one before it; wait for "
                "more interactions."
            )
        windows = with_replay(data.train, new, how.replay, how.seed)
        model = self._copy()
        model._take_counts(data, alone=earlier is None)
        model._take_in_added()
        users = data.validation.sample(self.settings.validation_users)
        before = model._validate(users) if len(users) else {}
        weights = copy.deepcopy(model.model_.state_dict())
        model._train_module(
            model.model_,
            self.settings.replace(
                epochs=how.epochs,
                learning_rate=how.learning_rate_scale * self.settings.learning_rate,
                warmup_steps=0,
                evaluate_every=1,
                patience=how.patience,
            ),
            data.with_training_windows(windows),
            {
                "parent": self.digest,
                "grown": data.fingerprint,
                "update": how.to_dict(),
                "final": final,
            },
            runtime,
        )
        after = {name: float(model.history_[model.best_epoch_ - 1][name]) for name in before}
        share, after = model._interpolate(weights, users, before, after)
        epochs = model.best_epoch_ if share else 0
        model.history_, model.best_epoch_ = self.history_, self.best_epoch_
        found = TrainedFurther(int(new.sum()), len(windows) - int(new.sum()), epochs, share, before, after)
        model._end_update(data)
        if final and not was_final:
            model.measured_ = self._figures()
        about = {"interactions": data.n_interactions - (earlier.n_interactions if earlier is not None else 0)}
        record = change_record("update", 0, self.checksum, **about, until=data.notes.get(LATEST), **asdict(found))
        model.lineage_ = [*self.lineage_, record]
        self.__dict__ = model.__dict__  # at once, as another thread may be recommending
        return found

    def refit_on_all(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Return a model that is trained on all interactions, also those that the Dataset holds out, for production.

        The network is trained anew, for as many epochs as validation chose. Semantic IDs, the encoder, and the weights of a joint
        generator's scores, which need held-out targets, are those of this model. No honest figure exists for the result; its
        `measured_` has those of this model.

        Parameters
        ----------
        data
            The Dataset that the model was fitted to.
        runtime
            Folder, devices, trackers and progress.
        """
        self._require_trainable("fitted to all interactions")
        self.require_data(data)
        if self.measured_ is not None:
            raise InputError("this model was trained on all interactions already; use the model that was measured.")
        if added := len(self.catalogue_) - data.n_items:
            raise InputError(
                f"{counted(added, 'item of the model is', 'items of the model are')} not in the Dataset; train the model from before they "
                "were added on all interactions, and add them to the result."
            )
        model = self._copy()
        data = all_in_training(data)
        model._take_counts(data)
        model._rebuild()
        model._stop_after = self.best_epoch_
        model._train(data, {"parent": self.checksum, "interactions": "all"}, runtime)
        model._stop_after, model.measured_ = None, self._figures()
        model._forget_counted()
        return model

    def _interpolate(
        self, start: Mapping[str, Tensor], users: Split, before: dict[str, float], after: dict[str, float]
    ) -> tuple[float, dict[str, float]]:
        """Move the weights back towards those at the start as far as validation users are ranked best.

        Parameters
        ----------
        start
            The weights before training.
        users
            Validation users; without any, the weights stay as they are.
        before, after
            The metrics of the weights at the start, and of those now.

        Returns
        -------
        share, metrics
            The share of the trained weights in the mean, 0 if they do not help, and its metrics.
        """
        if not len(users):
            return 1.0, after
        end = copy.deepcopy(self.model_.state_dict())

        def load(share: float) -> None:
            self.model_.load_state_dict(
                {
                    name: tensor.lerp(end[name], share) if tensor.is_floating_point() else end[name]
                    for name, tensor in start.items()
                }
            )

        found = {1.0: after}
        for share in _SHARES:
            load(share)
            found[share] = self._validate(users)
        found[0.0] = before
        best = max(found, key=lambda share: found[share][MONITOR])
        load(best)
        return best, found[best]

    def _require_trainable(self, done: str) -> None:
        """Raise an `InputError` if the network cannot be trained without inputs of the fit."""
        self._require_fit()
        if self.needs_inputs:
            raise InputError(
                f"a {type(self).__name__} is trained with inputs that the fitted model does not keep, so it cannot be {done}; fit it "
                "again."
            )

    def _copy(self) -> Self:
        """Return a copy of the fitted model."""
        return type(self)._from_artifact(self.to_artifact())

    def _figures(self) -> dict[str, Any]:
        """Return what validation said about this model, for one that cannot be measured."""
        best = self.history_[self.best_epoch_ - 1] if self.best_epoch_ else {}
        return {
            "checksum": self.checksum,
            "validation during training": {name: best[name] for name in best if "@" in name},
        }

    @abstractmethod
    def _rebuild(self) -> None:
        """Build the network anew, with the initial weights of its fit."""

    def _take_in_added(self) -> None:
        """Make items that were added to the model known to the parts of the network that do not know them."""

    def _take_counts(self, data: Dataset, *, alone: bool = False) -> None:
        """Take over how often items occur in training; a subclass also what else it counts.

        Parameters
        ----------
        data
            Its first items are those of the model.
        alone
            Whether it lacks what the model was fitted to, so that both are counted together.
        """
        counts = np.zeros_like(self.catalogue_.counts)
        counts[: data.n_items] = data.training_counts
        if alone:
            counts += self.catalogue_.counts
        self._set_catalogue(
            replace(self.catalogue_, counts=counts, fingerprint=data.fingerprint, settings=data.settings)
        )

    def _end_update(self, data: Dataset) -> None:
        """Do what follows an update of the weights."""
        self._forget_counted()

    def _forget_counted(self) -> None:
        """Forget what was computed from weights or counts that have changed."""
        self._set_catalogue(self.catalogue_)

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
