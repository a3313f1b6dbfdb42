"""The base class of everything that recommends: histories of item ids in, items and scores out; saving and loading."""

import hashlib
import itertools
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Artifact, write_artifact
from resid.core.display import ShownModel
from resid.core.errors import InputError, counted, shown
from resid.core.part import Part, SavedParts
from resid.core.progress import Advance, Progress, Silent
from resid.core.runtime import Runtime
from resid.core.settings import Settings
from resid.data.batches import Batch, Batches
from resid.data.catalogue import Catalogue, as_list, lookup
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems, read_new_items
from resid.data.splits import Split
from resid.data.where import Where
from resid.evaluate.metrics import NOT_FOUND, Ranking, ranks_of
from resid.quantize.ids import SemanticIds
from resid.quantize.room import Room
from resid.recommend.explain import ExplainedModel
from resid.recommend.histories import (
    BATCH_USERS,
    Indices,
    Scores,
    allowed_items,
    batches_by_length,
    check_histories,
    check_users,
    known_items,
    most_popular,
    round_length,
    without_seen,
)
from resid.recommend.items import AddedItems, Grown, change_record
from resid.recommend.settings import UpdateSettings
from resid.recommend.update import TrainedFurther

log = logging.getLogger(__name__)


class Recommender(ShownModel, ExplainedModel, Part):
    """Ranks items after a history; a subclass fits itself and implements `top`.

    Attributes
    ----------
    settings : Settings
    catalogue_ : Catalogue
        The items that it can recommend.
    ids_ : SemanticIds or None
        The semantic IDs of the items, if the recommender generates IDs.
    parts_ : dict
        The encoder and the quantizer that made the IDs, by stage, if they were kept.
    history_ : list of dict
        The training metrics of every epoch; empty if nothing was trained.
    best_epoch_ : int
        The epoch with the best weights; 0 if nothing was trained.
    lineage_ : list of dict
        The changes since it was fitted, oldest first: ``action``, number of ``items``, the checksum of the model before it
        (``parent``), ``time`` and ``version``; of an update also the ``interactions`` and what training on them did.
    measured_ : dict or None
        Set if it was trained on all interactions (`refit_on_all`), so that it cannot be measured: the figures of the model that
        was, with its ``checksum``.
    """

    settings: Settings
    catalogue_: Catalogue
    ids_: SemanticIds | None = None
    user_ids_: pl.Series | None = None  # set if the model has embeddings of users
    parts_: Mapping[str, Part] = MappingProxyType({})
    lineage_: Sequence[dict[str, Any]] = ()
    measured_: Mapping[str, Any] | None = None
    fitted = False  # set when fit is complete
    validated_by: ClassVar[str] = "seen items kept"  # how the metrics of `history_` rank items
    decodings: ClassVar[Mapping[str, dict[str, Any]]] = MappingProxyType({})  # ways to decode → options of `top`

    @abstractmethod
    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """Return the k best items after each history and their scores, shape (users, k).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, at least one item each; shape (users, length). The last
            `catalogue_.max_history` items are read.
        k
            Number of items; missing items are -1 with score -inf.
        exclude_seen
            Exclude the items of the history.
        allowed
            Which items may be recommended, shape (n_items,); by default all that are not withdrawn.
        """

    @property
    def required_parts(self) -> tuple[str, ...]:
        """The names of the parts without which the rankings would change."""
        return ()

    @property
    def semantic_ids(self) -> pl.DataFrame:
        """The semantic IDs of all items: a table with the columns item, c1, c2 and so on."""
        if self.ids_ is None:
            raise InputError(f"a {type(self).__name__} has no semantic IDs.")
        return self.ids_.table()

    def recommend(
        self,
        histories: Sequence[Any],
        k: int = 10,
        *,
        exclude_seen: bool = False,
        allow: Iterable[Any] | None = None,
        deny: Iterable[Any] | None = None,
        where: Where | None = None,
        users: Sequence[Any] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> tuple[NDArray[Any], Scores]:
        """Return the k best items after each history, best first.

        Items that are not in the catalogue are skipped, and withdrawn items are not recommended. Histories without any known item get the most popular items,
        scored by the logarithm of their share. Both are logged as warnings.

        Parameters
        ----------
        histories
            One list of item ids per user, oldest first; or a single such list. An empty list means no users; ``[[]]`` is
            one user without a history.
        k
            Number of items.
        exclude_seen
            Exclude the items of the history.
        allow
            Ids of the only items that may be recommended; all by default.
        deny
            Ids of items that must not be recommended.
        where
            Conditions on the fields of items, for example ``{"store": "Fjord", "price": {"<": 20}}``; see
            `resid.data.where.matching_items`. Only items that fulfil all of them, and `allow` and `deny`, are recommended.
        users
            The user id of every history, for models with user embeddings (HGN with `user_embeddings`). Unknown users get
            the mean embedding. Other models ignore it.
        progress
            Counts users.
        options
            Decoding options of a generator, see its `top`: `beam_size`, `constrained`, `exact`.

        Returns
        -------
        items, scores
            Item ids and scores, shape (users, k), or (k,) for a single history; None and -inf where there are fewer items.
        """
        self.check_request(k, options)
        single, rows = check_histories(histories)
        if not rows:
            log.warning("there are no histories, so nothing is recommended; a user without a history is [[]]")
        allowed = self.allowed_mask(allow, deny, where)
        known = known_items(rows, self.catalogue_)
        user_indices = self.user_indices(check_users(users, len(rows))) if users is not None else None
        with (progress or Silent()).bar("Recommending", len(rows), unit="users") as advance:
            items, scores = self.top_of_each(
                known, k, exclude_seen=exclude_seen, allowed=allowed, users=user_indices, advance=advance, **options
            )
        if fewer := int((items[:, -1] < 0).sum()):
            unconstrained = options.get("constrained") is False
            reason = "beams ended at IDs that no item has" if unconstrained else "no other items are left"
            log.warning("%s fewer than %d items: %s", counted(fewer, "user gets", "users get"), k, reason)
        ids = self.catalogue_.ids_of(items)
        return (ids[0], scores[0]) if single else (ids, scores)

    def top_of_each(
        self,
        known: list[Indices],
        k: int,
        *,
        exclude_seen: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        users: Indices | None = None,
        advance: Advance | None = None,
        **options: Any,
    ) -> tuple[Indices, Scores]:
        """Return the k best items after histories of any lengths and their scores, shape (users, k).

        Parameters
        ----------
        known
            The item indices of each history, oldest first; an empty one gets the most popular items.
        k, exclude_seen, allowed, options
            See `top`.
        users
            User indices, shape (users,), for a model with user embeddings.
        advance
            Counts users.
        """
        items = np.full((len(known), k), -1, dtype=np.int64)
        scores = np.full((len(known), k), -np.inf, dtype=np.float32)
        for some, batch in batches_by_length(known, self.catalogue_.max_history, whole=exclude_seen):
            more = options | ({"users": users[some]} if users is not None else {})
            items[some], scores[some] = (
                self.top(batch, k, exclude_seen=exclude_seen, allowed=allowed, **more)
                if batch.shape[1]
                else most_popular(self.catalogue_, len(some), k, allowed)
            )
            if advance is not None:
                advance(len(some))
        return items, scores

    def allowed_mask(
        self, allow: Iterable[Any] | None, deny: Iterable[Any] | None, where: Where | None
    ) -> NDArray[np.bool_] | None:
        """Return which items may be recommended, shape (n_items,), None if all of them may; see `recommend`."""
        allowed = self.catalogue_.among_recommendable(allowed_items(self.catalogue_, allow, deny, where))
        if allowed is not None and not allowed.any():
            raise InputError("all items that 'allow' and 'deny' leave are withdrawn; restore some, or allow others.")
        return allowed

    def check_request(self, k: Any, options: dict[str, Any]) -> None:
        """Raise an `InputError` unless the model is fitted, has k items, and its `top` has these options."""
        self._require_fit()
        self._check_options(options)
        self._check_k(k)

    def _check_k(self, k: Any) -> None:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= len(self.catalogue_):
            raise InputError(
                f"k must be an integer from 1 to {len(self.catalogue_):,}, the size of the catalogue, not {shown(k)}."
            )

    def ranks(
        self, windows: Split, k: int = 10, *, whole: bool = True, progress: Progress | None = None, **options: Any
    ) -> tuple[Indices, Indices]:
        """Return the rank of every window's target among the k best items, counted from 0; `NOT_FOUND` beyond k.

        Parameters
        ----------
        windows
            Histories and targets.
        k
            Number of items in the ranking.
        whole
            Exclude all items of a history in `dropped`; otherwise only the items that are read, which is cheaper for long
            histories.
        progress
            Counts users.
        options
            Options of `top`.

        Returns
        -------
        kept, dropped
            Ranks with the items of the history kept in the ranking, and with them dropped; each of shape (windows,).
        """
        self._check_options(options)
        kept = np.full(len(windows), NOT_FOUND, dtype=np.int64)
        dropped = kept.copy()
        for users, batch in self._batches_of_windows(windows.unbounded if whole else windows, progress):
            kept[users], dropped[users] = self._ranks(batch, k, **options)
        return kept, dropped

    def rankings(
        self, windows: Split, k: int = 10, *, progress: Progress | None = None, **options: Any
    ) -> tuple[Ranking, Ranking]:
        """Return what `ranks` does and the k best items of every window, with seen items kept and dropped."""
        self._check_options(options)
        kept, dropped = (Ranking.empty(len(windows), k) for _ in range(2))
        for users, batch in self._batches_of_windows(windows.unbounded, progress):
            for whole, part in zip((kept, dropped), self._rankings(batch, k, **options), strict=True):
                whole.ranks[users], whole.items[users], whole.scores[users] = part.ranks, part.items, part.scores
        return kept, dropped

    def _batches_of_windows(self, windows: Split, progress: Progress | None) -> Iterator[tuple[Indices, Batch]]:
        """Yield batches of histories of similar length, and which windows they are."""
        max_history = self.catalogue_.max_history
        sizes = round_length(windows.end - windows.begin, max_history)
        with (progress or Silent()).bar("Ranking", len(windows), unit="users") as advance:
            for size in np.unique(sizes):
                members = np.flatnonzero(sizes == size)
                batch_size = max(1, int(BATCH_USERS * max_history // size))
                for batch in Batches(windows.take(members), batch_size, shuffle=False):
                    yield members[batch.index], batch
                    advance(len(batch))

    def _ranks(self, batch: Batch, k: int, **options: Any) -> tuple[Indices, Indices]:
        """Return the ranks of a batch's targets, with seen items kept and dropped."""
        kept, dropped = Recommender._rankings(self, batch, k, **options)  # a subclass may call this from its own
        return kept.ranks, dropped.ranks

    def _rankings(self, batch: Batch, k: int, **options: Any) -> tuple[Ranking, Ranking]:
        """Return the best items after a batch's histories, with seen items kept and dropped."""
        max_history = self.catalogue_.max_history
        options = {"allowed": self.catalogue_.among_recommendable(None), **options}
        longest = int(round_length(np.array(batch.histories.shape[1]), max_history))
        # As many more items as a history has, so that k are left without them.
        items, scores = self.top(batch.histories, k + max_history, **options)
        kept = items[:, :k], scores[:, :k]
        if longest > max_history:  # a separate search, so that `kept` does not depend on the length of the history
            items, scores = self.top(batch.histories, k + longest, **options)
        dropped = without_seen(items, scores, batch.histories, k)
        first, second = (Ranking(ranks_of(found[0], batch.targets), *found) for found in (kept, dropped))
        return first, second

    def add_items(
        self, items: Any, *, item_column: str = "item", separator: str | None = None, encoding: str | None = None
    ) -> AddedItems:
        """Add items that were not in the Dataset; they can be recommended, and are known in histories, at once.

        Semantic IDs that exist never change. Nothing is trained: a new item is embedded from its fields, or from its text if the
        encoder reads text, and gets a free ID. Either all of the items are added or, after an error, none.

        Parameters
        ----------
        items
            A path or a frame with the id column and the columns that were given as fields. Missing values are allowed;
            values that training never saw count as missing.
        item_column
            The name of the id column.
        separator, encoding
            Of a text file, see `Dataset.from_tables`.

        Returns
        -------
        AddedItems
            Where they went, and how many IDs are left.
        """
        self._require_fit()
        return self.take_in(read_new_items(items, self.catalogue_, item_column, separator=separator, encoding=encoding))

    def take_in(self, new: NewItems) -> AddedItems:
        """Add items that `read_new_items` read with the catalogue of this model; see `add_items`."""
        grown, record = self.grow(new), change_record("add", len(new), self.checksum)
        model = type(self)._from_artifact(grown.artifact)
        model.lineage_ = [*self.lineage_, record]
        self.__dict__ = model.__dict__  # at once, as another thread may be recommending
        room = grown.room
        if room is not None and room.is_scarce:
            log.warning("only %s; fit again with a larger quantizer.spare before they run out", room)
        return AddedItems.of(new, grown)

    def grow(self, new: NewItems) -> Grown:
        """Return the model with new items as plain data; see `add_items`."""
        raise self._cannot_grow()

    def check_growth(self) -> None:
        """See `Part.check_growth`."""
        if type(self).grow is Recommender.grow:
            raise self._cannot_grow()

    def _cannot_grow(self) -> InputError:
        return InputError(
            f"a {type(self).__name__} knows items by their interactions alone and cannot take new items; fit it again, or use a "
            "model that reads item fields, such as the recipes resid or sasrec-fields."
        )

    def update(
        self,
        data: Dataset,
        earlier: Dataset | None = None,
        *,
        settings: UpdateSettings | None = None,
        final: bool | None = None,
        runtime: Runtime | None = None,
    ) -> TrainedFurther:
        """Train further on a Dataset that has grown; see `TrainedRecommender.update`, and `resid.update`, which reads tables."""
        raise InputError(f"{self._cannot}be updated; fit it again, to the grown log.")

    def refit_on_all(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Return a model that is trained on all interactions, for production; see `TrainedRecommender.refit_on_all`."""
        raise InputError(f"{self._cannot}be fitted again to all interactions; use the model as it is.")

    @property
    def _cannot(self) -> str:
        """The beginning of a message about what a recommender without a network cannot do."""
        return f"a {type(self).__name__} has no network of its own that is trained, so it cannot "

    def room(self) -> Room | None:
        """Return how many semantic IDs are taken and free; None if there are no IDs, items can share them, or it is unknown."""
        return None

    def remove_items(self, items: Iterable[Any]) -> int:
        """Withdraw items: they are never recommended, but stay known in histories, and their IDs stay reserved.

        Parameters
        ----------
        items
            Item ids.

        Returns
        -------
        int
            How many of them were not withdrawn before.
        """
        indices = self._known_indices(items)
        catalogue = self.catalogue_.withdraw(indices)
        if len(catalogue.withdrawn) == len(catalogue):
            raise InputError("this would withdraw every item, and nothing could be recommended; keep some.")
        return self._change_withdrawn("remove", catalogue)

    def restore_items(self, items: Iterable[Any]) -> int:
        """Undo `remove_items`; return how many of the items were withdrawn."""
        return self._change_withdrawn("restore", self.catalogue_.restore(self._known_indices(items)))

    def _known_indices(self, items: Iterable[Any]) -> Indices:
        """Return the indices of items, or raise an `InputError`."""
        self._require_fit()
        listed = list(items) if isinstance(items, (set, frozenset)) else as_list(items)
        if listed is None:
            raise InputError(f"expected a list of item ids, not {shown(items)}; pass [{shown(items)}].")
        indices = self.catalogue_.find(listed)
        if unknown := list(itertools.compress(listed, indices < 0)):
            raise InputError(
                f"the model has no item {shown(unknown[0])}"
                + (f", nor {len(unknown) - 1:,} others of the list" if len(unknown) > 1 else "")
                + "; check the ids and their type."
            )
        return indices

    def _change_withdrawn(self, action: str, catalogue: Catalogue) -> int:
        """Take over a catalogue with other withdrawn items; return how many have changed."""
        changed = abs(len(catalogue.withdrawn) - len(self.catalogue_.withdrawn))
        if changed:
            record = change_record(action, changed, self.checksum)
            self._set_catalogue(catalogue)
            self.lineage_ = [*self.lineage_, record]
        return changed

    def _set_catalogue(self, catalogue: Catalogue) -> None:
        """Replace the catalogue by one with other withdrawn items; a subclass forgets what it derived from it."""
        self.catalogue_ = catalogue

    @property
    def checksum(self) -> str:
        """A checksum of the model's arrays and facts, by which the lineage of other models refers to it."""
        facts = json.dumps(self.to_artifact().facts, sort_keys=True)
        return hashlib.sha256((self.digest + facts).encode()).hexdigest()

    def decoding_options(self, decoding: str) -> dict[str, Any]:
        """Return the options of `top` for a named way of decoding; ``"beam"`` is the default of all models."""
        if decoding in self.decodings:
            return dict(self.decodings[decoding])
        if decoding == "beam":
            return {}
        available = f"available: {', '.join(self.decodings)}" if self.decodings else "only generators decode"
        raise InputError(f"a {type(self).__name__} has no decoding '{decoding}'; {available}.")

    def user_indices(self, users: Sequence[Any]) -> Indices | None:
        """Return user indices, -1 for unknown users; None if the model has no user embeddings."""
        if self.user_ids_ is None:
            return None
        indices = lookup(self._user_positions, users)
        if unknown := list(itertools.compress(users, indices < 0)):
            count = counted(len(unknown), "unknown user id")
            log.warning("Used the mean user embedding for %s (e.g. %s)", count, shown(unknown[0]))
        return indices

    @cached_property
    def _user_positions(self) -> dict[Any, int]:
        return {identity: index for index, identity in enumerate(cast(pl.Series, self.user_ids_))}

    def save(self, folder: str | Path, *, parts: bool = True) -> None:
        """Write everything that `resid.load` needs to a folder atomically.

        Parameters
        ----------
        folder
            The folder; a model that is there already is replaced.
        parts
            Include the encoder and the quantizer, which give IDs to new items; otherwise only the `required_parts`.
        """
        self._require_fit()
        artifact = self.to_artifact()
        kept = {name: part for name, part in artifact.parts.items() if parts or name in self.required_parts}
        write_artifact(folder, Artifact(**vars(artifact) | {"parts": kept}))

    def to_artifact(self) -> Artifact:
        """Return the fitted recommender, its catalogue and its parts as plain data."""
        catalogue, content = self.catalogue_, self._pack()
        facts = {
            "settings": self.settings.to_dict(),
            "catalogue": catalogue.facts(),
            "history": self.history_,
            "best_epoch": self.best_epoch_,
        }
        if self.lineage_:
            facts["lineage"] = list(self.lineage_)
        if self.measured_ is not None:
            facts["measured"] = dict(self.measured_)
        return Artifact(
            self.stage,
            self.kind,
            self.format_version,
            facts=facts | content.get("facts", {}),
            arrays={"counts": catalogue.counts, **content.get("arrays", {})},
            tables={"items": catalogue.items, **content.get("tables", {})},
            parts={name: part.to_artifact() for name, part in self.parts_.items()},
        )

    @classmethod
    def _from_artifact(cls, artifact: Artifact) -> Self:
        model = cls._unpack(artifact)
        model.parts_ = SavedParts(artifact.parts)
        model.history_, model.best_epoch_ = artifact.facts["history"], artifact.facts["best_epoch"]
        model.lineage_ = artifact.facts.get("lineage", ())
        model.measured_ = artifact.facts.get("measured")
        model.fitted = True
        return model

    @staticmethod
    def _catalogue(artifact: Artifact) -> Catalogue:
        return Catalogue.from_facts(artifact.facts["catalogue"], artifact.tables["items"], artifact.arrays["counts"])

    def require_data(self, data: Dataset) -> None:
        """Raise an `InputError` unless this is the Dataset that the recommender was fitted to."""
        self._require_fit()
        require_dataset(data)
        if self.catalogue_.fingerprint != data.fingerprint:
            given = data.folder or f"the one with fingerprint {data.fingerprint[:16]}"
            raise InputError(f"the model was fitted to another Dataset than {given}; use that Dataset, or fit again.")

    def _require_fit(self) -> None:
        if not self.fitted:
            raise InputError("the model is not fitted yet; call fit first.")

    def _check_options(self, options: dict[str, Any]) -> None:
        """Raise an `InputError` for options that this model's `top` does not have."""
        known = _options_of(type(self).top)
        if unknown := [name for name in options if name not in known]:
            available = f"; available options: {', '.join(known)}" if known else "; it has no options"
            raise InputError(f"a {type(self).__name__} has no option '{unknown[0]}'{available}.")


@cache
def _options_of(top: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the options that a model's `top` has beyond those of all models."""
    common = {*signature(Recommender.top).parameters, "users"}
    return tuple(name for name in signature(top).parameters if name not in common)
