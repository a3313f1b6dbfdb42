"""Amazon product reviews of 2023, 2018 and 2014: from the published raw files to a Dataset.

The ten data sets of the paper are from the 2023 release. Their counts after preprocessing are compared with the paper's,
the only hard check of the data before training.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import polars as pl

from resid.core.errors import InputError, nearest
from resid.core.progress import Progress, Silent
from resid.data.dataset import Dataset
from resid.data.engines import as_frame
from resid.data.jsonl import read_jsonl
from resid.data.prepare import prepare
from resid.data.readers import open_table
from resid.data.settings import PrepareSettings
from resid.data.sources import Source, add_source
from resid.data.tables import Table

PUBLISHED = "resid-published"  # the processed data of the paper's authors, see `published`
_HOST = "https://mcauleylab.ucsd.edu/public_datasets/data"


@dataclass(frozen=True)
class Release:
    """The files of one release: their addresses, names and columns.

    `reviews`, `five_core` and `metadata` are paths relative to `base`, with ``{name}`` for the category. `columns` maps
    user, item and timestamp to columns of the reviews; `store` and `categories` are columns of the metadata, and `extras`
    further columns that can be kept.
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
        """Return the URLs of the interactions and the metadata of a category."""
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
        category_type=pl.List(pl.List(pl.String)),  # all paths of the item; the first is used
        dialect="literal",
        extras={"title": pl.String, "price": pl.String, "description": pl.String},
    ),
}

# Number of users, items and interactions in the paper.
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
    category_root: Literal["keep", "drop"] | None = None,
    keep: tuple[str, ...] = ("title",),
    duplicates: Literal["keep", "drop"] = "keep",
    skip_bad_lines: bool = False,
    engine: Literal["polars", "spark"] | None = None,
    scratch: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Dataset:
    """Prepare a category of the Amazon reviews with the fields store, cat1, cat2 and cat3.

    Parameters
    ----------
    release
        ``"amazon-2023"``, ``"amazon-2018"`` or ``"amazon-2014"``.
    name
        The category as in the file names, for example ``"Musical_Instruments"``.
    raw
        The folder with the published files: the 5-core interactions if they exist, otherwise the raw reviews, and the
        metadata. All of them may be gzipped.
    category_root
        Whether to keep the first name of every category path as level 1, or to drop it. By default ``"drop"`` for the
        ten data sets of the paper, whose fields do not include the constant root, and ``"keep"`` otherwise.
    keep
        Further columns of the metadata to store: title, price, description, ….
    duplicates, skip_bad_lines, engine, scratch, progress
        As in `Dataset.from_tables`. The metadata is always read with Polars.
    **settings
        Settings of `Dataset.from_tables`: k_core, missing, min_interactions, …. The fields of items without metadata are
        missing, and so are the levels that a short path lacks, as in the paper; ``short_paths="repeat"`` changes this.

    Raises
    ------
    InputError
        If a file is missing or damaged.
    """
    progress = progress or Silent()
    published = find_release(release)
    if unknown := [column for column in keep if column not in published.extras]:
        raise InputError(f"'{unknown[0]}' cannot be kept; the columns of {release} are {', '.join(published.extras)}.")
    if category_root is None:
        category_root = "drop" if release == "amazon-2023" and name in PAPER_COUNTS else "keep"
    prepare_settings = PrepareSettings(
        **{"short_paths": "missing"}
        | settings
        | {"fields": ("store", "categories"), "kinds": ("category", "path"), "keep": tuple(keep)}
        | {"unlisted_items": "missing"}
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
    return prepare(log, items, prepare_settings, published.columns, progress, duplicates=duplicates)


def find_release(release: str) -> Release:
    """Return a release by name."""
    if release not in RELEASES:
        raise InputError(
            f"unknown data set '{release}'{nearest(release, RELEASES)}; choose from {', '.join(RELEASES)}."
        )
    return RELEASES[release]


def compare_with_paper(release: str, name: str, data: Dataset) -> dict[str, tuple[int, int]] | None:
    """Return the number of users, items and interactions here and in the paper, or None for other data sets."""
    if release not in ("amazon-2023", PUBLISHED) or name not in PAPER_COUNTS:
        return None
    here = (data.n_users, data.n_items, data.n_interactions)
    return dict(zip(("users", "items", "interactions"), zip(here, PAPER_COUNTS[name], strict=True), strict=True))


def _find(raw: Path, names: list[str], release: str, category: str) -> Path:
    """Return the first file that exists, gzipped or not."""
    wanted = [variant for name in names for variant in (name, name.removesuffix(".gz"))]
    for name in wanted:
        if (raw / name).is_file():
            return raw / name
    present = [file.name for file in raw.iterdir()] if raw.is_dir() else []
    raise InputError(
        f"{raw}: there is no {' or '.join(names)}{nearest(names[-1], present)}; "
        f"download it with: resid download {release} {category} --raw {shlex.quote(str(raw))}"
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
    """Read the columns item, store, categories and those to keep, and the first row of every item."""
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


def _compare(release: str) -> Callable[[str, Dataset], dict[str, dict[str, tuple[int, int]]]]:
    def compare(name: str, data: Dataset) -> dict[str, dict[str, tuple[int, int]]]:
        found = compare_with_paper(release, name, data)
        return {"paper": found} if found else {}

    return compare


for _release in RELEASES:
    add_source(
        _release,
        Source(
            partial(prepare_amazon, _release),
            options=(
                *(
                    "keep",
                    "k_core",
                    "missing",
                    "min_interactions",
                    "max_length",
                    "path_levels",
                    "qualify_paths",
                    "short_paths",
                ),
                *("category_root", "unseen_targets", "duplicates", "skip_bad_lines", "engine", "scratch"),
                *PrepareSettings.of_time_split,
            ),
            reason="the columns of the Amazon files are known",
            compare=_compare(_release),
        ),
    )
