"""The commands that train, evaluate and recommend, as a user types them."""

import json
import sys
from pathlib import Path

import polars as pl
import pytest

from resid import Dataset, Recipe, load
from resid.cli import main
from resid.methods.recipe import recipe_names

RESID = Path(sys.executable).with_name("resid")


def said(capsys):
    """The error message in one line."""
    return " ".join(capsys.readouterr().err.split())


class TestEncode:
    def test_a_second_call_reuses_the_encoder(self, prepared, tmp_path, capsys):
        changes = [f"--set=encoder.{change}" for change in ("width=16", "ffn_width=16", "epochs=2")]
        arguments = ["encode", str(prepared), "--out", str(tmp_path), *changes]
        assert main([*arguments, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["epochs"] == 2
        assert facts["settings"]["width"] == 16
        assert set(facts["test"]["metric1"]) == {"recall@5", "recall@10", "ndcg@5", "ndcg@10"}
        written = (Path(facts["folder"]) / "training" / "checkpoint.safetensors").stat().st_mtime_ns
        assert main(arguments) == 0
        assert "item ID masked" in capsys.readouterr().out
        assert (Path(facts["folder"]) / "training" / "checkpoint.safetensors").stat().st_mtime_ns == written

    def test_training_that_diverges(self, prepared, tmp_path, capsys):
        changes = ["--set=encoder.learning_rate=1e30", "--set=encoder.epochs=2"]
        assert main(["encode", str(prepared), "--out", str(tmp_path), *changes]) == 3
        said = capsys.readouterr().err.replace("\n", " ")
        assert "Error: step 2, epoch 1: 'loss." in said
        assert "lower learning_rate or set max_grad_norm" in said

    def test_an_encoder_without_metrics(self, prepared, tmp_path, capsys):
        changes = ["--set=encoder.kind=sasrec", "--set=encoder.width=16", "--set=encoder.epochs=1"]
        arguments = ["encode", str(prepared), "--out", str(tmp_path), *changes]
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == "sasrec"
        assert main(arguments) == 0
        assert "Wrote" in capsys.readouterr().out


@pytest.fixture(scope="module")
def fitted(prepared, tmp_path_factory):
    """A run of tiny parts, made in the shell."""
    folder = tmp_path_factory.mktemp("fitted") / "run"
    tiny = [
        f"--set={stage}.{name}"
        for stage in ("encoder", "generator")
        for name in ("width=16", "ffn_width=16", "epochs=1")
    ]
    assert main(["fit", str(prepared), "--out", str(folder), *tiny, "--seed", "1"]) == 0
    return folder


class TestRun:
    def test_fit(self, fitted, prepared, capsys):
        settings = Recipe.read(fitted / "recipe.toml")
        assert settings.part("generator").settings.seed == settings.part("quantizer").settings.seed == 1
        assert (
            main(["fit", str(prepared), "--out", str(fitted), "--recipe", str(fitted / "recipe.toml"), "--json"]) == 0
        )
        facts = json.loads(capsys.readouterr().out)
        assert facts["epochs"] == facts["best"]["epoch"] == 1
        assert main(["fit", str(prepared), "--out", str(fitted), "--recipe", str(fitted / "recipe.toml")]) == 0
        assert "during training, seen items dropped, item score alone, before blending" in " ".join(
            capsys.readouterr().out.split()
        )

    def test_evaluate_against_another_run(self, fitted, prepared, tmp_path, capsys):
        other = tmp_path / "popularity"
        assert main(["fit", str(prepared), "--recipe", "popularity", "--out", str(other)]) == 0
        arguments = ["evaluate", str(fitted), "--against", str(other), "--out", str(tmp_path / "out")]
        assert main(arguments) == 2
        assert f"{other} was not evaluated on the test split; run 'resid evaluate {other}' first." in said(capsys)
        assert main(["evaluate", str(other), "--cutoffs", "5"]) == 0
        assert main(arguments) == 2
        assert "ranks are known up to 5, not 10" in said(capsys)
        assert main(["evaluate", str(other), "--json"]) == 0
        theirs = json.loads(capsys.readouterr().out)
        for decoding in ("beam", "exact"):
            assert main([*arguments, "--decoding", decoding, "--json"]) == 0
            ours = json.loads(capsys.readouterr().out)
            difference = ours["against"]["seen_dropped"]["recall@10"]["difference"]
            assert difference == pytest.approx(ours["seen_dropped"]["recall@10"] - theirs["seen_dropped"]["recall@10"])
        assert main(arguments) == 0
        assert "Difference to" in capsys.readouterr().out
        table = other / "evaluation" / "test.parquet"
        table.write_bytes(table.read_bytes()[:-1])
        assert main(arguments) == 2
        assert "run 'resid evaluate' again" in said(capsys)

    def test_evaluate_several_runs(self, fitted, prepared, tmp_path, capsys, caplog):
        other = tmp_path / "popularity"
        assert main(["fit", str(prepared), "--recipe", "popularity", "--out", str(other)]) == 0
        single = {}
        for run in (fitted, other):
            capsys.readouterr()
            assert main(["evaluate", str(run), "--json"]) == 0
            single[str(run)] = json.loads(capsys.readouterr().out)
        assert main(["evaluate", str(fitted), str(other), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"models": single}
        assert main(["evaluate", str(fitted), str(other), "--against", str(other)]) == 0
        shown = capsys.readouterr().out
        assert shown.count("Test set: how often the next item is in the top K") == 1
        assert shown.count("Difference to") == 1
        assert "Results by user group" not in shown
        for ranking in ("seen_kept", "seen_dropped"):
            for run in (fitted, other):
                assert f"{single[str(run)][ranking]['recall@10']:.4f}" in shown
        assert shown.count("+0.0000") >= 8  # a model against itself
        assert shown.count("Wrote") == 2

        for decoding in ("exact", "beam"):  # which only one of the two has
            assert main(["evaluate", str(fitted), str(other), "--decoding", decoding]) == 0
        assert (fitted / "evaluation" / "test-exact.json").exists()
        assert not (other / "evaluation" / "test-exact.json").exists()
        capsys.readouterr()
        assert main(["evaluate", str(fitted), str(other), "--out", str(tmp_path / "out")]) == 2
        assert "--out takes the results of one model" in said(capsys)
        again = tmp_path / "data"
        rows = [(user, item, item) for user in range(20) for item in range(6)]
        Dataset.from_tables(pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")).save(again)
        assert main(["fit", str(again), "--recipe", "popularity", "--out", str(tmp_path / "third")]) == 0
        assert main(["evaluate", str(fitted), str(tmp_path / "third")]) == 2
        assert "this model has another Dataset than" in said(capsys)
        assert main(["evaluate", str(fitted), "--data", str(again)]) == 2
        assert f"{fitted} was fitted to {prepared}; use that Dataset, or fit again." in said(capsys)
        assert main(["recommend", str(other), "--history", ""]) == 0
        assert "The history is empty; showing the most popular items" in caplog.text

    def test_evaluate(self, fitted, prepared, tmp_path, capsys):
        assert main(["evaluate", str(fitted), "--cutoffs", "3,7"]) == 0
        shown = capsys.readouterr().out
        for text in ("R@3", "N@7", "seen items", "dropped", "history 6–10", "Free beams"):
            assert text in shown
        metrics = json.loads((fitted / "evaluation" / "test.json").read_text())
        ranks = pl.read_parquet(fitted / "evaluation" / "test.parquet")
        assert len(ranks) == metrics["users"] == Dataset.load(prepared).n_users
        assert metrics["seen_kept"]["recall@7"] == pytest.approx(ranks["rank"].is_not_null().mean())
        low, high = metrics["seen_kept"]["intervals"]["recall@7"]
        assert low < metrics["seen_kept"]["recall@7"] < high
        for decoding in ("exact", "free"):
            arguments = ["evaluate", str(fitted / "model"), "--data", str(prepared), "--split", "validation"]
            assert main([*arguments, "--decoding", decoding, "--out", str(tmp_path), "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["decoding"] == decoding
            assert (tmp_path / f"validation-{decoding}.json").exists()

    def test_recommend(self, fitted, prepared, shop, tmp_path, capsys):
        data = Dataset.load(prepared)
        history = ",".join(data.item_ids[:2])
        assert main(["recommend", str(fitted), "--history", history, "-k", "3"]) == 0
        shown = capsys.readouterr().out
        assert "title" in shown
        assert main(["recommend", str(fitted), "--history", history, "-k", "3", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["items"]) == len(found["scores"]) == 3
        assert all(item in shown for item in found["items"])
        (tmp_path / "deny.txt").write_text(f"\ufeff{found['items'][0]}\r\n\n")
        assert (
            main(
                [
                    "recommend",
                    str(fitted),
                    "--history",
                    history,
                    "-k",
                    "2",
                    "--deny",
                    str(tmp_path / "deny.txt"),
                    "--json",
                ]
            )
            == 0
        )
        assert json.loads(capsys.readouterr().out)["items"] == found["items"][1:]
        (tmp_path / "allow.txt").write_text(found["items"][0])
        assert (
            main(["recommend", str(fitted), "--history", history, "--allow", str(tmp_path / "allow.txt"), "--json"])
            == 0
        )
        assert json.loads(capsys.readouterr().out)["items"] == found["items"][:1]
        shop.interaction_table.rename({"user": "who"}).write_csv(tmp_path / "log.csv")
        out = tmp_path / "found.parquet"
        assert (
            main(
                [
                    "recommend",
                    str(fitted),
                    "--histories",
                    str(tmp_path / "log.csv"),
                    "--columns",
                    "user=who",
                    "--out",
                    str(out),
                    "-k",
                    "4",
                ]
            )
            == 0
        )
        table = pl.read_parquet(out)
        assert table.columns == ["user", "rank", "item", "score"]
        for name, read in (("found.csv", pl.read_csv), ("found.jsonl", pl.read_ndjson)):
            arguments = ["recommend", str(fitted), "--histories", str(tmp_path / "log.csv"), "--columns", "user=who"]
            assert main([*arguments, "-k", "4", "--out", str(tmp_path / name)]) == 0
            assert read(tmp_path / name)["item"].to_list() == table["item"].to_list()
        user = table["user"][0]
        history = shop.interaction_table.filter(pl.col("user") == user).sort("timestamp", maintain_order=True)["item"]
        alone, _ = load(fitted).recommend(history.to_list(), 4)
        assert table.filter(pl.col("user") == user)["item"].to_list() == alone.tolist()

    def test_inspect_a_run(self, fitted, capsys):
        assert main(["inspect", str(fitted), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {"distortion", "overlap"} <= set(found["levels"][0])
        assert main(["inspect", str(fitted / "model"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ids"] == found["ids"]

    def test_recipes(self, capsys):
        assert recipe_names()[0] == "resid"
        assert main(["recipes"]) == 0
        assert "famae → gaoq → onepass" in capsys.readouterr().out
        assert main(["recipes", "--json"]) == 0
        assert "resid-t5" in json.loads(capsys.readouterr().out)
        assert main(["recipes", "show", "resid"]) == 0
        assert capsys.readouterr().out == Recipe.read("resid").toml()

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("recommend {run} --history a -k 0", "k must be an integer from 1 to"),
            (
                "recommend {run} --histories x.csv --out x.txt",
                "x.txt: name a file that ends with .parquet, .csv, .jsonl or .ndjson",
            ),
            ("evaluate {run} --out {data}/items.parquet/x", "items.parquet is a file, so"),
            (
                "recommend {run} --histories x.csv --out {data}/items.parquet/x.parquet",
                "items.parquet is a file, so",
            ),
            ("evaluate {run} --cutoffs 5,5000", "a cutoff must be an integer from 1 to"),
            ("evaluate nowhere", "nowhere: there is no such folder"),
            ("generate {data} x.parquet --out {run}", "x.parquet: there is no such file"),
            ("fit {data} --out x --set encoder.kind=bert", "there is no encoder 'bert' (did you mean 'bert4rec'?)"),
            (
                "fit {data} --out x --recipe popularity --set recommender.epochs=2",
                "there is no setting 'epochs'; it has no settings",
            ),
            ("evaluate {run} --out {data}", "is a Dataset; choose another folder for the metrics"),
            (
                "fit {data} --out x --set quantizer.branching=100,100",
                "[quantizer] branching=(100, 100) has 10,000 leaves",
            ),
            ("recommend {run}", "give either --history B01,B02 or --histories FILE"),
            (
                "recommend {run} --history a --user ana",
                "--user: this model has no user embeddings; leave --user out",
            ),
            ("recommend {run} --histories x.csv --user ana", "--user needs --history"),
            ("recommend {run} --histories x.csv", "--histories needs --out FILE."),
            (
                "recommend {run} --history a --out x",
                "--out works with --histories only; for one --history, use --json.",
            ),
            ("recommend {run} --history a --deny nowhere.txt", "nowhere.txt: No such file or directory"),
            ("recommend {run} --histories nowhere.csv --out x.parquet", "nowhere.csv: there is no such file"),
            ("evaluate {run} --cutoffs 0", "--cutoffs: '0' must be positive integers"),
            ("evaluate {run}/model", "the Dataset of this model is unknown; give it with --data"),
            ("evaluate {data}", "data is a Dataset, not a model; create one with 'resid fit'"),
            ("inspect {data}", "data is a Dataset, not a model"),
            ("info {run}", "run is a run, not a Dataset; give what 'resid prepare' wrote"),
            (
                "info {data}/items.parquet",
                "items.parquet is a file, not a Dataset; run 'resid prepare' on tables first",
            ),
            ("prepare x.csv --out {run}", "run is a run; choose another folder"),
            ("fit {data} --out {data}", "is a Dataset; choose another folder"),
            ("fit {data} --out x --set encoder.epoch=1", "did you mean 'epochs'?"),
            ("fit {data} --out x --recipe resit", "did you mean 'resid'?"),
            ("encode {data} --out x --recipe popularity", "the recipe 'popularity' has no encoder"),
            ("demo --out {run}", "run is a run; choose another folder"),
            ("demo --out {data}", "is a Dataset; choose another folder"),
            (
                "fit {data} --out x --recipe sasrec --set recommender.learning_rate=1e400",
                "invalid value '1e400' for 'learning_rate': it must be a finite number",
            ),
            *(
                (command, "x.csv ends like a file, but it would be a folder; choose a name without .csv.")
                for command in (
                    "encode {data} --out x --embeddings x.csv",
                    "encode {data} --out x.csv",
                    "fit {data} --out x.csv",
                    "generate {data} --out x.csv",
                    "evaluate {run} --out x.csv",
                    "analyse overlap {run} --out x.csv",
                    "analyse branching {data} --out x.csv",
                    "compare {data} --recipes popularity --out x.csv",
                    "export {run} --format parquet --out x.csv",
                    "items remove {run} --items a --out x.csv",
                    "update {run} log.csv --out x.csv",
                    "update {run} log.csv --out x --save-data x.csv",
                    "download amazon-2023 Books --raw x.csv",
                    "demo --out x.csv",
                )
            ),
            ("analyse overlap {run} --out q/o.svg", "q/o.svg ends like a file, but it would be a folder"),
        ],
    )
    def test_what_cannot_be_done(self, fitted, prepared, capsys, tmp_path, monkeypatch, command, message):
        monkeypatch.chdir(tmp_path)
        assert main(command.format(run=fitted, data=prepared).split()) == 2
        assert message in capsys.readouterr().err
        assert not list(tmp_path.iterdir())  # nothing is left behind

    def test_a_baseline(self, prepared, tmp_path, capsys):
        assert main(["fit", str(prepared), "--out", str(tmp_path / "run"), "--recipe", "cooccurrence"]) == 0
        assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
        assert "decoding" not in json.loads(capsys.readouterr().out.splitlines()[-1])
        assert main(["evaluate", str(tmp_path / "run"), "--decoding", "exact"]) == 2
        assert "a CoOccurrence has no decoding 'exact'; only generators decode" in capsys.readouterr().err
        assert main(["recommend", str(tmp_path / "run"), "--history", "a", "--decoding", "free"]) == 2
        assert "a CoOccurrence has no decoding 'free'" in capsys.readouterr().err
        assert main(["inspect", str(tmp_path / "run")]) == 2
        assert "run is a CoOccurrence model, which has no semantic IDs; inspect a run of resid or tiger" in said(capsys)
