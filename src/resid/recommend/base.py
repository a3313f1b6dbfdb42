"""What everything that recommends has in common: histories of item ids in, items and scores out; save and load."""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Bundle, read_bundle, write_bundle
from resid.data.batches import PADDING, Batch, Batches
from resid.data.dataset import Dataset, lookup, require_dataset
from resid.data.splits import Split
from resid.core.errors import InputError, as_path
from resid.evaluate import NOT_FOUND, ranks_of
from resid.core.progress import Progress, Silent

log = logging.getLogger(__name__)

KINDS = {  # where each kind of recommender is; imported when it is needed, for torch takes a second
    "onepass": "resid.generate:OnePassGenerator",
    "t5": "resid.generate:T5Generator",
    "popularity": "resid.sequential:Popularity",
    "cooccurrence": "resid.sequential:CoOccurrence",
    "hgn": "resid.sequential:HGN",
    "sasrec": "resid.sequential:SASRec",
    "bert4rec": "resid.sequential:BERT4Rec",
    "s3rec": "resid.sequential:S3Rec",
}
_USERS = 256  # users that are worked on at a time

Indices = NDArray[np.int64]
Scores = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What a recommender knows of the Dataset that it was fitted to.

    Attributes
    ----------
    items : polars.DataFrame
        The items in the order of their indices: the column ``item`` with their ids, then their fields.
    counts : ndarray of int64, shape (items,)
        How often each stands in the training part of the histories.
    max_history : int
        The most items of a history that are read, its last ones.
    fingerprint : str
        That of the Dataset.
    """

    items: pl.DataFrame
    counts: NDArray[np.int64]
    max_history: int
    fingerprint: str

    @classmethod
    def of(cls, data: Dataset) -> Self:
        """Take it from a Dataset."""
        require_dataset(data)
        return cls(data.item_table, data.training_counts, data.settings.max_length - 1, data.fingerprint)

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.items),) or self.max_history < 1:
            raise InputError(f"there are {len(self.items):,} items and {len(self.counts):,} counts of them.")

    def __len__(self) -> int:
        return len(self.items)

    @property
    def item_ids(self) -> pl.Series:
        """The items' ids in the order of their indices."""
        return self.items["item"]

    @cached_property
    def _positions(self) -> dict[Any, int]:
        return {identity: index for index, identity in enumerate(self.item_ids)}

    def find(self, ids: Iterable[Any]) -> Indices:
        """Return the indices of items; -1 for an id that is not known."""
        return lookup(self._positions, ids)

    @cached_property
    def by_popularity(self) -> Indices:
        """The items, the most frequent first, equally frequent ones in their order; shape (items,)."""
        return np.argsort(-self.counts, kind="stable")

    @cached_property
    def log_shares(self) -> Scores:
        """The logarithm of every item's share of the interactions, one added to each; shape (items,)."""
        shares: Scores = np.log((self.counts + 1) / (self.counts + 1).sum()).astype(np.float32)
        return shares


class Recommender(ABC):
    """Base of everything that recommends: a subclass fits itself, ranks items by index, and says what it consists of."""

    name: ClassVar[str]  # its key in `KINDS`
    catalogue_: Catalogue
    user_ids_: pl.Series | None = None  # of the users that the model knows, if it has learnt something of each
    fitted = False  # set when everything is there, so that a fit that failed does not count

    @abstractmethod
    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """Return the k best items after each history and their scores, shape (users, k).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, one item at least; shape (users, length). The last `max_history` are read.
        k
            How many items; -1 with the score -inf stands where there are fewer.
        exclude_seen
            Leave out the items of the history.
        allowed
            Which items may be recommended, shape (items,); all by default.
        """

    @abstractmethod
    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        """Return the facts, arrays and tables from which `_restore` makes the same recommender again."""

    @classmethod
    @abstractmethod
    def _restore(cls, bundle: Bundle, catalogue: Catalogue) -> Self:
        """Make the recommender that a bundle describes."""

    def recommend(
        self,
        histories: Sequence[Any],
        k: int = 10,
        *,
        exclude_seen: bool = False,
        allow: Iterable[Any] | None = None,
        deny: Iterable[Any] | None = None,
        users: Sequence[Any] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> tuple[NDArray[Any], Scores]:
        """Return the k best items after each history, the best first.

        Items that the catalogue does not have are skipped. Where that leaves nothing, as for an empty history, the most
        popular items of the training histories are recommended, scored by the logarithm of their share. Both are counted
        in a warning of the log.

        Parameters
        ----------
        histories
            For every user the ids of items, the oldest first; or a single such history. An empty list is no users at all; one
            user without a history is ``[[]]``.
        k
            How many items.
        exclude_seen
            Leave out what the user has had already.
        allow
            Ids of the only items that may be recommended; all by default.
        deny
            Ids of items that may not be recommended.
        users
            The id of every history's user. A model that has learnt something of each of them (HGN with `user_vectors`)
            takes it into account, and the mean of all for a user who is not known or not given; others do not look at it.
        progress
            Counts the users.
        options
            How a generator decodes, see its `top`: `beam`, `constrained`, `exact`.

        Returns
        -------
        items, scores
            Ids and scores, shape (users, k), or (k,) for a single history; None and -inf where there are fewer items.
        """
        self._require_fit()
        self._require_options(options)
        single, rows = _rows(histories)
        if not rows:
            log.warning("there are no histories, so nothing is recommended; a user without a history is [[]]")
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= len(self.catalogue_):
            raise InputError(
                f"k must be a whole number from 1 to {len(self.catalogue_):,}, the items of the catalogue, not {k!r}."
            )
        allowed = self._allowed(allow, deny)
        known = self._known(rows)
        numbers = self._user_numbers(_user_list(users, len(rows))) if users is not None else None
        items = np.full((len(rows), k), -1, dtype=np.int64)
        scores = np.full((len(rows), k), -np.inf, dtype=np.float32)
        with (progress or Silent()).bar("Recommending", len(rows), unit="users") as advance:
            for some, batch in _by_length(known, self.catalogue_.max_history, whole=exclude_seen):
                more = options | ({"users": numbers[some]} if numbers is not None else {})
                items[some], scores[some] = (
                    self.top(batch, k, exclude_seen=exclude_seen, allowed=allowed, **more)
                    if batch.shape[1]
                    else self._popular(len(some), k, allowed)
                )
                advance(len(some))
        if fewer := int((items[:, -1] < 0).sum()):
            free = (
                "their beams ended at IDs that no item has"
                if options.get("constrained") is False
                else "no more are left"
            )
            log.warning("users who get fewer than %d items, for %s: %d", k, free, fewer)
        ids = np.empty(items.shape, dtype=object)
        ids[items >= 0] = self.catalogue_.item_ids.gather(items[items >= 0]).to_list()
        return (ids[0], scores[0]) if single else (ids, scores)

    def ranks(
        self, windows: Split, k: int = 10, *, whole: bool = True, progress: Progress | None = None, **options: Any
    ) -> tuple[Indices, Indices]:
        """Return the rank of every window's target among the k best items, counted from 0; `NOT_FOUND` where it is not there.

        Parameters
        ----------
        windows
            Whose histories are read and whose targets are looked for.
        k
            Ranks below it are told apart.
        whole
            Drop all items of a history; otherwise only those that are read, which costs less where histories are long.
        progress
            Counts the users.
        options
            Go to `top`.

        Returns
        -------
        kept, dropped
            With items of the history kept among the recommendations, and with them dropped; each of shape (windows,).
        """
        self._require_options(options)
        kept = np.full(len(windows), NOT_FOUND, dtype=np.int64)
        dropped = kept.copy()
        asked, longest = windows.unbounded if whole else windows, self.catalogue_.max_history
        sizes = _rounded(asked.end - asked.begin, longest)
        with (progress or Silent()).bar("Ranking", len(windows), unit="users") as advance:
            for size in np.unique(sizes):
                members = np.flatnonzero(sizes == size)
                for batch in Batches(asked.take(members), max(1, int(_USERS * longest // size)), shuffle=False):
                    users = members[batch.index]
                    kept[users], dropped[users] = self._ranks(batch, k, **options)
                    advance(len(batch))
        return kept, dropped

    def _ranks(self, batch: Batch, k: int, **options: Any) -> tuple[Indices, Indices]:
        """Return the ranks of the targets of whole histories, with seen items kept and dropped."""
        longest = self.catalogue_.max_history
        more = int(_rounded(np.array(batch.histories.shape[1]), longest))
        # As many more as a history has items, so that k are left without those.
        items, _ = self.top(batch.histories, k + longest, **options)
        kept = ranks_of(items[:, :k], batch.targets)
        if more > longest:  # apart, so that the others are searched for alike, however long a history is
            items, _ = self.top(batch.histories, k + more, **options)
        fresh, _ = leave_out(items, np.zeros(items.shape, dtype=np.float32), batch.histories, k)
        return kept, ranks_of(fresh, batch.targets)

    def _user_numbers(self, users: Sequence[Any]) -> Indices | None:
        """Return the numbers of users, -1 for one who is not known, if the model knows users; else None."""
        if self.user_ids_ is None:
            return None
        numbers = lookup(self._user_positions, users)
        if (numbers < 0).any():
            first = users[int((numbers < 0).argmax())]
            log.warning("users who are not known and get the mean of all: %d, %r first", (numbers < 0).sum(), first)
        return numbers

    @cached_property
    def _user_positions(self) -> dict[Any, int]:
        return {identity: number for number, identity in enumerate(cast(pl.Series, self.user_ids_))}

    def save(self, folder: str | Path) -> None:
        """Write everything that `resid.load` needs into a folder, whole or not at all."""
        self._require_fit()
        facts, arrays, tables = self._bundle()
        catalogue = self.catalogue_
        more = {"max_history": catalogue.max_history, "fingerprint": catalogue.fingerprint}
        arrays, tables = {"counts": catalogue.counts, **arrays}, {"items": catalogue.items, **tables}
        write_bundle(folder, Bundle(self.name, more | facts, arrays, tables))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a recommender of this kind; `resid.load` reads any."""
        model = load(folder)
        if not isinstance(model, cls):
            raise InputError(f"{folder}: this is a {type(model).__name__}, not a {cls.__name__}; use resid.load.")
        return model

    def require_data(self, data: Dataset) -> None:
        """Raise an `InputError` unless this is the Dataset that the recommender was fitted to."""
        self._require_fit()
        require_dataset(data)
        if self.catalogue_.fingerprint != data.fingerprint:
            raise InputError(
                f"the model was fitted to another Dataset (fingerprint {self.catalogue_.fingerprint[:16]}, this one has "
                f"{data.fingerprint[:16]}); give that one, or fit again."
            )

    def _require_fit(self) -> None:
        if not self.fitted:
            raise InputError("the model is not fitted yet; call fit first.")

    def _require_options(self, options: dict[str, Any]) -> None:
        """Refuse what is no option of this model's decoding: those that its `top` has beyond the common ones."""
        common = {*signature(Recommender.top).parameters, "users"}
        known = [name for name in signature(self.top).parameters if name not in common]
        if unknown := [name for name in options if name not in known]:
            there = f"; there are {', '.join(known)}" if known else ", nor any other"
            raise InputError(f"a {type(self).__name__} has no option '{unknown[0]}'{there}.")

    def _known(self, rows: list[Sequence[Any]]) -> list[Indices]:
        """Return histories as indices without what is not known, and tell in the log what that was."""
        found = [self.catalogue_.find(row) for row in rows]
        known = [indices[indices >= 0] for indices in found]
        if skipped := sum(len(all_) - len(some) for all_, some in zip(found, known, strict=True)):
            example = next(
                i for row, indices in zip(rows, found, strict=True) for i in np.asarray(row, object)[indices < 0]
            )
            kind = _kind_of_ids(self.catalogue_.item_ids)
            hint = "" if isinstance(example, kind) else f"; its ids are {'numbers' if kind is int else 'text'}"
            log.warning(
                "items of histories that are not in the catalogue, skipped: %d, %r first%s", skipped, example, hint
            )
        if empty := sum(not len(indices) for indices in known):
            log.warning("histories without an item of the catalogue, which get the most popular items: %d", empty)
        return known

    def _allowed(self, allow: Iterable[Any] | None, deny: Iterable[Any] | None) -> NDArray[np.bool_] | None:
        if allow is None and deny is None:
            return None
        allowed = np.full(len(self.catalogue_), allow is None)
        for name, ids, value in (("allow", allow, True), ("deny", deny, False)):
            if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable | None):
                raise InputError(f"'{name}' is a list of item ids, not {ids!r}; give [{ids!r}].")
            listed = list(ids) if ids is not None else []
            indices = self.catalogue_.find(listed)
            allowed[indices[indices >= 0]] = value
            if (indices < 0).any():
                first = listed[int((indices < 0).argmax())]
                log.warning(
                    "items of '%s' that are not in the catalogue: %d, %r first", name, (indices < 0).sum(), first
                )
        if not allowed.any():
            raise InputError("no item of the catalogue may be recommended; change 'allow' or 'deny'.")
        return allowed

    def _popular(self, users: int, k: int, allowed: NDArray[np.bool_] | None) -> tuple[Indices, Scores]:
        catalogue = self.catalogue_
        order = catalogue.by_popularity
        best = (order if allowed is None else order[allowed[order]])[:k]
        items, scores = np.full(k, -1, dtype=np.int64), np.full(k, -np.inf, dtype=np.float32)
        items[: len(best)], scores[: len(best)] = best, catalogue.log_shares[best]
        return np.tile(items, (users, 1)), np.tile(scores, (users, 1))


def load(folder: str | Path) -> Recommender:
    """Read a recommender that `save` wrote, or that of a run's folder.

    Raises
    ------
    InputError
        If no whole recommender is there, or one that this version does not know.
    """
    folder = as_path(folder)
    if not folder.exists():
        raise InputError(f"{folder}: there is no such folder; make a model with 'resid fit'.")
    if (folder / "run.json").exists() and not (folder / "model").is_dir():
        raise InputError(f"{folder}: this run has no model yet; the same 'resid fit' that began it continues it.")
    bundle = read_bundle(folder / "model" if (folder / "model").is_dir() else folder)
    if bundle.kind not in KINDS:
        raise InputError(f"{folder}: a model of the kind '{bundle.kind}' is not known here; update resid.")
    try:
        facts = bundle.facts
        catalogue = Catalogue(
            bundle.tables["items"], bundle.arrays["counts"], facts["max_history"], facts["fingerprint"]
        )
        model = recommender_class(bundle.kind)._restore(bundle, catalogue)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{folder}: parts of the model do not fit each other ({error}); save it again.") from error
    model.fitted = True
    return model


def recommender_class(kind: str) -> type[Recommender]:
    """Return the class of a kind of recommender."""
    module, _, name = KINDS[kind].partition(":")
    found: type[Recommender] = getattr(importlib.import_module(module), name)
    return found


def leave_out(items: Indices, scores: Scores, histories: Indices, k: int) -> tuple[Indices, Scores]:
    """Return the first k items of every row that its history does not have, and their scores; shape (users, k)."""
    left = np.full((len(items), k), -1, dtype=np.int64)
    values = np.full((len(items), k), -np.inf, dtype=np.float32)
    for row in range(len(items)):
        fresh = np.flatnonzero((items[row] >= 0) & ~np.isin(items[row], histories[row]))[:k]
        left[row, : len(fresh)], values[row, : len(fresh)] = items[row, fresh], scores[row, fresh]
    return left, values


def last_items(histories: Indices, catalogue: Catalogue) -> Indices:
    """Return what is read of histories as `Recommender.top` takes them, and refuse what they cannot be."""
    rows = np.asarray(histories)
    whole = rows.ndim == 2 and rows.shape[1] and rows.dtype.kind in "iu"
    if not whole or rows.min(initial=0) < PADDING or rows.max(initial=0) >= len(catalogue) or (rows[:, -1] < 0).any():
        raise InputError(
            f"histories must be item indices from 0 to {len(catalogue) - 1}, shape (users, length), with {PADDING} for padding "
            "on the left; recommend takes the items' own ids."
        )
    return np.ascontiguousarray(rows[:, -catalogue.max_history :], dtype=np.int64)


def _rows(histories: Sequence[Any]) -> tuple[bool, list[Sequence[Any]]]:
    """Return whether a single history was given, and the histories."""
    if isinstance(histories, (str, bytes)):
        raise InputError(f"a history is a list of item ids, not the text {histories!r}; give [{histories!r}].")
    ordered = isinstance(histories, Iterable) and not isinstance(histories, (set, frozenset, dict))
    if not ordered or hasattr(histories, "columns"):
        raise InputError(f"histories must be lists of item ids, or one such list, not a {type(histories).__name__}.")
    rows = list(histories)
    lists = [isinstance(row, Iterable) and not isinstance(row, (str, bytes)) for row in rows]
    if rows and any(lists) != all(lists):
        raise InputError("histories must be lists of item ids, or one such list; here some are lists and some are not.")
    found: list[Sequence[Any]] = [rows] if rows and not lists[0] else [list(row) for row in rows]
    for row in found:
        if nested := [item for item in row if isinstance(item, (list, dict, set, np.ndarray))]:
            raise InputError(f"a history is a list of item ids; {nested[0]!r} is not one.")
    return bool(rows) and not lists[0], found


def _user_list(users: Sequence[Any], count: int) -> list[Any]:
    """Return the ids of so many users, or say that they cannot be that."""
    listed = list(users) if isinstance(users, Iterable) and not isinstance(users, (str, bytes)) else []
    if len(listed) != count or any(isinstance(user, (list, dict, set, np.ndarray)) for user in listed):
        raise InputError(
            f"'users' must be a list with the id of the user of each of {count:,} histories, not {users!r}."
        )
    return listed


def _kind_of_ids(ids: pl.Series) -> type:
    return int if ids.dtype.is_integer() else str


def _by_length(known: list[Indices], longest: int, *, whole: bool) -> Iterator[tuple[Indices, Indices]]:
    """Yield users whose histories are of similar length, and these as one array, `PADDING` on the left.

    Of a history that is longer than `longest`, its last items; with `whole` all of it, at one of a few lengths, so that what
    is done with it does not depend on whose history stands beside it.
    """
    lengths = np.array([len(indices) for indices in known], dtype=np.int64)
    if not whole:
        lengths = np.minimum(lengths, longest)
    sizes = np.where(lengths == 0, 0, _rounded(lengths, longest))
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        members = members[np.argsort(lengths[members], kind="stable")]
        for users in np.split(members, range(_USERS, len(members), _USERS)):
            width = int(lengths[users].max()) if size <= longest else int(size)
            batch = np.full((len(users), width), PADDING, dtype=np.int64)
            for row, user in enumerate(users):
                batch[row, width - lengths[user] :] = known[user][len(known[user]) - lengths[user] :]
            yield users, batch


def _rounded(lengths: Indices, longest: int) -> Indices:
    """Return `longest` where it is enough for a length, and twice, four times, ... as much where that is."""
    rounded: Indices = longest * 2 ** np.ceil(np.log2(np.maximum(lengths, longest) / longest)).astype(np.int64)
    return rounded
