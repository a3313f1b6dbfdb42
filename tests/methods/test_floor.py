"""The comparison with popularity and co-occurrence that follows every fit."""

import json
import logging
from dataclasses import dataclass, field

import pytest

from resid import Dataset, Runtime, fit
from resid.cli import main
from resid.core.progress import Silent
from resid.evaluate import evaluate
from resid.runs import read_run


@dataclass
class Results(Silent):
    lines: list[str] = field(default_factory=list)

    def result(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def data(prepared):
    return Dataset.load(prepared)


SMALL = {"recommender.width": 16, "recommender.ffn_width": 16, "recommender.learning_rate": 0.01}


def test_kept_with_the_run(data, tmp_path):
    shown = Results()
    model = fit(data, "sasrec", tmp_path / "run", changes=SMALL | {"epochs": 2}, runtime=Runtime(progress=shown))
    found = read_run(tmp_path / "run").validation
    assert set(found) == {"model", "popularity", "cooccurrence"}
    for name, recommender in (
        ("model", model),
        ("popularity", fit(data, "popularity")),
        ("cooccurrence", fit(data, "cooccurrence")),
    ):
        wanted = evaluate(recommender, data, "validation").metrics((10,))["seen_kept"]
        assert {metric: found[name][metric] for metric in ("recall@10", "ndcg@10")}.items() <= wanted.items()
        if name != "model":
            lead = found["model"]["ndcg@10"] - found[name]["ndcg@10"]
            assert found[name]["lead_low"] < lead < found[name]["lead_high"]
    line = shown.lines[-1]
    values = [f"{found[name]['ndcg@10']:.4f}" for name in ("model", "popularity", "cooccurrence")]
    wanted = "NDCG@10 of {} validation users, seen items kept: model {}, popularity {}, co-occurrence {}"
    assert line == wanted.format(len(data.validation), *values)

    again = Results()
    fit(data, "sasrec", tmp_path / "run", changes=SMALL | {"epochs": 2}, runtime=Runtime(progress=again))
    assert again.lines == [line]  # what was measured is said again
    fit(data, "sasrec", tmp_path / "run", changes=SMALL | {"epochs": 1})
    assert read_run(tmp_path / "run").validation["model"] != found["model"]  # of the new model


def test_not_measured_twice(data, tmp_path, monkeypatch):
    fit(data, "sasrec", tmp_path / "run", changes=SMALL | {"epochs": 1})
    monkeypatch.setattr("resid.methods.floor.ranking_metrics", None)
    fit(data, "sasrec", tmp_path / "run", changes=SMALL | {"epochs": 1})


def test_warning_below_the_floor(data, caplog):
    with caplog.at_level(logging.WARNING):
        fit(data, "sasrec", changes=SMALL | {"epochs": 1, "recommender.learning_rate": 1e-9})
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "resid.methods.floor"]
    assert warning.startswith("The model is worse than co-occurrence on validation users (NDCG@10 0.")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fit(data, "sasrec", changes=SMALL | {"epochs": 25})
    assert not [record for record in caplog.records if record.name == "resid.methods.floor"]


def test_a_lead_within_the_noise(data, caplog, tmp_path, monkeypatch):
    """A small lead on few users is no lead."""
    monkeypatch.setattr("resid.methods.floor._USERS", 8)
    with caplog.at_level(logging.WARNING):
        fit(data, "sasrec", tmp_path / "run", changes=SMALL | {"epochs": 25})
    found = read_run(tmp_path / "run").validation
    best = max(("popularity", "cooccurrence"), key=lambda name: found[name]["ndcg@10"])
    assert found[best]["lead_low"] <= 0 <= found[best]["lead_high"]
    assert any("not clearly better than" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("recipe", ["popularity", "cooccurrence"])
def test_the_floor_itself_is_not_compared(recipe, data, tmp_path):
    fit(data, recipe, tmp_path / "run")
    assert read_run(tmp_path / "run").validation == {}


def test_command(prepared, tmp_path, capsys):
    changes = [f"--set={name}={value}" for name, value in SMALL.items()]
    arguments = ["fit", str(prepared), "--recipe", "sasrec", "--out", str(tmp_path / "run"), "--epochs", "1", *changes]
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert set(json.loads(shown.out)["validation"]) == {"model", "popularity", "cooccurrence"}
    assert "validation users, seen items kept: model 0." in shown.err
