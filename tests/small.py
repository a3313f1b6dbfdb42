"""Small fitted models that several test files share; each is fitted once per process."""

from functools import lru_cache

import numpy as np
import polars as pl

from resid import Dataset
from resid.data import synthetic_shop
from resid.encode import FAMAE, FamaeSettings
from resid.generate import JointGenerator, JointSettings, OnePassGenerator, OnePassSettings, T5Generator, T5Settings
from resid.quantize import SemanticIds

TINY = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16, "epochs": 1}


@lru_cache
def small_data() -> Dataset:
    shop = synthetic_shop(users=300, items=80, interactions=3_000, seed=3)
    number = pl.int_range(pl.len())
    items = shop.item_table.with_columns(
        price=(number % 40).cast(pl.Float64),
        tags=pl.col("title").str.split(" "),
        in_stock=number % 3 > 0,
    )
    keep = ["title", "price", "tags", "in_stock"]
    return Dataset.from_tables(shop.interaction_table, items, ["store", "categories"], keep=keep)


@lru_cache
def small_ids() -> SemanticIds:
    place = np.arange(small_data().n_items)
    return SemanticIds(np.column_stack([place % 4, place // 4 % 4, place // 16]), None, small_data().item_ids)


@lru_cache
def small_encoder() -> FAMAE:
    return FAMAE(FamaeSettings(**TINY)).fit(small_data())


@lru_cache
def small_joint() -> JointGenerator:
    encoder = small_encoder()
    embeddings = encoder.embed(small_data())
    return JointGenerator(JointSettings(**TINY, beam_size=20)).fit(small_data(), small_ids(), embeddings, encoder)


@lru_cache
def small_onepass() -> OnePassGenerator:
    embeddings = small_encoder().embed(small_data())
    return OnePassGenerator(OnePassSettings(**TINY)).fit(small_data(), small_ids(), embeddings)


@lru_cache
def small_t5() -> T5Generator:
    return T5Generator(T5Settings(**TINY, head_width=8)).fit(small_data(), small_ids())
