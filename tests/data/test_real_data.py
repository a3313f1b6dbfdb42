"""The counts of the real data sets equal the published ones."""

import pytest

from resid import Dataset

AMAZON = ["store", "cat2", "cat3", "cat4"]
COUNTS = {
    "amazon2014-beauty": (AMAZON, (22_363, 12_101, 198_502), {"cat2": 6, "cat3": 37, "cat4": 147}),
    "amazon2018-scientific": (AMAZON, (8_317, 4_344, 58_492), {"cat2": 25, "cat3": 191, "cat4": 435}),
    "amazon2014-sports": (AMAZON, (35_598, 18_357, 296_337), {"cat2": 17, "cat3": 126, "cat4": 403}),
    "amazon2023-all-beauty": (["store"], (357, 479, 3_315), {}),
    "complete-journey": (
        ["store", "cat1", "cat2", "cat3"],
        (2_439, 25_562, 791_825),
        {"cat1": 23, "cat2": 283, "cat3": 1_610},
    ),
}
MISSING_STORES = {
    "amazon2014-beauty": 0.175,
    "amazon2018-scientific": 0.003,
    "amazon2014-sports": 0.4,
    "amazon2023-all-beauty": 0.3,
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(real_data, name):
    fields, counts, values = COUNTS[name]
    folder = real_data / name
    data = Dataset.from_tables(folder / "interactions.parquet", folder / "items.parquet", fields, missing="keep")
    assert (data.n_users, data.n_items, data.n_interactions) == counts
    facts = {field["name"]: field for field in data.info()["fields"]}
    assert {field: facts[field]["values"] for field in values} == values
    assert facts["store"]["missing"] == pytest.approx(MISSING_STORES.get(name, 0), abs=0.005)
    assert len(data.train) == data.n_interactions - 3 * data.n_users
    assert len(data.validation) == len(data.test) == data.n_users
