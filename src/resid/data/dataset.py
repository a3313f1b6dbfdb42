"""The Dataset: histories, item fields and vocabularies, the input of every later stage. In memory or memory-mapped.

On disk it is a folder (see `docs/data-format.md`)::

    dataset.json     settings, edges of bins, counts after every step, checksums of the other files and of itself; written last
    users.parquet    user                          row = user index
    items.parquet    item, fields, kept columns    row = item index
    fields.npy       (items, fields) int32         0 = missing, v = the v-th value of the field in sorted order;
                     (items, fields, values)       if a field has several values, padded with 0
    sequence.npy     (interactions,) int32         item indices of all histories, one user after another
    offsets.npy      (users + 1,) int64            user u's history is sequence[offsets[u]:offsets[u + 1]]
    boundaries.npy   (users, 2) int64              time split only: where the validation and the test part of a history begin
    first_seen.npy   (items,)                      if the timestamps are times: when each item first occurs
"""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.checksums import manifest_text, pop_checksum, sha256_of_file
from resid.core.display import html_table
from resid.core.errors import InputError, as_path, counted, shown
from resid.core.files import atomic_folder, content_of, refuse_foreign_folder
from resid.core.progress import Progress, default_progress
from resid.data.catalogue import Catalogue, as_list, lookup
from resid.data.settings import FieldKind, PrepareSettings
from resid.data.splits import Histories, Split

FORMAT = 2
FORMAT_WITH_TAGS_OR_NUMBERS = 3  # versions that do not know these kinds must not read them
FORMAT_WITH_TIME_SPLIT = 4
MANIFEST = "dataset.json"
_ARRAYS = ("fields", "sequence", "offsets")
_TABLES = ("users", "items")
_BOUNDARIES = "boundaries"
_FIRST_SEEN = "first_seen"


class Dataset:
    """Chronological user histories and a catalogue of items with fields.

    Created by `from_tables` or `load`. Users and items have indices from 0 in the sorted order of their ids.

    Attributes
    ----------
    sequence : ndarray of int32, shape (n_interactions,)
        Item indices of all histories, one user after another, each in chronological order.
    offsets : ndarray of int64, shape (n_users + 1,)
        Start of every user's history in `sequence`.
    boundaries : ndarray of int64, shape (n_users, 2), or None
        Time split: where the validation and the test part of every history begin in `sequence`. None is leave-one-out.
    first_seen : ndarray, shape (n_items,), or None
        The time of the first interaction of every item, if the timestamps are times since 1970; other numbers, such as positions
        in a history, do not order items. Not part of the fingerprint.
    fields : ndarray of int32, shape (n_items, n_fields) or (n_items, n_fields, n_values)
        Field values as codes: 0 is missing, v is the v-th value of `vocabulary(field)`, counted from 1. If there are tags, it
        has a third axis: the codes of an item's tags in ascending order, padded with 0; other fields use the first place.
    field_names : tuple of str
    edges : dict
        The edges between the bins of every field that is a number.
    settings : PrepareSettings
    steps : list of dict
        Number of users, items and interactions after every preprocessing step.
    notes : dict
        Other counts of the preprocessing: duplicates, ties, skipped lines, unseen targets.
    fingerprint : str
        Checksum of content and settings. It does not depend on the file format, frame library or engine of the input.
    folder : Path or None
        Where the Dataset was saved or loaded.
    """

    def __init__(
        self,
        *,
        arrays: Mapping[str, NDArray[Any]],
        tables: Mapping[str, pl.DataFrame],
        settings: PrepareSettings,
        field_names: Sequence[str],
        steps: list[dict[str, Any]],
        notes: dict[str, Any],
        edges: Mapping[str, Sequence[float]] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.fields = arrays["fields"]
        self.sequence = arrays["sequence"]
        self.offsets = arrays["offsets"]
        self.boundaries = arrays.get(_BOUNDARIES)
        self.first_seen = arrays.get(_FIRST_SEEN)
        self._tables = dict(tables)
        self.settings = settings
        self.field_names = tuple(field_names)
        self.edges = {name: tuple(values) for name, values in (edges or {}).items()}
        self.steps = steps
        self.notes = notes
        self.fingerprint = fingerprint or self._compute_fingerprint()
        self.folder: Path | None = None

    @classmethod
    def from_tables(
        cls,
        interactions: Any,
        items: Any = None,
        fields: Sequence[str] | Mapping[str, FieldKind | None] | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        keep: Sequence[str] | None = None,
        k_core: int = 5,
        missing: Literal["drop", "keep"] = "drop",
        min_interactions: int = 3,
        max_length: int = 32,
        path_levels: int = 3,
        qualify_paths: bool = True,
        short_paths: Literal["repeat", "missing"] = "repeat",
        bins: int = 10,
        unlisted_items: Literal["error", "missing"] = "error",
        unseen_targets: Literal["keep", "drop", "train"] = "keep",
        split: Literal["leave-one-out", "time"] = "leave-one-out",
        validate_from: str | float | date | None = None,
        test_from: str | float | date | None = None,
        targets: Literal["first", "all"] = "first",
        duplicates: Literal["keep", "drop"] = "keep",
        separator: str | None = None,
        encoding: str | None = None,
        timestamp_format: str | None = None,
        skip_bad_lines: bool = False,
        engine: Literal["polars", "spark"] | None = None,
        scratch: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "Dataset":
        """Prepare an interaction log and an item table.

        Preprocessing applies, in this order: the k-core filter, the filter of items with missing fields, the filter of
        users with short histories, and the chronological sort of every history. Ties keep the order of the file; `notes`
        counts the targets that this decides. A warning is logged if a step removes more than a tenth of the items or
        interactions.

        Parameters
        ----------
        interactions
            A path (Parquet file or folder, CSV, TSV or JSON lines; the text formats may be gzipped), or a pandas,
            Polars, PyArrow, DuckDB or Spark frame, with the columns `user`, `item` and `timestamp`. Ids are text or
            integers, timestamps are numbers or dates; text is parsed if it is ISO 8601, 2020/02/28, or 28/02/2020 where
            some row tells the day from the month.
        items
            A path or frame of the same kinds with one row per item: the column `item` and the fields. None if there are
            no fields.
        fields
            The columns of `items` to use as fields. Each has a kind, which is guessed, or given after a colon
            (``["store", "genres:tags"]``) or in a mapping (``{"store": None, "genres": "tags"}``):

            - ``category``: one value, text or an integer.
            - ``path``: a list of category names from general to specific, split into levels. A column `categories`
              becomes `cat1`, `cat2`, …; any other column `x` becomes `x1`, `x2`, ….
            - ``tags``: a list of values in no particular order, or text with tags separated by "|".
            - ``number``: put into `bins` bins between the quantiles of the items' values.

            A list is guessed to be a path if its names keep their level: of all names that occur more than once, at least
            90% of the occurrences are at the most common position of their name. Otherwise it has tags. So has text if at
            least 10% of it contains "|" and splitting it leaves fewer distinct values. Numbers with decimals are numbers,
            everything else is a category. `notes` has the reasons of guesses.
        columns
            Column names of your tables, for example ``{"user": "reviewer", "item": "asin"}``.
        keep
            Further columns of `items` to store in the Dataset. By default `title`, if it exists.
        k_core
            Users and items with fewer interactions are removed repeatedly until all have this many; 1 keeps everything.
        missing
            ``"drop"`` removes items with a missing field, as in the paper; ``"keep"`` treats "missing" as a value.
        min_interactions
            Users with fewer interactions after these filters are removed; at least 3, the minimum for the splits.
        max_length
            Maximum number of items in a window, including its target.
        path_levels
            Number of levels of a list column that become fields.
        qualify_paths
            Whether the value of a level includes the levels above it, so that "Strings" under two parents is two
            different values.
        short_paths
            What a path that has fewer levels has at the others: ``"repeat"`` repeats its last level, ``"missing"`` makes
            them missing, as in the paper.
        bins
            Number of bins of a field that is a number; fewer if its values repeat.
        unlisted_items
            What to do with items of the log that have no row in `items`: ``"error"``, or ``"missing"`` to treat all of
            their fields as missing.
        unseen_targets
            What to do with validation and test targets that no training history contains. ``"keep"`` evaluates them;
            models know these items from the catalogue only. ``"drop"`` moves their windows from the evaluation to the
            training split, as in the published data of the paper; the user then has no window in that split. If only
            the test target of a user is moved, its history leaves the validation target out, so that training never
            sees an item that is still to be predicted. ``"train"`` adds the windows to the training split and still
            evaluates them, which leaks test labels; for comparison only. `notes` counts these targets. In a time split,
            ``"drop"`` removes them from the evaluation and does not train on them, and ``"train"`` is refused.
        split
            ``"leave-one-out"``: the last item of every history is its test target, the item before it the validation
            target. ``"time"``: training ends at one point in time for all users, see `validate_from`. The filters above and
            the catalogue use the whole log in both cases.
        validate_from, test_from
            Time split: training has all interactions before `validate_from`, validation targets are from then until before
            `test_from`, test targets from `test_from` on; an interaction at exactly that time is later, so a basket is never
            divided. Each is a date (ISO 8601, UTC without a time zone), a number on the scale of the timestamps, or a share
            of the interactions between 0 and 1: with 0.8, the time of the first interaction after the earliest 80%.
        targets
            Time split: the targets of a user are the ``"first"`` or ``"all"`` items of the validation and the test period.
            The history of a target is everything before it, including earlier targets. Targets without any earlier
            interaction of their user are not evaluated; `notes` counts them.
        duplicates
            ``"drop"`` removes exact duplicates (the same user, item and timestamp) before all other steps; ``"keep"``
            leaves them in the histories, where a duplicated last interaction makes the test target its own predecessor.
            `notes` counts them.
        separator
            The separator of CSV and TSV files, for example ``";"``. By default a comma, or a tab for TSV. A file with
            only the default separator in its header is read with it, as both tables share this argument.
        encoding
            The encoding of text files, for example ``"utf-16"`` or ``"latin-1"``; UTF-8 by default, and for a file that cannot
            be in this encoding.
        timestamp_format
            The format of timestamps that are text, in the notation of `datetime.strptime`: ``"%d/%m/%Y %H:%M"``. UTC
            without a time zone (``%z``).
        skip_bad_lines
            Skip and count lines of a JSON-lines file that are not JSON objects, instead of raising an error.
        engine
            ``"spark"`` reads paths with Spark; frames are processed by their own engine.
        scratch
            For Spark: a folder shared by the workers and the driver, for temporary files.
        progress
            Receives progress updates; by default shown on a terminal and in a notebook.

        Returns
        -------
        Dataset

        Raises
        ------
        InputError
            A `ValueError` that names the table, the column and the first invalid rows.
        """
        from resid.data.fields import parse_fields
        from resid.data.prepare import prepare_tables  # prepare imports this module

        field_columns, kinds = parse_fields(fields)
        return prepare_tables(
            interactions,
            items,
            PrepareSettings(
                fields=field_columns,
                kinds=kinds,
                keep=_column_list("keep", keep),
                k_core=k_core,
                missing=missing,
                min_interactions=min_interactions,
                max_length=max_length,
                path_levels=path_levels,
                qualify_paths=qualify_paths,
                short_paths=short_paths,
                bins=bins,
                unlisted_items=unlisted_items,
                unseen_targets=unseen_targets,
                split=split,
                validate_from=_point_in_time(validate_from),
                test_from=_point_in_time(test_from),
                targets=targets,
            ),
            columns=columns,
            duplicates=duplicates,
            separator=separator,
            encoding=encoding,
            timestamp_format=timestamp_format,
            skip_bad_lines=skip_bad_lines,
            engine=engine,
            scratch=as_path(scratch) if scratch is not None else None,
            progress=progress or default_progress(),
        )

    @property
    def digest(self) -> str:
        """The fingerprint, by which stages of a run identify their input."""
        return self.fingerprint

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return len(self.fields)

    @property
    def n_interactions(self) -> int:
        """Total number of interactions in the histories."""
        return len(self.sequence)

    @property
    def user_ids(self) -> pl.Series:
        """The original user ids in index order."""
        return self._tables["users"]["user"]

    @property
    def item_ids(self) -> pl.Series:
        """The original item ids in index order."""
        return self._tables["items"]["item"]

    @property
    def item_table(self) -> pl.DataFrame:
        """The items with their fields (null = missing) and kept columns, in index order."""
        return self._tables["items"]

    def item_indices(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the index of every item id, -1 for an unknown id."""
        return self.catalogue.find(ids)

    def user_indices(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the index of every user id, -1 for an unknown id."""
        return lookup(self._user_positions, ids)

    @cached_property
    def _user_positions(self) -> dict[Any, int]:
        return {identity: index for index, identity in enumerate(self.user_ids)}

    @cached_property
    def training_counts(self) -> NDArray[np.int64]:
        """How often each item occurs in the training part of the histories, shape (n_items,).

        Targets that `unseen_targets` moves or adds to the training split are included.
        """
        return self._histories.training_counts(self.settings.unseen_targets)

    @property
    def in_training(self) -> NDArray[np.bool_]:
        """Which interactions belong to the training part of their history, shape (n_interactions,).

        Targets that `unseen_targets` moves or adds to the training split are not included.
        """
        return self._histories.in_training

    @cached_property
    def _histories(self) -> Histories:
        return Histories(self.sequence, self.offsets, self.n_items, self.boundaries, self.settings.targets)

    def history(self, user: Any) -> pl.Series:
        """Return the item ids of a user's complete history, including the validation and test targets.

        Raises
        ------
        InputError
            If there is no user with this id.
        """
        (index,) = lookup(self._user_positions, [user])
        if index < 0:
            raise InputError(
                f"there is no user {shown(user)} in the Dataset; pass the id of one of its {counted(self.n_users, 'user')}."
            )
        return self.item_ids.gather(self.history_at(int(index)))

    def history_at(self, index: int) -> NDArray[np.int32]:
        """Return the complete history of a user index as item indices, including the validation and test targets."""
        if not 0 <= index < self.n_users:
            raise InputError(f"user index {index} is out of range; there are {self.n_users:,} users.")
        return np.asarray(self.sequence[self.offsets[index] : self.offsets[index + 1]])

    @cached_property
    def catalogue(self) -> Catalogue:
        """The items, the vocabularies of their fields and the training counts: what fitted models keep."""
        counts = self.training_counts
        return Catalogue(self.item_table, self.field_names, counts, self.settings, self.fingerprint, self.edges)

    @property
    def field_kinds(self) -> dict[str, FieldKind]:
        """The kind of every field; the levels of a path are fields whose kind is ``"path"``."""
        return self.settings.kinds_of(self.field_names)

    def vocabulary(self, field: str) -> pl.Series:
        """Return the values of a field in the order of their codes; see `Catalogue.vocabulary`."""
        return self.catalogue.vocabulary(field)

    @cached_property
    def field_sizes(self) -> tuple[int, ...]:
        """The number of codes of every field, including code 0 for "missing"."""
        largest = self.fields.max(axis=tuple(axis for axis in range(self.fields.ndim) if axis != 1), initial=0)
        return tuple((largest + 1).tolist())

    @cached_property
    def _splits(self) -> dict[str, Split]:
        return self._histories.windows(
            self.settings.max_length, unseen_targets=self.settings.unseen_targets, fingerprint=self.fingerprint
        )

    @property
    def train(self) -> Split:
        """One window per item of the training part of a history, except the first; see also `unseen_targets`."""
        return self._splits["train"]

    @property
    def validation(self) -> Split:
        """One window per user, whose target is the second-last item; see also `unseen_targets`.

        In a time split, the first or all items of the validation period are targets.
        """
        return self._splits["validation"]

    @property
    def test(self) -> Split:
        """One window per user, whose target is the last item; its history includes the validation target.

        With ``unseen_targets="drop"``, users whose target was moved to the training split have no window. In a time split, the
        first or all items of the test period are targets; their histories include what was before them in that period.
        """
        return self._splits["test"]

    def windows(self, split: str) -> Split:
        """Return the windows of ``"train"``, ``"validation"`` or ``"test"``."""
        if split not in self._splits:
            raise InputError(f"there is no split '{split}'; the splits are {', '.join(self._splits)}.")
        return self._splits[split]

    def with_training_windows(self, windows: Split) -> "Dataset":
        """Return a view of the Dataset with other training windows, from which a model can be trained further."""
        view = copy.copy(self)
        vars(view)["_splits"] = {**self._splits, "train": windows}
        return view

    def info(self) -> dict[str, Any]:
        """Return counts, fields and history lengths as JSON values."""
        lengths = np.diff(self.offsets)
        pairs = np.repeat(np.arange(self.n_users), lengths) * self.n_items + self.sequence
        quantiles = np.quantile(lengths, [0, 0.25, 0.5, 0.75, 0.95, 1])
        return {
            "users": self.n_users,
            "items": self.n_items,
            "interactions": self.n_interactions,
            "density": len(np.unique(pairs)) / (self.n_users * self.n_items),  # each pair of user and item counts once
            "split": self.settings.split,
            "windows": {name: len(split) for name, split in self._splits.items()},
            "fields": [self._field_info(column) for column in range(len(self.field_names))],
            "history_lengths": {
                "mean": float(lengths.mean()),
                **dict(zip(("min", "q25", "median", "q75", "q95", "max"), map(float, quantiles), strict=True)),
                "longer_than_window": int((lengths > self.settings.max_length).sum()),
            },
            "notes": self.notes,
            "steps": self.steps,
            "fingerprint": self.fingerprint,
        }

    def _field_info(self, column: int) -> dict[str, Any]:
        name = self.field_names[column]
        codes = self.fields[:, column].reshape(self.n_items, -1)  # (items, values)
        facts = {
            "name": name,
            "kind": self.field_kinds[name],
            "values": int(np.unique(codes[codes > 0]).size),
            "missing": float(np.mean(codes[:, 0] == 0)),
        }
        if facts["kind"] == "tags":
            facts["mean_tags"] = float((codes > 0).sum(axis=1).mean())
        if facts["kind"] == "number":
            facts["edges"] = list(self.edges[name])
        return facts

    def save(self, folder: str | Path) -> None:
        """Write the Dataset to a folder atomically; an existing Dataset is replaced.

        Raises
        ------
        InputError
            If the folder contains anything but a Dataset, or the disk is full.
        """
        folder = Path(folder)
        refuse_foreign_folder(folder, MANIFEST)
        with atomic_folder(folder) as partial:
            for name in (*self._arrays, *([] if self.first_seen is None else [_FIRST_SEEN])):
                with (partial / f"{name}.npy").open("wb") as file:
                    # Writing through Python, not through the file handle, gives a proper error when the disk is full.
                    np.save(cast(Any, SimpleNamespace(write=file.write)), getattr(self, name), allow_pickle=False)
            for name in _TABLES:
                self._tables[name].rechunk().write_parquet(partial / f"{name}.parquet", statistics=False)
            manifest = {
                "format": self._format,
                "fingerprint": self.fingerprint,
                "settings": self.settings.to_dict(),
                "field_names": self.field_names,
                "steps": self.steps,
                "notes": self.notes,
                "edges": self.edges,
                "files": {
                    file.name: {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
                    for file in sorted(partial.iterdir())
                },
            }
            (partial / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")
        self.folder = folder

    @classmethod
    def load(cls, folder: str | Path) -> "Dataset":
        """Open a Dataset folder, after verifying the checksum of every file; arrays are memory-mapped.

        A process reads the files once for this, and again if they change.

        Parameters
        ----------
        folder
            A folder written by `save` or ``resid prepare``.

        Raises
        ------
        InputError
            If the folder is not a Dataset, is damaged, or was written by another version.
        """
        folder = as_path(folder)
        if not folder.exists():
            raise InputError(f"{folder}: there is no such folder; create a Dataset with 'resid prepare'.")
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            version, files = int(manifest["format"]), manifest["files"]
            readable = FORMAT <= version <= FORMAT_WITH_TIME_SPLIT
            arrays = (*_ARRAYS, _BOUNDARIES) if version == FORMAT_WITH_TIME_SPLIT else _ARRAYS
            arrays = (*arrays, _FIRST_SEEN) if f"{_FIRST_SEEN}.npy" in files else arrays
            names = (*(f"{name}.npy" for name in arrays), *(f"{name}.parquet" for name in _TABLES))
            checksums = {name: files[name]["sha256"] for name in names} if readable else {}
            unaltered = pop_checksum(manifest)
        except (FileNotFoundError, NotADirectoryError) as error:
            if folder.is_file():
                raise InputError(f"{folder} is a file, not a Dataset; run 'resid prepare' on tables first.") from error
            if content := content_of(folder):
                raise InputError(f"{folder} is {content}, not a Dataset; give what 'resid prepare' wrote.") from error
            raise InputError(
                f"{folder}: not a Dataset, {MANIFEST} is missing; create one with 'resid prepare'."
            ) from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise InputError(f"{folder / MANIFEST}: damaged ({error}); prepare the Dataset again.") from error
        if not readable:
            older = "an older version of resid; prepare the Dataset again"
            newer = "a newer version of resid; update resid or prepare the Dataset again"
            raise InputError(
                f"{folder}: format {version} of the Dataset was written by {older if version < FORMAT else newer}."
            )
        for name, checksum in checksums.items():
            if not (folder / name).is_file() or sha256_of_file(folder / name) != checksum:
                raise InputError(f"{folder / name}: missing or damaged; prepare the Dataset again.")
        altered = f"{folder / MANIFEST}: altered; prepare the Dataset again."
        if unaltered is False:
            raise InputError(altered)
        try:
            data = cls(
                arrays={name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in arrays},
                tables={name: pl.read_parquet(folder / f"{name}.parquet", glob=False) for name in _TABLES},
                settings=PrepareSettings.from_dict(manifest["settings"]),
                field_names=manifest["field_names"],
                steps=manifest["steps"],
                notes=manifest["notes"],
                edges=manifest.get("edges"),
                fingerprint=manifest["fingerprint"] if unaltered else None,  # None computes it
            )
        except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise InputError(altered) from error
        if (
            data.fingerprint != manifest["fingerprint"]
        ):  # of a manifest without a checksum, which did not always have one
            raise InputError(altered)
        data.folder = folder
        return data

    @property
    def _format(self) -> int:
        if self.settings.split == "time":
            return FORMAT_WITH_TIME_SPLIT
        new = {"tags", "number"} & set(self.field_kinds.values())
        return FORMAT_WITH_TAGS_OR_NUMBERS if new else FORMAT

    @property
    def _arrays(self) -> tuple[str, ...]:
        return _ARRAYS if self.boundaries is None else (*_ARRAYS, _BOUNDARIES)

    def _compute_fingerprint(self) -> str:
        digest = hashlib.sha256()
        settings = {k: v for k, v in self.settings.to_dict().items() if k not in self.settings.seen_in_data}
        head = [self._format, settings, self.field_names, *([self.edges] if self._format > FORMAT else [])]
        digest.update(json.dumps(head, sort_keys=True).encode())
        for name in self._arrays:
            array = np.ascontiguousarray(getattr(self, name))
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.data)
        for name in _TABLES:
            table = self._tables[name]
            digest.update(f"{name} {dict(table.schema)}".encode())
            for part in table.iter_slices(100_000):
                digest.update(part.write_ndjson().encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        fields = ", ".join(self.field_names) or "no fields"
        sizes = ((self.n_users, "user"), (self.n_items, "item"), (self.n_interactions, "interaction"))
        return f"Dataset({', '.join(counted(*size) for size in sizes)}; {fields})"

    def _repr_html_(self) -> str:
        rows = ((field["name"], field["values"], f"{field['missing']:.1%}") for field in self.info()["fields"])
        return html_table(repr(self), ("field", "values", "missing"), rows)


def _column_list(name: str, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    listed = as_list(columns)
    if listed is None:
        raise InputError(f"{name} must be a list of column names, for example ['store'], not {shown(columns)}.")
    return tuple(listed)


def _point_in_time(value: Any) -> Any:
    """Return a date as text, as settings are JSON values; anything else is validated with them."""
    return value.isoformat() if isinstance(value, date) else value


def require_dataset(data: object) -> None:
    """Raise an `InputError` unless `data` is a Dataset, and not a path for example."""
    if not isinstance(data, Dataset):
        raise InputError(f"expected a Dataset, got a {type(data).__name__}; open a folder with Dataset.load.")
