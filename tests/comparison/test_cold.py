"""The protocol cold-items of a comparison: fitted without the new items, evaluated with them, and why a recipe cannot take part."""

import io

import pytest

from resid import Dataset, InputError, Recipe, compare, load
from resid.comparison import comparison, read_comparison
from resid.comparison.cold import check_growth, leave_room
from resid.comparison.rows import read_rows
from resid.comparison.worker import Reports, carry_out
from resid.data import hide_newest
from resid.evaluate import evaluate_cold_items, ranking_metrics

TINY = {"encoder.width": 16, "encoder.ffn_width": 16, "epochs": 1, "generator.width": 16, "generator.layers": 1}


@pytest.fixture
def here(monkeypatch):
    """Tasks are carried out in this process, which is cheaper than a process each."""
    done = []

    def run(source, place, display):
        while (task := source.next_task()) is not None:
            order = {"data": str(place.data), "name": task.recipe.name, "label": task.label, "toml": task.recipe.toml()}
            order |= {"folder": str(task.folder), "stages": str(place.stages), "split": task.split}
            order |= {"cold_items": place.cold_items, "accelerator": "cpu", "precision": place.precision}
            done.append(task.row)
            try:
                carry_out(order, Reports(io.StringIO()))
            except InputError as error:
                source.finished(task, str(error))
            else:
                source.finished(task, None)

    monkeypatch.setattr(comparison, "run_tasks", run)
    return done


def test_a_comparison(prepared, tmp_path, here):
    (tmp_path / "tiny.toml").write_text(Recipe.read("resid").replace(TINY).toml())
    recipes, out = f"{tmp_path / 'tiny.toml'},popularity-new,unger,sasrec", tmp_path / "out"
    found = compare(prepared, recipes, out, seeds=1, protocol="cold-items", cold_share=0.15)
    assert here == ["tiny", "popularity-new", "unger", "sasrec"]
    assert not (out / "stages" / "text_encoder").exists()  # refused before anything was fitted
    errors = list(found.failures.values())
    assert "cannot embed new items" in errors[0]
    assert "reads no item fields and cannot take new items" in errors[1]
    record = read_comparison(out)
    facts = record["protocol"]["cold_items"]
    whole = Dataset.load(prepared)
    cold = hide_newest(whole, 0.15)
    assert facts == cold.facts()
    assert Dataset.load(out / "data").fingerprint == cold.known.fingerprint
    rows = {row["name"]: row for row in record["rows"]}
    assert rows["tiny"]["settings"]["quantizer"]["spare"] == 0.3
    model = load(out / "runs" / "tiny-0")
    assert len(model.catalogue_) == cold.known.n_items  # the run keeps the model as it was fitted
    ranks = evaluate_cold_items(model, cold)
    new = cold.targets_are_new
    wanted = {"new": ranks.kept[new], "old": ranks.kept[~new], "old_without": ranks.kept_without[ranks.ranked_without]}
    for group, some in wanted.items():
        assert rows["tiny"]["groups"][group]["seen_kept"] == pytest.approx(ranking_metrics(some)), group
    assert rows["tiny"]["mean"]["seen_dropped"] == pytest.approx(ranking_metrics(ranks.dropped))
    assert rows["popularity-new"]["groups"]["old"]["seen_kept"]["recall@10"] == 0  # ten new items are before them
    assert rows["popularity-new"]["groups"]["new"]["seen_kept"]["recall@10"] > 0.5
    assert set(rows["tiny"]["significance_on_new"]) == {"seen_kept", "seen_dropped"}
    table = (out / "table.md").read_text()
    assert (
        "| seen items kept | new R@10 | new N@10 | old R@10 | old N@10 | both R@10 | both N@10 | old R@10 lost |"
        in table
    )
    assert "| unger | failed: " in table
    here.clear()
    again = compare(prepared, recipes, out, seeds=1, protocol="cold-items", cold_share=0.15)
    assert here == ["unger", "sasrec"]  # what failed is tried again
    assert again.record == found.record
    for other in ({"protocol": "split"}, {"protocol": "cold-items", "cold_share": 0.2}):
        with pytest.raises(InputError, match="another protocol or share of new items"):
            compare(prepared, recipes, out, seeds=1, **other)


def test_invalid_protocols(prepared, tmp_path):
    with pytest.raises(InputError, match="there is no protocol 'cold'; use 'split' or 'cold-items'"):
        compare(prepared, "popularity-new", tmp_path / "out", protocol="cold")
    with pytest.raises(InputError, match="the share of new items must be more than 0 and less than 1"):
        compare(prepared, "popularity-new", tmp_path / "out", protocol="cold-items", cold_share=0)
    assert not (tmp_path / "out").exists()


def test_which_recipes_take_new_items():
    takes = ("resid", "resid-codes", "tiger", "letter", "sasrec-fields", "hgn-fields", "popularity-new")
    for name in takes:
        check_growth(Recipe.read(name))
    for name in ("unger", "eager", "etegrec", "resid-e2", "sasrec", "popularity", "cooccurrence"):
        with pytest.raises(InputError, match="new items"):
            check_growth(Recipe.read(name))


def test_room_that_a_recipe_states_is_left_alone(prepared):
    cold = hide_newest(Dataset.load(prepared), 0.1)
    rows = [leave_room(row, cold) for row in read_rows("resid,resid[quantizer.spare=0.05],sasrec-fields")]
    assert [row.name for row in rows] == ["resid", "resid[quantizer.spare=0.05]", "sasrec-fields"]
    assert [row.recipe.parts["quantizer"].settings.spare for row in rows[:2]] == [0.2, 0.05]
