"""Methods on Datasets with tags and numbers: they train, are saved, and give the same recommendations again."""

import numpy as np
import pytest
import torch
import torch.nn.functional as f

import resid
from resid import Dataset
from resid.data.synthetic import synthetic_shop
from resid.nn import item_and_fields
from resid.sequential.s3rec import Pretraining, S3RecSettings
from resid.sequential.sasrec import SASRecModel

_TINY = {"width": 8, "epochs": 2, "batch_size": 256}
_RECOMMENDER = {f"recommender.{name}": value for name, value in _TINY.items()}
RECIPES = {
    "sasrec-fields": _RECOMMENDER,
    "bert4rec-fields": _RECOMMENDER,
    "hgn-fields": _RECOMMENDER,
    "s3rec-fields": _RECOMMENDER | {"recommender.pretrain_epochs": 1},
    "resid": {f"{part}.{name}": value for part in ("encoder", "generator") for name, value in _TINY.items()}
    | {"quantizer.branching": (3, 3)},
}


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=120, items=50, interactions=1_500, seed=4, tags=4)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "tags", "price"], k_core=1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(data, recipe, tmp_path):
    model = resid.fit(data, recipe, changes=RECIPES[recipe])
    histories = [data.item_ids[:3].to_list(), data.item_ids[10:14].to_list()]
    items, scores = model.recommend(histories, 5)
    model.save(tmp_path / "model")
    again = resid.load(tmp_path / "model").recommend(histories, 5)
    assert np.array_equal(again[0], items)
    assert np.array_equal(again[1], scores)
    tables = model.model_.trunk.tables if recipe == "resid" else model.model_.tables
    assert tables.has_tags == [False, False, True, False]
    assert tables.embeddings()[2].weight.shape[0] == data.field_sizes[1]


@pytest.mark.parametrize("n_sampled", [1_000, 10])
def test_the_attributes_of_s3rec_are_all_tags(data, n_sampled):
    """With all attributes as negatives, a slow reference; sampled, the loss of an item's own attributes remains."""
    settings = S3RecSettings(width=8, use_fields=True, n_sampled_attributes=n_sampled)
    codes, sizes = item_and_fields(data)
    torch.manual_seed(0)
    model = SASRecModel(codes, list(sizes.values()), settings, 32)
    tasks = Pretraining(model, torch.zeros(10, dtype=torch.int64), settings)
    queries, items = torch.randn(6, 8), torch.tensor([0, 3, 7, 11, 20, 30])
    found = tasks.attribute_loss(queries, items, torch.Generator().manual_seed(0))
    rng, slow = torch.Generator().manual_seed(0), 0.0
    total = sum(size - 1 for size in list(sizes.values())[1:])
    for field, (table, size) in enumerate(zip(model.tables.embeddings()[1:], data.field_sizes, strict=True)):
        candidates = list(range(1, size))
        if total > n_sampled:
            candidates = torch.randint(1, size, (max(1, n_sampled * (size - 1) // total),), generator=rng).tolist()
        for query, item in zip(queries, items.tolist(), strict=True):
            own = {code for code in data.fields[item, field].tolist() if code}
            slow += sum(f.softplus(-(query @ table.weight[code])) for code in own)
            absent = sum(f.softplus(query @ table.weight[code]) for code in candidates if code not in own)
            slow += absent * (size - 1) / len(candidates)
    assert found.item() == pytest.approx(slow.item(), rel=1e-5)
