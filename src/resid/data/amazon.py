"""Amazon product reviews of 2023, 2018 and 2014: the raw files as published → Dataset.

The paper's ten data sets are of 2023. After preparation their counts stand beside the paper's, which is the one
hard check of the data that can be made before training.
"""

import difflib
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import polars as pl

from resid.data.dataset import Dataset
from resid.data.engines import as_frame
from resid.data.jsonl import read_jsonl
from resid.data.prepare import prepare
from resid.data.readers import open_table
from resid.data.settings import PrepareSettings
from resid.data.tables import Table
from resid.core.errors import InputError
from resid.core.progress import Progress, Silent

_HOST = "https://mcauleylab.ucsd.edu/public_datasets/data"


@dataclass(frozen=True)
class Release:
    """One year's files: where they are, what they are called, and what their columns mean.

    `reviews` and `five_core` are addresses below `base` with ``{name}`` for the category; `columns` are user, item
    and timestamp; `store` and `categories` are columns of the metadata, `extras` others that can be kept.
    """

    base: str
    reviews: str
    five_core: str
    metadata: str
    columns: dict[str, str]
    store: str
    categories: str
    extras: dict[str, Any]
    category_type: Any = field(default_factory=lambda: pl.List(pl.String))
    dialect: str = "json"

    def addresses(self, name: str, five_core: bool, mirror: str | None = None) -> list[str]:
        """Return the addresses of the interactions and the metadata of a category."""
        base = (mirror or self.base).rstrip("/")
        return [
            f"{base}/{path.format(name=quote(name))}"
            for path in (self.five_core if five_core else self.reviews, self.metadata)
        ]


_OLD_COLUMNS = {"user": "reviewerID", "item": "asin", "timestamp": "unixReviewTime"}
RELEASES = {
    "amazon-2023": Release(
        base=f"{_HOST}/amazon_2023",
        reviews="raw/review_categories/{name}.jsonl.gz",
        five_core="benchmark/5core/rating_only/{name}.csv.gz",
        metadata="raw/meta_categories/meta_{name}.jsonl.gz",
        columns={"user": "user_id", "item": "parent_asin", "timestamp": "timestamp"},
        store="store",
        categories="categories",
        extras={"title": pl.String, "price": pl.String, "description": pl.List(pl.String), "main_category": pl.String},
    ),
    "amazon-2018": Release(
        base=f"{_HOST}/amazon_v2",
        reviews="categoryFiles/{name}.json.gz",
        five_core="categoryFilesSmall/{name}_5.json.gz",
        metadata="metaFiles2/meta_{name}.json.gz",
        columns=_OLD_COLUMNS,
        store="brand",
        categories="category",
        extras={"title": pl.String, "price": pl.String, "description": pl.List(pl.String), "main_cat": pl.String},
    ),
    "amazon-2014": Release(
        base=f"{_HOST}/amazon/categoryFiles",
        reviews="reviews_{name}.json.gz",
        five_core="reviews_{name}_5.json.gz",
        metadata="meta_{name}.json.gz",
        columns=_OLD_COLUMNS,
        store="brand",
        categories="categories",
        category_type=pl.List(pl.List(pl.String)),  # every path that leads to the item; the first is taken
        dialect="literal",
        extras={"title": pl.String, "price": pl.String, "description": pl.String},
    ),
}

# Users, items and interactions of the paper's table of data sets.
PAPER_COUNTS = {
    "Musical_Instruments": (57_359, 23_742, 490_522),
    "Video_Games": (94_515, 24_685, 772_218),
    "Industrial_and_Scientific": (50_886, 25_142, 394_989),
    "Baby_Products": (150_642, 35_024, 1_189_171),
    "Arts_Crafts_and_Sewing": (196_980, 87_449, 1_706_484),
    "Sports_and_Outdoors": (409_309, 151_411, 3_333_753),
    "Toys_and_Games": (431_411, 156_537, 3_652_250),
    "Health_and_Household": (796_014, 183_230, 6_860_582),
    "Beauty_and_Personal_Care": (712_259, 193_383, 5_785_124),
    "Books": (775_503, 485_218, 8_680_494),
}


def prepare_amazon(
    release: str,
    name: str,
    raw: str | Path,
    *,
    category_root: Literal["keep", "drop"] = "keep",
    keep: tuple[str, ...] = ("title",),
    skip_bad_lines: bool = False,
    engine: Literal["polars", "spark"] | None = None,
    scratch: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Dataset:
    """Prepare a category of Amazon reviews with the fields store, cat1, cat2 and cat3.

    Parameters
    ----------
    release
        ``"amazon-2023"``, ``"amazon-2018"`` or ``"amazon-2014"``.
    name
        The category as the files call it, for example ``"Musical_Instruments"``.
    raw
        The folder with the files as published: the 5-core interactions if they are there, otherwise the raw reviews;
        and the metadata. Each may be gzipped or not.
    category_root
        Whether the first name of a category path is level 1 (``"keep"``) or left out (``"drop"``).
    keep
        Further metadata to carry along: title, price, description, ….
    skip_bad_lines, engine, scratch, progress
        As in `Dataset.from_tables`. With Spark the metadata is still read here: it is the catalogue, not the log.
    **settings
        The settings of `Dataset.from_tables`: k_core, missing, min_interactions, …. Items without metadata lack their
        fields.

    Raises
    ------
    InputError
        If a file is missing or damaged.
    """
    progress = progress or Silent()
    published = find_release(release)
    if unknown := [column for column in keep if column not in published.extras]:
        raise InputError(f"'{unknown[0]}' cannot be kept; the metadata of {release} has {', '.join(published.extras)}.")
    prepare_settings = PrepareSettings(
        **settings | {"fields": ("store", "categories"), "keep": tuple(keep), "unlisted_items": "missing"}
    )
    raw = Path(raw)
    names = [Path(published.five_core.format(name=name)).name, Path(published.reviews.format(name=name)).name]
    interactions = _find(raw, names, release, name)
    metadata = _find(raw, [Path(published.metadata.format(name=name)).name], release, name)
    scratch = Path(scratch) if scratch is not None else None
    options: dict[str, Any] = {
        "engine": engine,
        "skip_bad_lines": skip_bad_lines,
        "progress": progress,
        "scratch": scratch,
    }
    types = dict(zip(published.columns.values(), (pl.String, pl.String, pl.Int64), strict=True))
    log = open_table(interactions, "interactions", types, **options)
    items = _read_metadata(metadata, published, category_root, keep, skip_bad_lines, log, progress)
    return prepare(log, items, prepare_settings, published.columns, progress)


def find_release(release: str) -> Release:
    """Look a release up by name."""
    if release not in RELEASES:
        raise InputError(f"'{release}' is not known; there are {', '.join(RELEASES)}.")
    return RELEASES[release]


def compare_with_paper(release: str, name: str, data: Dataset) -> dict[str, tuple[int, int]] | None:
    """Return users, items and interactions here and in the paper, or None for a set that the paper does not use."""
    if release != "amazon-2023" or name not in PAPER_COUNTS:
        return None
    here = (data.n_users, data.n_items, data.n_interactions)
    return dict(zip(("users", "items", "interactions"), zip(here, PAPER_COUNTS[name], strict=True), strict=True))


def _find(raw: Path, names: list[str], release: str, category: str) -> Path:
    """Return the first of the files that is there, gzipped or not."""
    wanted = [variant for name in names for variant in (name, name.removesuffix(".gz"))]
    for name in wanted:
        if (raw / name).is_file():
            return raw / name
    present = [file.name for file in raw.iterdir()] if raw.is_dir() else []
    close = difflib.get_close_matches(names[-1], present, n=1)
    hint = f", did you mean '{close[0]}'" if close else ""
    raise InputError(
        f"{raw}: there is no {' or '.join(names)} here{hint}; "
        f"fetch it with: resid download {release} {category} --raw {shlex.quote(str(raw))}"
    )


def _read_metadata(
    path: Path,
    release: Release,
    category_root: str,
    keep: tuple[str, ...],
    skip_bad_lines: bool,
    log: Table,
    progress: Progress,
) -> Table:
    """Read the metadata into the columns item, store, categories and those to keep, the first row of each item."""
    item = release.columns["item"]
    schema = {item: pl.String, release.store: pl.String, release.categories: release.category_type}
    schema |= {column: release.extras[column] for column in keep}
    frame, skipped = read_jsonl(path, schema, dialect=release.dialect, skip_bad_lines=skip_bad_lines, progress=progress)
    frame = frame.rename({release.store: "store", release.categories: "categories"}, strict=False)
    if release.category_type == pl.List(pl.List(pl.String)):
        frame = frame.with_columns(pl.col("categories").list.first())
    if category_root == "drop":
        frame = frame.with_columns(pl.col("categories").list.slice(1))
    frame = frame.drop_nulls(item).unique(item, keep="first", maintain_order=True)
    lazy = as_frame(frame.lazy()) if log.engine.name == "polars" else log.engine.upload(frame)
    return Table(lazy, str(path), log.engine, row_word="line", skipped_lines=skipped)
