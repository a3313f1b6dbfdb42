"""A real comparison on a small shop: interrupted, continued, with a recipe that fails, and then left alone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError, Recipe
from resid.cli import main
from resid.comparison import holm, read_comparison
from resid.runs import read_run

SASREC = "sasrec[epochs=5,recommender.width=16,recommender.ffn_width=16,recommender.patience=0]"
FAILING = "tiger[encoder.vectors=missing.npy]"
TINY = {"encoder.width": 16, "encoder.ffn_width": 16, "epochs": 1, "generator.width": 16, "generator.layers": 1}


def start(*arguments):
    command = [sys.executable, "-m", "resid", "compare", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder):
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def made(prepared, tmp_path_factory):
    """A comparison that was interrupted twice: by Ctrl-C in its first run, and killed in the middle of a training."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "tiny.toml").write_text(Recipe.read("resid-codes").replace(TINY).toml())
    out = folder / "out"
    arguments = (prepared, "--recipes", f"popularity,{SASREC},{folder / 'tiny.toml'},{FAILING}")
    arguments += ("--seeds", 1, "--out", out)
    first = start(*arguments)
    for line in first.stderr:
        if "popularity, seed 0: started" in line:
            break
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert (first.returncode, said.splitlines()[-1]) == (130, "Interrupted; run the same command again to continue."), (
        said
    )
    second = start(*arguments)
    while not any(
        path.read_text().count("\n") >= 2 for path in out.glob("stages/recommender/*/training/metrics.jsonl")
    ):
        assert second.poll() is None, second.stderr.read()
        time.sleep(0.05)
    second.kill()
    second.communicate()
    unfinished = read_comparison(out)
    third = start(*arguments)
    stdout, stderr = third.communicate(timeout=240)
    return SimpleNamespace(
        data=Dataset.load(prepared),
        out=out,
        arguments=arguments,
        unfinished=unfinished,
        code=third.returncode,
        stdout=stdout,
        stderr=stderr,
        record=read_comparison(out),
    )


def row(record, name):
    return next(each for each in record["rows"] if each["name"] == name)


def test_what_was_done_before_the_kill_is_kept(made):
    assert row(made.unfinished, "popularity")["done"] == 1
    assert row(made.unfinished, SASREC)["done"] == 0
    assert "popularity, seed 0: started" not in made.stderr
    assert f"{SASREC}, seed 0: started" in made.stderr


def test_a_killed_training_continues_to_the_same_weights(made):
    alone = resid.fit(made.data, Recipe.read("sasrec").replace({"epochs": 5, "recommender.width": 16, "recommender.ffn_width": 16, "recommender.patience": 0, "seed": 0}))  # fmt: skip
    run = resid.load(made.out / row(made.record, SASREC)["runs"][0]["folder"])
    for name, tensor in alone.model_.state_dict().items():
        assert np.array_equal(tensor.numpy(), run.model_.state_dict()[name].numpy()), name
    stage = row(made.record, SASREC)["runs"][0]["stages"]["recommender"]
    assert stage["seconds"] > 0
    assert stage["peak_memory"] > 10**7


def test_a_recipe_that_fails_says_why_and_the_others_are_there(made):
    assert made.code == 2
    failed = row(made.record, FAILING)
    assert "missing.npy" in failed["runs"][0]["error"]
    assert (failed["done"], failed["mean"]) == (0, {})
    assert re.search(r"Error: 1 run failed \(tiger\[.*\], seed 0\);", made.stderr)
    table = (made.out / "table.md").read_text()
    assert re.search(r"\| tiger\[encoder.vectors=missing.npy\] \| failed: seed 0: .*missing\.npy", table)
    assert sum(each["done"] for each in made.record["rows"]) == 3


def test_metrics_are_those_of_evaluate(made):
    from resid.evaluate import evaluate

    for name in ("popularity", "tiny"):
        run = row(made.record, name)["runs"][0]
        found = evaluate(resid.load(made.out / run["folder"]), made.data, progress=None).metrics()
        for ranking in ("seen_kept", "seen_dropped"):
            for metric in ("recall@5", "recall@10", "ndcg@5", "ndcg@10"):
                assert run["metrics"][ranking][metric] == pytest.approx(found[ranking][metric])
                assert row(made.record, name)["mean"][ranking][metric] == run["metrics"][ranking][metric]


def test_record(made):
    record, tiny = made.record, row(made.record, "tiny")
    assert record["data"]["fingerprint"] == made.data.fingerprint
    assert record["protocol"]["split"] == "leave-one-out"
    assert record["protocol"]["k_core"] == 5
    assert record["protocol"]["max_length"] == 32
    assert tiny["settings"]["generator"]["beam_size"] == 50
    assert tiny["runs"][0]["evaluation"]["decoding"] == "beam"
    assert tiny["runs"][0]["evaluation"]["environment"]["versions"]["resid"] == resid.__version__
    assert list(tiny["runs"][0]["stages"]) == ["encoder", "quantizer", "generator"]
    for stage, about in tiny["runs"][0]["stages"].items():
        assert (made.out / "stages" / stage / about["key"] / "part").is_dir()


def test_significance_is_of_the_ranks(made):
    """The best row and its rival have one p-value; differences are those of the means."""
    for ranking in ("seen_kept", "seen_dropped"):
        done = [each for each in made.record["rows"] if each["done"]]
        values = {each["name"]: each["mean"][ranking]["ndcg@10"] for each in done}
        best, second = sorted(values, key=values.get, reverse=True)[:2]
        found = {each["name"]: each["significance"][ranking]["ndcg@10"] for each in done}
        assert found[best]["rival"] == second
        assert found[best]["p"] == found[second]["p"]
        for name in values.keys() - {best}:
            assert found[name]["rival"] == best
            assert found[name]["difference"] == pytest.approx(values[name] - values[best])


def test_tables(made):
    markdown, latex = (made.out / "table.md").read_text(), (made.out / "table.tex").read_text()
    best = max(each["mean"]["seen_kept"]["recall@10"] for each in made.record["rows"] if each["done"])
    assert f"**{best:.4f}**" in markdown
    assert f"\\textbf{{{best:.4f}}}" in latex
    assert "The items of a user's history stay in the ranking." in markdown
    assert "a target among them counts as missed" in latex
    for name in ("popularity", "tiny"):
        assert f"| {name} | " in markdown
        assert f"    {name} & " in latex
    assert re.search(r"\| tiny \| generator \| [\d.,]+ s \| [\d,]+ MB \|", markdown)
    assert "Beam size 50: tiny" in markdown


def test_run_again_it_does_nothing_and_says_so(made, capsys):
    """With those that are there; in less than the comparison itself, without starting a process."""
    wanted = f"popularity,{SASREC},{made.out.parent / 'tiny.toml'}"
    arguments = ["compare", str(made.arguments[0]), "--recipes", wanted, "--seeds", "1", "--out", str(made.out)]
    assert main(arguments) == 0  # without the row that failed
    before = contents(made.out)
    capsys.readouterr()
    assert main(arguments) == 0
    assert "Everything is there already; nothing was run" in capsys.readouterr().out
    assert contents(made.out) == before
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0]


def test_a_damaged_evaluation_is_run_again(made, prepared, tmp_path):
    out, name = tmp_path / "out", "runs/popularity-0"
    shutil.copytree(made.out / name, out / name)  # a run that is there is taken up without its stages
    assert resid.compare(prepared, "popularity", out, seeds=2).n_run == 0  # nothing in it is random
    ranks = out / name / "evaluation" / "test.parquet"
    pl.read_parquet(ranks).with_columns(rank=pl.lit(1)).write_parquet(ranks)
    again = resid.compare(prepared, "popularity", out, seeds=1)
    assert again.n_run == 1
    assert again.record["rows"][0]["mean"] == row(made.record, "popularity")["mean"]


def test_continues_without_models_and_stages(made, prepared, tmp_path):
    """Records and evaluations are enough, as in a repository that holds results only."""
    out = tmp_path / "out"
    for path in made.out.rglob("*"):
        kept = path.name in ("comparison.json", "run.json", "recipe.toml", "test.json", "test.parquet")
        if kept and "stages" not in path.parts and "model" not in path.parts:
            target = out / path.relative_to(made.out)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    found = resid.compare(prepared, f"popularity,{SASREC},cooccurrence", out, seeds=1)
    assert found.n_run == 1  # co-occurrence
    for name in ("popularity", SASREC):
        before, now = row(made.record, name), row(found.record, name)
        assert (now["mean"], now["runs"][0]["stages"]) == (before["mean"], before["runs"][0]["stages"])
    assert "seconds" in row(found.record, SASREC)["runs"][0]["stages"]["recommender"]
    (out / row(found.record, SASREC)["runs"][0]["folder"] / "evaluation" / "test.parquet").unlink()
    assert resid.compare(prepared, SASREC, out, seeds=1).n_run == 1  # fitted again, as there is no model to evaluate


def test_stages_of_fit_are_taken_up(prepared, tmp_path):
    out = tmp_path / "out"
    resid.fit(prepared, "cooccurrence", out / "runs" / "cooccurrence-0")
    (out / "stages").mkdir()
    os.rename(out / "runs" / "cooccurrence-0" / "recommender", out / "stages" / "recommender")
    key = read_run(out / "runs" / "cooccurrence-0").stages["recommender"]
    found = resid.compare(prepared, "cooccurrence", out, seeds=1)  # evaluates
    assert found.record["rows"][0]["runs"][0]["stages"]["recommender"]["key"] == key.split("/")[1]
    assert len(list((out / "stages" / "recommender").iterdir())) == 1


def test_tuning(prepared, tmp_path):
    """The values are searched on validation users; a search that was interrupted tries the same again first."""
    from resid.comparison.comparison import TUNING
    from resid.comparison.rows import read_rows
    from resid.comparison.tuning import Search, read_space, spaces_of_rows

    out, data = tmp_path / "out", Dataset.load(prepared)
    rows, tune = read_rows("cooccurrence"), "recommender.n_recent=1,3"
    search = Search(rows, spaces_of_rows(rows, read_space([tune])), out / TUNING, data, None, 0)
    interrupted = search.next_task()
    found = resid.compare(prepared, "cooccurrence", out, seeds=1, tune=tune)
    study = found.record["tuning"]["cooccurrence"]
    values = {trial["settings"]["recommender.n_recent"]: trial["value"] for trial in study["trials"]}
    assert len(study["trials"]) == 2
    assert set(values) == {"1", "3"}
    best = max(values, key=values.get)
    assert study["best"] == {"recommender.n_recent": best}
    assert found.record["rows"][0]["name"] == f"cooccurrence[recommender.n_recent={best}]"
    assert not list((out / TUNING).rglob("test.json"))  # no trial looked at the test split
    assert interrupted.recipe.part("recommender").settings.n_recent in (1, 3)
    assert resid.compare(prepared, "cooccurrence", out, seeds=1, tune=tune).n_run == 0
    assert "| cooccurrence | 2 of 2 |" in found.markdown()


class TestBadInput:
    def test_unknown(self, prepared, tmp_path):
        with pytest.raises(InputError, match="there is no recipe 'tigr'"):
            resid.compare(prepared, "tigr", tmp_path / "out")
        with pytest.raises(InputError, match="nowhere"):
            resid.compare(tmp_path / "nowhere", "popularity", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_numbers_and_devices(self, prepared, tmp_path):
        for options, message in (
            ({"seeds": 0}, "at least 1 seed"),
            ({"jobs": 0}, "at least one process"),
            ({"devices": ("gpu",)}, "there is no device 'gpu'"),
            ({"trials": 3}, "needs settings to tune"),
        ):
            with pytest.raises(InputError, match=message):
                resid.compare(prepared, "popularity", tmp_path / "out", **options)

    def test_another_dataset(self, made, shop, tmp_path):
        other = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"], k_core=4)
        with pytest.raises(InputError, match="not saved"):
            resid.compare(other, "popularity", made.out)
        other.save(tmp_path / "other")
        with pytest.raises(InputError, match=r"this is a comparison on another Dataset \(data, fingerprint"):
            resid.compare(tmp_path / "other", "popularity", made.out)
        os.rename(made.out / "comparison.json", tmp_path / "kept.json")
        try:
            with pytest.raises(InputError, match=r"popularity-0: this run is on another Dataset"):
                resid.compare(tmp_path / "other", "popularity", made.out)
        finally:
            os.replace(tmp_path / "kept.json", made.out / "comparison.json")

    def test_something_else(self, prepared, tmp_path):
        with pytest.raises(InputError, match="is a Dataset; choose another folder"):
            resid.compare(prepared, "popularity", prepared)
        (tmp_path / "thesis.tex").write_text("")
        with pytest.raises(InputError, match=r"is not a comparison \(it contains thesis.tex\)"):
            resid.compare(prepared, "popularity", tmp_path)

    @pytest.mark.parametrize(("text", "message"), [('{"format": 0}', "format 0 is not supported"), ("[1", "damaged")])
    def test_another_version(self, prepared, tmp_path, text, message):
        (tmp_path / "comparison.json").write_text(text)
        with pytest.raises(InputError, match=message):
            resid.compare(prepared, "popularity", tmp_path)


def test_holm_is_what_the_record_has(made):
    """From the ranks on disk, by hand: a bootstrap over users of the differences to the best row, then Holm."""
    from resid.comparison import bootstrap_p_values

    done = {each["name"]: each for each in made.record["rows"] if each["done"]}
    hits = {}
    for name, each in done.items():
        ranks = pl.read_parquet(made.out / each["runs"][0]["folder"] / "evaluation" / "test.parquet")["rank"]
        hits[name] = (ranks.fill_null(11) <= 10).to_numpy().astype(float)
    best = max(hits, key=lambda name: hits[name].mean())
    rivals = [name for name in hits if name != best]
    differences = np.column_stack([hits[best] - hits[name] for name in rivals])
    expected = holm(bootstrap_p_values(differences, np.arange(len(differences))))
    found = [done[name]["significance"]["seen_kept"]["recall@10"]["p"] for name in rivals]
    np.testing.assert_allclose(found, expected, atol=0.01)
