"""The Dataset: what every later stage reads. Histories, item fields and vocabularies, in memory or memory-mapped.

On disk it is a folder (`docs/data-format.md`)::

    dataset.json     settings, the counts of every step, checksums; written last
    users.parquet    user                          row = user index
    items.parquet    item, fields, kept columns    row = item index
    fields.npy       (items, fields) int32         0 = missing, v = the v-th value of the field in sorted order
    sequence.npy     (interactions,) int32         the item indices of all histories, one user after the other
    offsets.npy      (users + 1,) int64            user u's history is sequence[offsets[u]:offsets[u + 1]]
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.files import atomic_folder, refuse_foreign_folder, sha256_of_file
from resid.data.catalogue import Catalogue, lookup
from resid.data.settings import PrepareSettings
from resid.data.splits import Split, in_training, split_windows
from resid.core.errors import InputError, as_path
from resid.core.progress import Progress

FORMAT = 1
MANIFEST = "dataset.json"
_ARRAYS = ("fields", "sequence", "offsets")
_TABLES = ("users", "items")
_FILES = (*(f"{name}.npy" for name in _ARRAYS), *(f"{name}.parquet" for name in _TABLES))


class Dataset:
    """Chronological histories of users over a catalogue of items with fields.

    Made by `from_tables` or `load`, not by hand. Users and items are numbered from 0 in the order of their ids.

    Attributes
    ----------
    sequence : ndarray of int32, shape (n_interactions,)
        The item indices of all histories, one user after the other, each in chronological order.
    offsets : ndarray of int64, shape (n_users + 1,)
        Where each user's history begins in `sequence`.
    fields : ndarray of int32, shape (n_items, n_fields)
        Field values as codes: 0 is missing, v the v-th value of `vocabulary(field)`, counted from 1.
    field_names : tuple of str
    settings : PrepareSettings
    steps : list of dict
        Users, items and interactions left after every step of the preparation.
    notes : dict
        What the preparation counted besides: duplicates, skipped lines, unseen targets.
    fingerprint : str
        A checksum of content and settings, the same for the same data whatever frame or engine it came through.
    folder : Path or None
        Where it was saved or loaded.
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
        fingerprint: str | None = None,
    ) -> None:
        self.fields = arrays["fields"]
        self.sequence = arrays["sequence"]
        self.offsets = arrays["offsets"]
        self._tables = dict(tables)
        self.settings = settings
        self.field_names = tuple(field_names)
        self.steps = steps
        self.notes = notes
        self.fingerprint = fingerprint or self._compute_fingerprint()
        self.folder: Path | None = None

    @classmethod
    def from_tables(
        cls,
        interactions: Any,
        items: Any = None,
        fields: Sequence[str] | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        keep: Sequence[str] | None = None,
        k_core: int = 5,
        missing: Literal["drop", "keep"] = "drop",
        min_interactions: int = 3,
        max_length: int = 32,
        path_levels: int = 3,
        qualify_paths: bool = True,
        unlisted_items: Literal["error", "missing"] = "error",
        add_unseen_targets: bool = False,
        skip_bad_lines: bool = False,
        engine: Literal["polars", "spark"] | None = None,
        scratch: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "Dataset":
        """Prepare an interaction log and an item table.

        In this order: k-core; items that lack a field; users with too short a history; chronological histories,
        ties in the order of the file.

        Parameters
        ----------
        interactions
            A path (Parquet file or folder, CSV, TSV or JSON lines, the last three also gzipped), or a pandas,
            Polars, PyArrow, DuckDB or Spark frame, with the columns `user`, `item` and `timestamp`. Ids are text or
            integers, timestamps numbers or dates.
        items
            The same kinds, with one row per item: `item` and its fields. None if there are no fields.
        fields
            The columns of `items` that describe an item: text, integers, or lists (a category path). A list
            column `categories` becomes `cat1`, `cat2`, …; any other list column `x` becomes `x1`, `x2`, ….
        columns
            Other names for the columns, for example ``{"user": "reviewer", "item": "asin"}``.
        keep
            Further columns of `items` to carry along. By default `title`, if there is one.
        k_core
            Users and items with fewer interactions are removed until none is left; 1 keeps all.
        missing
            ``"drop"`` removes items that lack a field (the paper's way); ``"keep"`` makes "missing" a value.
        min_interactions
            Users with fewer interactions after that are removed; 3 is the least that can be split.
        max_length
            The length of a window, its target included.
        path_levels
            How many levels of a list column become fields.
        qualify_paths
            Whether a level's value includes the levels above it, so that "Strings" under two parents are two
            values.
        unlisted_items
            ``"error"`` refuses items of the log that have no row in `items`; ``"missing"`` treats them as items
            that lack every field.
        add_unseen_targets
            Add validation and test targets that never occur in training as training targets: the paper's
            wording read literally. It shows the model test labels; for comparison only.
        skip_bad_lines
            Leave out, and count, lines of a JSON-lines file that are not JSON objects.
        engine
            ``"spark"`` reads paths with Spark; a frame brings its own engine.
        scratch
            With Spark: a folder that workers and driver share, for the encoded histories on their way.
        progress
            Is told what goes on; by default nothing is shown.

        Returns
        -------
        Dataset

        Raises
        ------
        InputError
            A `ValueError` whose message names the table, the column and the first rows that are wrong.
        """
        from resid.data.prepare import prepare_tables  # prepare makes Datasets, so it imports this module

        if isinstance(fields, str) or isinstance(keep, str):
            raise InputError("fields and keep are lists of column names; write ['store'] for one.")
        return prepare_tables(
            interactions,
            items,
            PrepareSettings(
                fields=tuple(fields) if fields is not None else None,
                keep=tuple(keep) if keep is not None else None,
                k_core=k_core,
                missing=missing,
                min_interactions=min_interactions,
                max_length=max_length,
                path_levels=path_levels,
                qualify_paths=qualify_paths,
                unlisted_items=unlisted_items,
                add_unseen_targets=add_unseen_targets,
            ),
            columns=columns,
            skip_bad_lines=skip_bad_lines,
            engine=engine,
            scratch=Path(scratch) if scratch is not None else None,
            progress=progress,
        )

    @property
    def n_users(self) -> int:
        """How many users there are."""
        return len(self.offsets) - 1

    @property
    def n_items(self) -> int:
        """How many items the catalogue has."""
        return len(self.fields)

    @property
    def n_interactions(self) -> int:
        """How many interactions the histories hold together."""
        return len(self.sequence)

    @property
    def user_ids(self) -> pl.Series:
        """The users' ids as they came, in the order of their indices."""
        return self._tables["users"]["user"]

    @property
    def item_ids(self) -> pl.Series:
        """The items' ids as they came, in the order of their indices."""
        return self._tables["items"]["item"]

    @property
    def item_table(self) -> pl.DataFrame:
        """The items with their fields (null = missing) and kept columns, in the order of their indices."""
        return self._tables["items"]

    def item_indices(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Find items by id; -1 where an id is not in the catalogue."""
        return self.catalogue.find(ids)

    def user_indices(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Find users by id; -1 where an id is not known."""
        return lookup(self._user_positions, ids)

    @cached_property
    def _user_positions(self) -> dict[Any, int]:
        return {identity: index for index, identity in enumerate(self.user_ids)}

    @cached_property
    def training_counts(self) -> NDArray[np.int64]:
        """How often each item stands in the training part of the histories, shape (n_items,)."""
        return np.bincount(self.sequence[in_training(self.sequence, self.offsets)], minlength=self.n_items)

    def history(self, user: int) -> NDArray[np.int32]:
        """Return the whole history of a user index as item indices, validation and test items included."""
        return np.asarray(self.sequence[self.offsets[user] : self.offsets[user + 1]])

    @cached_property
    def catalogue(self) -> Catalogue:
        """The items, the vocabularies of their fields and the training counts: what fitted models keep."""
        return Catalogue(self.item_table, self.field_names, self.training_counts, self.settings, self.fingerprint)

    def vocabulary(self, field: str) -> pl.Series:
        """Return the values of a field in the order of their codes; see `Catalogue.vocabulary`."""
        return self.catalogue.vocabulary(field)

    @cached_property
    def field_sizes(self) -> tuple[int, ...]:
        """The number of codes of each field, code 0 for "missing" included."""
        return tuple(int(self.fields[:, column].max()) + 1 for column in range(len(self.field_names)))

    @cached_property
    def _splits(self) -> dict[str, Split]:
        return split_windows(
            self.sequence,
            self.offsets,
            self.n_items,
            self.settings.max_length,
            add_unseen_targets=self.settings.add_unseen_targets,
            fingerprint=self.fingerprint,
        )

    @property
    def train(self) -> Split:
        """Windows whose target is before the last two items of its history."""
        return self._splits["train"]

    @property
    def validation(self) -> Split:
        """One window per user, whose target is the last item but one."""
        return self._splits["validation"]

    @property
    def test(self) -> Split:
        """One window per user, whose target is the last item; the validation item belongs to its history."""
        return self._splits["test"]

    def windows(self, split: str) -> Split:
        """Return the windows of ``"train"``, ``"validation"`` or ``"test"``."""
        if split not in self._splits:
            raise InputError(f"there is no split '{split}'; there are {', '.join(self._splits)}.")
        return self._splits[split]

    def info(self) -> dict[str, Any]:
        """Return counts, fields and history lengths as plain values, ready for JSON."""
        lengths = np.diff(self.offsets)
        quantiles = np.quantile(lengths, [0, 0.25, 0.5, 0.75, 0.95, 1])
        return {
            "users": self.n_users,
            "items": self.n_items,
            "interactions": self.n_interactions,
            "density": self.n_interactions / (self.n_users * self.n_items),
            "windows": {name: len(split) for name, split in self._splits.items()},
            "fields": [
                {
                    "name": name,
                    "values": int(np.unique(self.fields[:, column][self.fields[:, column] > 0]).size),
                    "missing": float(np.mean(self.fields[:, column] == 0)),
                }
                for column, name in enumerate(self.field_names)
            ],
            "history_lengths": {
                "mean": float(lengths.mean()),
                **dict(zip(("min", "q25", "median", "q75", "q95", "max"), map(float, quantiles), strict=True)),
            },
            "notes": self.notes,
            "steps": self.steps,
            "fingerprint": self.fingerprint,
        }

    def save(self, folder: str | Path) -> None:
        """Write the Dataset to a folder, whole or not at all; a Dataset that is there already is replaced.

        Raises
        ------
        InputError
            If the folder holds something other than a Dataset, or the disk is full.
        """
        folder = Path(folder)
        refuse_foreign_folder(folder, MANIFEST)
        with atomic_folder(folder) as partial:
            for name in _ARRAYS:
                with (partial / f"{name}.npy").open("wb") as file:
                    # Without the file itself, NumPy writes through Python, which tells a full disk from other errors.
                    np.save(cast(Any, SimpleNamespace(write=file.write)), getattr(self, name), allow_pickle=False)
            for name in _TABLES:
                self._tables[name].rechunk().write_parquet(partial / f"{name}.parquet", statistics=False)
            manifest = {
                "format": FORMAT,
                "fingerprint": self.fingerprint,
                "settings": self.settings.plain(),
                "field_names": self.field_names,
                "steps": self.steps,
                "notes": self.notes,
                "files": {
                    file.name: {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
                    for file in sorted(partial.iterdir())
                },
            }
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        self.folder = folder

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = False) -> "Dataset":
        """Open a Dataset folder; arrays are memory-mapped.

        Parameters
        ----------
        folder
            As given to `save`.
        verify
            Compare the checksum of every file, which reads all of them; their sizes are compared in any case.

        Raises
        ------
        InputError
            If the folder is not a Dataset, is damaged, or was written by a newer version.
        """
        folder = as_path(folder)
        if not folder.exists():
            raise InputError(f"{folder}: there is no such folder; make a Dataset with 'resid prepare'.")
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            version, files = manifest["format"], manifest["files"]
            sizes = {name: files[name]["bytes"] for name in _FILES}
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                f"{folder}: not a Dataset, it has no {MANIFEST}; make one with 'resid prepare'."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder / MANIFEST}: damaged ({error}); prepare the Dataset again.") from error
        if version != FORMAT:
            raise InputError(
                f"{folder}: format {version} is not known here, {FORMAT} is; update resid or prepare again."
            )
        for name, size in sizes.items():
            file = folder / name
            whole = file.is_file() and file.stat().st_size == size
            if not whole or (verify and sha256_of_file(file) != files[name]["sha256"]):
                raise InputError(f"{file}: missing or damaged; prepare the Dataset again.")
        try:
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
            tables = {name: pl.read_parquet(folder / f"{name}.parquet", glob=False) for name in _TABLES}
        except (ValueError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{folder}: a file of the Dataset is damaged; prepare it again.") from error
        data = cls(
            arrays=arrays,
            tables=tables,
            settings=PrepareSettings(**manifest["settings"]),
            field_names=manifest["field_names"],
            steps=manifest["steps"],
            notes=manifest["notes"],
            fingerprint=manifest["fingerprint"],
        )
        data.folder = folder
        return data

    def _compute_fingerprint(self) -> str:
        digest = hashlib.sha256()
        settings = self.settings.plain()
        digest.update(json.dumps([FORMAT, settings, self.field_names], sort_keys=True).encode())
        for name in _ARRAYS:
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
        return (
            f"Dataset({self.n_users:,} users, {self.n_items:,} items, {self.n_interactions:,} interactions; {fields})"
        )


def require_dataset(data: object) -> None:
    """Raise an `InputError` unless this is a Dataset, rather than a path for example."""
    if not isinstance(data, Dataset):
        raise InputError(f"a Dataset is needed, not a {type(data).__name__}; see Dataset.load.")
