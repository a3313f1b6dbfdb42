"""The base class of everything that recommends: histories of item ids in, items and scores out; saving and loading."""

import itertools
import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
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
from resid.core.settings import Settings
from resid.data.batches import Batch, Batches
from resid.data.catalogue import Catalogue, lookup
from resid.data.dataset import Dataset, require_dataset
from resid.data.splits import Split
from resid.data.where import Where
from resid.evaluate.metrics import NOT_FOUND, ranks_of
from resid.quantize.ids import SemanticIds
from resid.recommend.explain import ExplainedModel
from resid.recommend.histories import (
    BATCH_USERS,
    Indices,
    Scores,
    allowed_items,
    as_ids,
    batches_by_length,
    check_histories,
    check_users,
    known_items,
    most_popular,
    round_length,
    without_seen,
)

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
    """

    settings: Settings
    catalogue_: Catalogue
    ids_: SemanticIds | None = None
    user_ids_: pl.Series | None = None  # set if the model has embeddings of users
    parts_: Mapping[str, Part] = MappingProxyType({})
    history_: Sequence[dict[str, Any]] = ()
    best_epoch_: int = 0
    fitted = False  # set when fit is complete
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
            Which items may be recommended, shape (n_items,); all by default.
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

        Items that are not in the catalogue are skipped. Histories without any known item get the most popular items,
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
        allowed = allowed_items(self.catalogue_, allow, deny, where)
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
        ids = as_ids(items, self.catalogue_.item_ids)
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
        histories, max_history = windows.unbounded if whole else windows, self.catalogue_.max_history
        sizes = round_length(histories.end - histories.begin, max_history)
        with (progress or Silent()).bar("Ranking", len(windows), unit="users") as advance:
            for size in np.unique(sizes):
                members = np.flatnonzero(sizes == size)
                batch_size = max(1, int(BATCH_USERS * max_history // size))
                for batch in Batches(histories.take(members), batch_size, shuffle=False):
                    users = members[batch.index]
                    kept[users], dropped[users] = self._ranks(batch, k, **options)
                    advance(len(batch))
        return kept, dropped

    def _ranks(self, batch: Batch, k: int, **options: Any) -> tuple[Indices, Indices]:
        """Return the ranks of a batch's targets, with seen items kept and dropped."""
        max_history = self.catalogue_.max_history
        longest = int(round_length(np.array(batch.histories.shape[1]), max_history))
        # As many more items as a history has, so that k are left without them.
        items, _ = self.top(batch.histories, k + max_history, **options)
        kept = ranks_of(items[:, :k], batch.targets)
        if longest > max_history:  # a separate search, so that `kept` does not depend on the length of the history
            items, _ = self.top(batch.histories, k + longest, **options)
        unseen, _ = without_seen(items, np.zeros(items.shape, dtype=np.float32), batch.histories, k)
        return kept, ranks_of(unseen, batch.targets)

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
        common = {*signature(Recommender.top).parameters, "users"}
        known = [name for name in signature(self.top).parameters if name not in common]
        if unknown := [name for name in options if name not in known]:
            available = f"; available options: {', '.join(known)}" if known else "; it has no options"
            raise InputError(f"a {type(self).__name__} has no option '{unknown[0]}'{available}.")
