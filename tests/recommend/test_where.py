"""Filters by field: which items they leave, what generators do with them, and what is said about bad ones."""

import numpy as np
import polars as pl
import pytest

from resid import InputError, load
from resid.data.where import matching_items
from resid.generate import joint
from tests.small import small_data, small_joint, small_onepass


def matched(where):
    return small_data().item_table.filter(matching_items(small_data().catalogue, where))


@pytest.mark.parametrize(
    ("text", "mapping", "expression"),
    [
        ("cat1=Kitchen", {"cat1": "Kitchen"}, pl.col("cat1") == "Kitchen"),
        ("store=Iris & Alder, Lark & Alder", {"store": ["Iris & Alder", "Lark & Alder"]}, pl.col("store").str.contains("Iris|Lark")),
        ("price<20", {"price": {"<": 20}}, pl.col("price") < 20),
        (["price>=5", "price<=9"], {"price": {">=": 5, "<=": 9}}, pl.col("price").is_between(5, 9)),
        ("price > 30", {"price": {">": "30"}}, pl.col("price") > 30),
        ("price=3,4", {"price": [3, 4.0]}, pl.col("price").is_in([3.0, 4.0])),
        ("tags=Bags,Iris", {"tags": {"Bags", "Iris"}}, pl.col("title").str.contains("Bags|Iris")),
        ("in_stock=yes", {"in_stock": True}, pl.col("in_stock")),
        (["in_stock=false", "cat1=Garden"], {"in_stock": False, "cat1": "Garden"}, ~pl.col("in_stock") & (pl.col("cat1") == "Garden")),
    ],
)  # fmt: skip
def test_conditions(text, mapping, expression):
    expected = small_data().item_table.filter(expression)
    assert 0 < len(expected) < small_data().n_items
    assert matched(text).equals(expected)
    assert matched(mapping).equals(expected)


def test_missing_values_do_not_match():
    catalogue = small_data().catalogue
    table = catalogue.items.with_columns(price=pl.when(pl.col("price") > 5).then(pl.col("price")))
    changed = type(catalogue)(table, catalogue.field_names, catalogue.counts, catalogue.settings, "")
    assert (table["price"].is_null().to_numpy() == ~matching_items(changed, "price>0")).all()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("stor=Fjord", "there is no field 'stor' (did you mean 'store'?); the fields are item, store"),
        ({"cat1": "Kichen"}, "no item has cat1=Kichen (did you mean 'Kitchen'?)"),
        ("tags=bags", "no item has tags=bags (did you mean 'Bags'?)"),
        ("price<cheap", "'price' is a number, so 'cheap' cannot be compared"),
        ("cat1<Kitchen", "'cat1' is not a number, so cat1<Kitchen cannot be compared; use ="),
        ("in_stock=maybe", "'in_stock' is true or false, not 'maybe'"),
        ("price<1,2", "compares with several values"),
        ("store", "'store' is not a condition such as store=Fjord or price<20"),
        ("store=", "is not a condition"),
        ({"price": {"~": 3}}, "'price' has '~'; use one of"),
        ({"price": {}}, "'price' has an empty mapping"),
        ({"cat1": []}, "'cat1' = [] needs a value"),
        ({"cat1": None}, "needs a value"),
        ({1: 2}, "1 is not the name of a field"),
        (7, "'where' is a mapping such as"),
        ([7], "'where' is a mapping such as"),
    ],
)
def test_bad_conditions(where, message):
    with pytest.raises(InputError) as error:
        matching_items(small_data().catalogue, where)
    assert message in str(error.value)
    assert str(error.value).count("\n") == 0


@pytest.mark.parametrize("make", [small_joint, small_onepass])
def test_generators_rank_the_items_that_are_left_as_if_all_were_scored(make):
    """More items are left than the beam is wide, and still the ranking is exact and full."""
    model, data = make(), small_data()
    histories = [data.history_at(user)[:5] for user in range(6)]
    histories = [data.item_ids.gather(history).to_list() for history in histories]
    where, deny = {"price": {"<": 35}}, data.item_ids[:4].to_list()
    left = data.item_ids.filter(matching_items(data.catalogue, where) & (np.arange(data.n_items) >= 4))
    assert len(left) > 20
    items, scores = model.recommend(histories, len(left), where=where, deny=deny)
    assert all(set(row) == set(left) for row in items)
    _, exact_scores = model.recommend(histories, len(left), where=where, deny=deny, exact=True)
    np.testing.assert_allclose(scores, exact_scores, rtol=1e-4, atol=1e-5)
    top, _ = model.recommend(histories, 5, where=where, deny=deny)
    assert (top == items[:, :5]).all()


def test_allow_and_where_that_leave_nothing():
    cheap = small_data().item_table.filter(pl.col("price") < 5)["item"].to_list()
    with pytest.raises(InputError, match="'allow' and 'deny' and 'where' exclude every item"):
        small_onepass().recommend([[]], 1, allow=cheap, where="price>10")


class TestSimilar:
    def test_by_the_vectors_of_the_encoder(self):
        model, data = small_joint(), small_data()
        vectors = model.parts_["encoder"].embed(data).vectors.astype(np.float64)
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = units @ units.T
        np.fill_diagonal(cosines, -2)
        wanted = data.item_ids[3:6].to_list()
        items, found, shared = model.similar(wanted, 4)
        for row, index in enumerate(range(3, 6)):
            best = np.argsort(-cosines[index], kind="stable")[:4]
            assert items[row].tolist() == data.item_ids.gather(best).to_list()
            np.testing.assert_allclose(found[row], cosines[index, best], atol=1e-5)
            codes = small_ids_codes()
            for place, other in enumerate(best):
                equal = [a == b for a, b in zip(codes[index], codes[other], strict=True)]
                assert shared[row, place] == next((n for n, same in enumerate(equal) if not same), 3)
        one, _, _ = model.similar(wanted[0], 4)
        assert one.tolist() == items[0].tolist()

    def test_all_items(self):
        items, cosines, _ = small_onepass().similar(small_data().item_ids[0], small_data().n_items)
        assert items[-1] is None
        assert cosines[-1] == -np.inf
        assert len(set(items)) == small_data().n_items

    def test_withdrawn_items_are_not_found(self, tmp_path):
        small_joint().save(tmp_path / "model")
        model, item = load(tmp_path / "model"), small_data().item_ids[7]
        first, second = model.similar(item, 2)[0]
        model.remove_items([first])
        assert model.similar(item, 1)[0].tolist() == [second]
        found, cosines, _ = model.similar(item, small_data().n_items)
        assert found[-2:].tolist() == [None, None]
        assert (cosines[-2:] == -np.inf).all()

    def test_what_cannot_be_compared(self):
        from resid.sequential import CoOccurrence

        with pytest.raises(InputError, match="this CoOccurrence has no item vectors"):
            CoOccurrence().fit(small_data()).similar(small_data().item_ids[0], 3)
        with pytest.raises(InputError, match=r"the model has no item 'nothing'"):
            small_onepass().similar(["nothing"], 3)
        with pytest.raises(InputError, match="k must be an integer"):
            small_onepass().similar(small_data().item_ids[0], 0)


def small_ids_codes():
    return small_joint().ids_.codes.tolist()


class TestExplain:
    def test_contributions_sum_to_the_score(self):
        model, data = small_joint(), small_data()
        history = data.history(data.user_ids[0]).to_list()
        items, scores = model.recommend(history, 6)
        found = model.explain(history, items.tolist())
        assert [each.item for each in found] == items.tolist()
        for each, score in zip(found, scores, strict=True):
            assert set(each.contributions) == {"codes", "item", "encoder", "cooccurrence", joint.SEEN}
            assert sum(each.contributions.values()) == pytest.approx(float(score), abs=1e-4)
            seen = each.item in history[-data.catalogue.max_history :]
            assert (each.contributions[joint.SEEN] != 0) == seen

    def test_nearest_and_prefix(self):
        model, data = small_joint(), small_data()
        ids = model.ids_.codes.tolist()
        target = 5
        twin = next(i for i, codes in enumerate(ids) if i != target and codes[:2] == ids[target][:2])
        stranger = next(i for i, codes in enumerate(ids) if codes[0] != ids[target][0])
        history = data.item_ids.gather([stranger, twin, stranger]).to_list()
        found = model.explain(history, data.item_ids[target])
        assert list(found.prefix) == ids[target][:2]
        assert {(near.item, near.shared_prefix) for near in found.nearest} == {
            (data.item_ids[twin], 2),
            (data.item_ids[stranger], 0),
        }
        cosines = [near.similarity for near in found.nearest]
        assert cosines == sorted(cosines, reverse=True)
        assert found.to_dict()["nearest"][0]["item"] == found.nearest[0].item

    def test_without_vectors_or_history(self):
        from resid.sequential import CoOccurrence

        item = small_data().item_ids[0]
        (near,) = CoOccurrence().fit(small_data()).explain([small_data().item_ids[1]], item).nearest
        assert (near.similarity, near.shared_prefix) == (None, None)
        empty = small_joint().explain([], [item])[0]
        assert (empty.prefix, empty.nearest, empty.contributions) == ((), (), {})


def test_vectors_follow_a_new_fit():
    from resid.sequential import SASRec, SASRecSettings
    from tests.small import TINY

    model = SASRec(SASRecSettings(**TINY)).fit(small_data())
    first = model.item_vectors()
    model.settings = SASRecSettings(**TINY, seed=1)
    model.fit(small_data())
    assert not np.allclose(first, model.item_vectors())
