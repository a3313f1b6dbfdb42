"""A synthetic shop: data of any size with realistic signal, for demos, tests and benchmarks, without a download.

Items belong to a category tree and to specialized stores. Every user has two interests that drift over time. A visit
starts with an item of an interest and continues with complements: every leaf category has categories that follow it, and
every item has partner items there. The next item can be predicted from the recent items, their categories and stores, but
hardly from popularity.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from isal import igzip
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.core.files import atomic_file
from resid.core.progress import Progress, Silent

_USERS_PER_BLOCK = 20_000
_DRIFT = 0.15  # probability that a visit brings a new interest
_FOLLOWERS = 3  # number of leaf categories that follow a leaf category
_DAY = 86_400_000  # in milliseconds, as in Amazon Reviews 2023
_START = 1_577_836_800_000  # 2020-01-01

_DEPARTMENTS = "Kitchen Garden Music Sports Office Toys Beauty Pets Travel Tools Baby Grocery Photo Crafts".split()
_SHELVES = "Basics Care Classic Compact Deluxe Everyday Family Gift Outdoor Pro Seasonal Starter Storage Studio".split()
_KINDS = "Bags Bottles Boxes Brushes Cables Cases Covers Filters Kits Lamps Mats Racks Sets Stands Straps".split()
_STORE_WORDS = "Alder Birch Cedar Dune Ember Fjord Grove Heron Iris Juniper Kestrel Lark Maple Nettle Otter".split()
_TAGS = "bestseller black blue eco foldable green handmade large light new red refill sale set small soft vegan white".split()
_TAGS_PER_SHELF = 8
_REVIEWS = (
    "Does what it should, and the parcel came early.",
    "I have used it every day for a month and it still looks new, so I would buy it again without thinking twice.",
    "Smaller than I had imagined from the picture, but well made.",
    "A present for my sister. She likes it.",
    "The second one I own. The first went to a friend who would not give it back.",
    "Not for me: the color is off and the lid does not close well. The shop answered quickly, though.",
)


@dataclass(frozen=True)
class SyntheticShop:
    """A shop of a given size; the same sizes and seed give the same shop.

    Parameters
    ----------
    users, items, interactions
        Exact counts. Every user has at least five interactions if there are enough.
    seed
        Seed of the random number generators.
    tags
        The largest number of tags of an item, 0 for a shop without tags; the rest of the shop does not depend on it.
    """

    users: int
    items: int
    interactions: int
    seed: int = 0
    tags: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.tags <= _TAGS_PER_SHELF:
            raise InputError(f"the items of a synthetic shop have at most {_TAGS_PER_SHELF} tags, not {self.tags}.")
        if self.users < 1 or self.items < 8 or self.interactions < self.users:
            raise InputError("a synthetic shop needs at least one user, eight items, and one interaction per user.")

    @cached_property
    def _catalogue(self) -> "_Catalogue":
        return _Catalogue.build(self.items, np.random.default_rng([self.seed, 0]))

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """The number of interactions of every user, long-tailed."""
        rng = np.random.default_rng([self.seed, 1])
        least = min(5, self.interactions // self.users)
        appetite = rng.lognormal(sigma=1.0, size=self.users)
        extra = rng.multinomial(self.interactions - least * self.users, appetite / appetite.sum())
        return least + extra

    @property
    def item_table(self) -> pl.DataFrame:
        """The items: `item`, `store`, `categories` (a path of three names), `title`, `price` and, if wanted, `tags`."""
        catalogue = self._catalogue
        leaf, store = catalogue.leaf, catalogue.store
        paths = catalogue.category_names
        serial = np.arange(self.items)
        frame = pl.DataFrame({"path": [paths[index] for index in leaf], "store": _store_names(store), "serial": serial})
        return frame.select(
            pl.Series("item", _item_ids(serial)),
            "store",
            pl.col("path").alias("categories"),
            pl.format("{} {} No. {}", "store", pl.col("path").list.last(), "serial").alias("title"),
            pl.Series("price", catalogue.price),
            *([pl.Series("tags", self._item_tags())] if self.tags else []),
        )

    def _item_tags(self) -> list[list[str]]:
        """Return the tags of every item, drawn from those of its shelf, in alphabetical order."""
        rng = np.random.default_rng([self.seed, 3])
        shelf = self._catalogue.leaf // self._catalogue.branching
        of_shelf = [rng.choice(_TAGS, _TAGS_PER_SHELF, replace=False) for _ in range(int(shelf.max()) + 1)]
        counts = rng.integers(1, self.tags + 1, self.items)
        return [
            sorted(rng.choice(of_shelf[place], count, replace=False).tolist())
            for place, count in zip(shelf.tolist(), counts.tolist(), strict=True)
        ]

    @property
    def interaction_table(self) -> pl.DataFrame:
        """The log: `user`, `item`, `timestamp` in milliseconds, in random order."""
        return pl.concat(list(self.blocks()))

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Yield the log in blocks of some thousand users, so that a large log never has to fit in memory."""
        for number, first in enumerate(range(0, self.users, _USERS_PER_BLOCK)):
            rng = np.random.default_rng([self.seed, 2, number])
            yield self._block(first, min(first + _USERS_PER_BLOCK, self.users), rng)

    def _block(self, first: int, last: int, rng: np.random.Generator) -> pl.DataFrame:
        catalogue = self._catalogue
        lengths = np.sort(self._lengths[first:last])[::-1]  # users that are still active come first
        n_users = len(lengths)
        interests = catalogue.draw_shelves(rng, (n_users, 2))
        clock = (_START + rng.uniform(0, 365 * _DAY, n_users)).astype(np.int64)
        previous = np.zeros(n_users, dtype=np.int64)
        steps: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        for step in range(int(lengths[0])):
            shopping = int(np.searchsorted(-lengths, -step))  # number of users with more than `step` interactions
            interests, clock, previous = interests[:shopping], clock[:shopping], previous[:shopping]
            arrives = (rng.random(shopping) < 0.4) | (step == 0)
            drifts = arrives & (rng.random(shopping) < _DRIFT)
            interests[drifts, 0] = interests[drifts, 1]
            interests[drifts, 1] = catalogue.draw_shelves(rng, int(drifts.sum()))
            shelf = interests[np.arange(shopping), (rng.random(shopping) < 0.3).astype(int)]
            previous = catalogue.draw_items(rng, shelf, previous, arrives)
            pause = np.where(arrives, rng.exponential(20 * _DAY, shopping), rng.uniform(60_000, 1_800_000, shopping))
            clock = clock + pause.astype(np.int64)
            steps.append((np.arange(first, first + shopping), previous, clock))
        users, items, times = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        order = rng.permutation(len(users))
        return pl.DataFrame(
            {"user": _user_ids(users[order]), "item": _item_ids(items[order]), "timestamp": times[order]}
        )

    def write_amazon_2023(
        self, folder: str | Path, name: str = "Synthetic_Shop", progress: Progress | None = None
    ) -> None:
        """Write `name`.jsonl.gz and meta_`name`.jsonl.gz in the format of Amazon Reviews 2023, block by block.

        As in the published files, every category path starts with the name of the data set.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = pl.Series(_REVIEWS)
        title = pl.Series([review.split(" ")[0] for review in _REVIEWS])
        with (
            (progress or Silent()).bar(f"Writing {name}.jsonl.gz", self.interactions, unit="interactions") as advance,
            _gzip_writer(folder / f"{name}.jsonl.gz") as write,
        ):
            for block in self.blocks():
                serial = pl.int_range(len(block), eager=True)
                review = block.select(
                    (1.0 + serial % 5).alias("rating"),
                    title.gather(serial % len(title)).alias("title"),
                    text.gather(serial % len(text)).alias("text"),
                    pl.lit([], dtype=pl.List(pl.String)).alias("images"),
                    pl.col("item").alias("asin"),
                    pl.col("item").alias("parent_asin"),
                    pl.col("user").alias("user_id"),
                    "timestamp",
                    (serial % 7).alias("helpful_vote"),
                    (serial % 11 > 0).alias("verified_purchase"),
                )
                write(review.write_ndjson().encode())
                advance(len(block))
        with _gzip_writer(folder / f"meta_{name}.jsonl.gz") as write:
            for item in self.item_table.iter_rows(named=True):
                record = {
                    "main_category": item["categories"][0],
                    "title": item["title"],
                    "average_rating": 4.0,
                    "rating_number": 10,
                    "features": [],
                    "description": [f"From {item['store']}."],
                    "price": item["price"],
                    "images": [],
                    "videos": [],
                    "store": item["store"],
                    "categories": [name.replace("_", " "), *item["categories"]],
                    "details": {},
                    "parent_asin": item["item"],
                    "bought_together": None,
                }
                write(json.dumps(record).encode() + b"\n")


def synthetic_shop(users: int, items: int, interactions: int, seed: int = 0, tags: int = 0) -> SyntheticShop:
    """Create a synthetic shop; see `SyntheticShop`."""
    return SyntheticShop(users, items, interactions, seed, tags)


@dataclass(frozen=True)
class _Catalogue:
    """Items sorted by leaf category, and the tables to sample them.

    Leaves are numbered such that ``leaf // branching`` is the shelf and ``shelf // branching`` the department.
    """

    leaf: NDArray[np.int64]  # (items,)
    store: NDArray[np.int64]  # (items,)
    price: NDArray[np.float64]  # (items,)
    partner: NDArray[np.float64]  # (items,) position of the partner in the popularity of a following leaf
    cumulative: NDArray[np.float64]  # (items + 1,) cumulative popularity
    first_item: NDArray[np.int64]  # (leaves + 1,)
    followers: NDArray[np.int64]  # (leaves, _FOLLOWERS)
    shelf_popularity: NDArray[np.float64]  # (shelves,) cumulative popularity
    branching: int  # departments = shelves per department = leaves per shelf

    @classmethod
    def build(cls, items: int, rng: np.random.Generator) -> "_Catalogue":
        branching = int(np.clip(round((items / 30) ** (1 / 3)), 2, 14))
        leaves, shelves = branching**3, branching**2
        share = 1 / (1 + rng.permutation(leaves)) ** 0.7
        extra = rng.choice(leaves, size=max(items - leaves, 0), p=share / share.sum())
        leaf = np.sort(np.concatenate([np.arange(leaves), extra])[:items])
        stores_per_shelf = max(3, items // (60 * shelves))
        rank = np.minimum(rng.zipf(1.6, items) - 1, stores_per_shelf - 1)
        home = np.where(rng.random(items) < 0.85, leaf // branching, rng.integers(0, shelves, items))
        weight = rng.lognormal(sigma=1.1, size=items)
        near = np.arange(leaves)[:, None] // branching**2 * branching**2 + rng.integers(
            0, shelves, (leaves, _FOLLOWERS)
        )
        far = rng.integers(0, leaves, (leaves, _FOLLOWERS))
        return cls(
            leaf=leaf,
            store=home + shelves * rank,
            price=np.round(rng.lognormal(3, 0.8, items), 2),
            partner=rng.random(items),
            cumulative=np.concatenate([[0], np.cumsum(weight)]),
            first_item=np.searchsorted(leaf, np.arange(leaves + 1)),
            followers=np.where(rng.random((leaves, _FOLLOWERS)) < 0.7, near, far),
            shelf_popularity=np.cumsum(1 / (1 + rng.permutation(shelves))),
            branching=branching,
        )

    @property
    def category_names(self) -> list[list[str]]:
        """The category path of every leaf."""
        b = self.branching
        return [
            [
                _DEPARTMENTS[leaf // b**2],
                f"{_SHELVES[leaf // b % b]} {_DEPARTMENTS[leaf // b**2]}",
                _KINDS[leaf % b],
            ]
            for leaf in range(b**3)
        ]

    def draw_shelves(self, rng: np.random.Generator, shape: int | tuple[int, int]) -> NDArray[np.int64]:
        """Sample shelves by popularity."""
        shelves: NDArray[np.int64] = np.searchsorted(
            self.shelf_popularity, rng.random(shape) * self.shelf_popularity[-1]
        )
        return shelves

    def draw_items(
        self,
        rng: np.random.Generator,
        shelf: NDArray[np.int64],
        previous: NDArray[np.int64],
        arrives: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Sample the next item of every user, shape (users,).

        Users who arrive take an item from the shelf, by popularity. Users who continue take an item that follows the
        previous one, half of the time its partner. Of two candidates, one from the previous store is preferred.
        """
        count = len(shelf)
        favorite = (rng.random(count) ** 2 * self.branching).astype(np.int64)
        follower = np.minimum(rng.geometric(0.6, count) - 1, _FOLLOWERS - 1)
        leaf = np.where(arrives, shelf * self.branching + favorite, self.followers[self.leaf[previous], follower])
        place = np.where(~arrives & (rng.random(count) < 0.5), self.partner[previous], rng.random(count))
        chosen, other = self._item_at(leaf, place), self._item_at(leaf, rng.random(count))
        same_store = self.store[previous] == self.store[other]
        swap = (same_store & (self.store[previous] != self.store[chosen])) | (chosen == previous)
        return np.where(swap, other, chosen)

    def _item_at(self, leaf: NDArray[np.int64], place: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the item at a quantile of the popularity of its leaf."""
        first, last = self.first_item[leaf], self.first_item[leaf + 1]
        low, high = self.cumulative[first], self.cumulative[last]
        return np.clip(np.searchsorted(self.cumulative, low + place * (high - low), side="right") - 1, first, last - 1)


def _store_names(store: NDArray[np.int64]) -> list[str]:
    """Return names of two words, with a number once all pairs are used."""
    words, count = _STORE_WORDS, len(_STORE_WORDS)
    names = [
        f"{words[number % count]} & {words[number // count % count]}"
        for number in range(min(count**2, 1 + store.max()))
    ]
    return [
        names[number % count**2] + (f" {number // count**2}" if number >= count**2 else "") for number in store.tolist()
    ]


def _item_ids(index: NDArray[np.int64]) -> list[str]:
    """Return ids of ten characters, like Amazon's; multiplication by an odd number is a bijection."""
    scattered = (index.astype(np.uint32) * np.uint32(2_654_435_761)).astype(">u4")
    digits = scattered.tobytes().hex().upper()
    return [f"B0{digits[start : start + 8]}" for start in range(0, len(digits), 8)]


def _user_ids(index: NDArray[np.int64]) -> list[str]:
    """Return ids of 28 characters, like Amazon's."""
    scattered = (index.astype(np.uint64) * np.uint64(11_400_714_819_323_198_485)).astype(">u8")
    digits = scattered.tobytes().hex().upper()
    return [f"AE{digits[start : start + 16]}SHOPPERSID" for start in range(0, len(digits), 16)]


@contextlib.contextmanager
def _gzip_writer(path: Path) -> Iterator[Callable[[bytes], int]]:
    """Write a gzip file atomically."""
    with atomic_file(path) as partial, igzip.open(partial, "wb", compresslevel=1) as file:
        yield file.write
