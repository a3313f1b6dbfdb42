"""The command as a user types it, most of it in a process of its own."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from resid import Dataset
from resid.cli import main
from resid.data import synthetic_shop

RESID = Path(sys.executable).with_name("resid")


def run(*arguments, cwd=None):
    return subprocess.run([RESID, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def tables(shop, tmp_path):
    shop.interaction_table.write_parquet(tmp_path / "log.parquet")
    shop.item_table.write_parquet(tmp_path / "items.parquet")
    return tmp_path / "log.parquet", tmp_path / "items.parquet"


class TestCommands:
    def test_prepare_and_info(self, tables, tmp_path, capsys):
        out = tmp_path / "data"
        assert main(["prepare", *map(str, tables), "--fields", "store,categories", "--out", str(out)]) == 0
        shown = capsys.readouterr().out
        assert "5-core" in shown
        assert "3,000" in shown
        assert main(["info", str(out)]) == 0
        shown = capsys.readouterr().out
        assert "cat3" in shown
        assert "█" in shown
        assert main(["info", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == Dataset.load(out).info()

    def test_every_option_reaches_the_settings(self, tables, tmp_path, capsys):
        log, items = tables
        pl.read_parquet(log).rename({"user": "who"}).write_csv(tmp_path / "log.csv")
        options = ["--fields", "store,categories", "--columns", "user=who", "--keep", "price", "--k-core", "4",
                   "--missing", "keep", "--min-interactions", "4", "--max-length", "9", "--path-levels", "2",
                   "--no-qualify-paths", "--unlisted-items", "missing", "--add-unseen-targets", "--skip-bad-lines"]  # fmt: skip
        arguments = [
            "prepare",
            str(tmp_path / "log.csv"),
            str(items),
            *options,
            "--out",
            str(tmp_path / "data"),
            "--json",
        ]
        assert main(arguments) == 0
        settings = Dataset.load(tmp_path / "data").settings
        assert settings.fields == ("store", "categories")
        assert (settings.keep, settings.k_core, settings.missing) == (("price",), 4, "keep")
        assert (settings.min_interactions, settings.max_length, settings.path_levels) == (4, 9, 2)
        assert (settings.qualify_paths, settings.unlisted_items, settings.add_unseen_targets) == (
            False,
            "missing",
            True,
        )
        facts = json.loads(capsys.readouterr().out)
        assert facts["fingerprint"] == Dataset.load(tmp_path / "data").fingerprint

    def test_amazon_beside_the_paper(self, shop, tmp_path, capsys):
        shop.write_amazon_2023(tmp_path / "raw", "Video_Games")
        arguments = [
            "prepare",
            "amazon-2023",
            "Video_Games",
            "--raw",
            str(tmp_path / "raw"),
            "--out",
            str(tmp_path / "vg"),
        ]
        assert main(arguments) == 0
        assert "24,685" in capsys.readouterr().out
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["paper"]["users"] == 94_515

    def test_demo(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setitem(
            vars(sys.modules["resid.cli.demo"]), "_SHOP", {"users": 1_500, "items": 400, "interactions": 15_000}
        )
        monkeypatch.chdir(tmp_path)
        assert main(["demo"]) == 0
        shown = capsys.readouterr().out
        rows = re.findall(r"│ (popularity|co-occurrence|ReSID) +│ ([0-9.]+) │ ([0-9.]+) │ ([0-9.]+) │", shown)
        recall = {name: float(value) for name, _, value, _ in rows}
        assert recall["popularity"] < recall["co-occurrence"] < recall["ReSID"]
        assert shown.count("← what came next") == 2
        command = re.search(r"resid (recommend demo-shop/run --history \S+ -k 5)", shown)[1]  # what it says to try
        assert main([*command.split(), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["items"]) == 5
        assert Dataset.load(tmp_path / "demo-shop" / "data").field_names == ("store", "cat1", "cat2", "cat3")

    def test_output_that_nobody_reads_or_can_show(self, tables, tmp_path):
        assert run("prepare", *tables, "--fields", "store", "--out", tmp_path / "data").returncode == 0
        for command in (f"{RESID} info data --json | true", f"PYTHONIOENCODING=ascii {RESID} info data"):
            answer = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
            assert answer.stderr == ""
            assert answer.returncode == 0

    def test_version(self):
        assert run("--version").stdout.startswith("0.")


class TestBadInput:
    """One sentence on standard error, exit code 2, and nothing left behind."""

    def refused(self, capsys, match, *arguments):
        assert main(list(map(str, arguments))) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        errors = [line for line in captured.err.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1
        assert match in errors[0]

    def test_encode(self, prepared, tmp_path, capsys):
        arguments = ("encode", prepared, "--out", tmp_path / "run", "--epochs", 1)
        self.refused(
            capsys,
            "there is no setting 'wide' (did you mean 'width'?); there are epochs",
            *arguments,
            "--set",
            "wide=3",
        )
        self.refused(capsys, "--set: 'width' is not of the form name=value", *arguments, "--set", "width")
        self.refused(capsys, "the setting 'dropout' cannot be '2'", *arguments, "--set", "dropout=2")
        self.refused(capsys, "must be a multiple of the heads", *arguments, "--set", "width=30")
        self.refused(capsys, "there is no tracker 'excel'", *arguments, "--track", "excel")
        self.refused(capsys, "this is a Dataset; choose another folder", "encode", prepared, "--out", prepared)
        self.refused(capsys, "not a Dataset", "encode", tmp_path, "--out", tmp_path / "run")
        small = ("--set", "width=16", "--set", "hidden=16")
        assert main([*map(str, arguments), *small]) == 0
        capsys.readouterr()
        self.refused(capsys, "a run of another configuration", *arguments, *small, "--seed", 1)

    def test_quantize_and_inspect(self, prepared, shop, tmp_path, capsys):
        run, ids = tmp_path / "run", tmp_path / "ids.parquet"
        small = ("--epochs", 1, "--set", "width=16", "--set", "hidden=16")
        assert main([*map(str, ("encode", prepared, "--out", run, *small))]) == 0
        capsys.readouterr()
        vectors = run / "embeddings"
        arguments = ("quantize", prepared, vectors, "--out", ids)
        self.refused(capsys, "--branching: 'a,b' must be numbers", *arguments, "--branching", "a,b")
        self.refused(capsys, "branching=(99, 99) makes 9,801 leaves", *arguments, "--branching", "99,99")
        self.refused(capsys, "have one size, not (3, 4)", *arguments, "--method", "rq-kmeans", "--branching", "3,4")
        self.refused(capsys, "this is a folder; name a file", "quantize", prepared, vectors, "--out", tmp_path)
        self.refused(capsys, "no whole embeddings are here", "quantize", prepared, prepared, "--out", ids)
        self.refused(capsys, "the setting 'seed' cannot be -1", *arguments, "--seed", "-1")
        self.refused(capsys, "--branching: '' must be numbers", *arguments, "--branching=")
        self.refused(
            capsys, "holds no semantic IDs; choose another name", *arguments[:3], "--out", vectors / "vectors.npy"
        )
        self.refused(capsys, "nothing can be written there", *arguments[:3], "--out", "/proc/x/ids.parquet")
        self.refused(capsys, "there is no such file", "inspect", ids)
        self.refused(capsys, "no semantic IDs are here", "inspect", vectors / "vectors.npy")
        assert not ids.exists()
        other = tmp_path / "other"
        synthetic = synthetic_shop(users=100, items=40, interactions=900, seed=5)
        Dataset.from_tables(synthetic.interaction_table, synthetic.item_table, ["store"]).save(other)
        self.refused(capsys, "embeddings of another Dataset", "quantize", other, vectors, "--out", ids)

        assert main([*map(str, arguments), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["unique"] == 1
        assert [level["level"] for level in found["levels"]] == [1, 2, 3]
        items = pl.read_parquet(ids)["item"].to_list()
        assert items == Dataset.load(prepared).item_ids.to_list()
        assert main(["inspect", str(ids), "--embeddings", str(vectors), "--data", str(prepared), "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["levels"] == found["levels"]
        assert main(["inspect", str(ids)]) == 0
        shown = capsys.readouterr().out
        assert "entropy given the prefix" in shown
        assert "overlap" not in shown
        self.refused(capsys, "IDs of other items", "inspect", ids, "--data", other)
        assert main([*map(str, ("encode", prepared, "--out", tmp_path / "run2", *small, "--seed", 1))]) == 0
        capsys.readouterr()
        self.refused(
            capsys, "made of other embeddings", "inspect", ids, "--embeddings", tmp_path / "run2"
        )  # the run's folder
        tiny = ("--set", "width=16", "--set", "hidden=16", "--set", "layers=1", "--set", "epochs=1")
        for model, options in (("onepass", ("--embeddings", run)), ("t5", ())):
            command = ("generate", prepared, ids, "--out", tmp_path / model, "--model", model, *options, *tiny)
            assert main([*map(str, command), "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["reads"] == (["codes", "vectors", "items"] if model == "onepass" else ["codes"])
            low, high = found["test"]["intervals"]["recall@10"]
            assert low <= found["test"]["recall@10"] <= high
            assert main([*map(str, command)]) == 0  # finished already
            assert "Whole catalogue, seen items kept" in capsys.readouterr().out
            self.refused(capsys, "another configuration, 'dropout' was", *command, "--set", "dropout=0.5")
            assert main(["evaluate", str(tmp_path / model), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["seen_kept"]["recall@10"] == found["test"]["recall@10"]
            assert found["writes"] == (["codes", "vectors"] if model == "onepass" else ["codes"])
            self.refused(capsys, "a single stage was trained here", "fit", prepared, "--out", tmp_path / model)
            assert main(["inspect", str(tmp_path / model), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["items"] == len(items)
        (tmp_path / "mine" / "training").mkdir(parents=True)
        (tmp_path / "mine" / "training" / "log.csv").write_text("a")
        for command_ in ("encode", "generate"):
            inputs = (prepared, ids) if command_ == "generate" else (prepared,)
            self.refused(
                capsys, "not a folder that resid wrote (it has log.csv)", command_, *inputs, "--out", tmp_path / "mine"
            )
        again = tmp_path / "again"
        Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"]).save(again)
        self.refused(capsys, "IDs were made for another Dataset", "generate", again, ids, "--out", tmp_path / "x")
        self.refused(capsys, "there is no setting 'wide'", *command, "--set", "wide=3")
        self.refused(capsys, "IDs of other items", "generate", other, ids, "--out", tmp_path / "x")
        altered = np.load(vectors / "vectors.npy")
        np.save(vectors / "vectors.npy", altered[::-1])
        self.refused(capsys, "not what its checksum says", *arguments)
        np.save(vectors / "vectors.npy", altered)
        for method in ("hierarchical", "rq-kmeans"):
            options = ("--method", method, "--branching", "9", "--seed", "1")
            assert main([*map(str, arguments), *options]) == 0
            shown = capsys.readouterr().out.replace("\n", " ")
            assert "100.0% of the items alone" in shown
            assert ("Before the last level" in shown) == (method == "rq-kmeans")

    def test_bad_table(self, tables, tmp_path, capsys):
        pl.read_parquet(tables[0]).with_columns(user=pl.lit(None, pl.String)).write_csv(tmp_path / "[log].csv")
        out = tmp_path / "data"
        self.refused(capsys, "[log].csv, column 'user': missing in 3,000 rows, first in rows 1, 2, 3",
                     "prepare", tmp_path / "[log].csv", tables[1], "--fields", "store", "--out", out)  # fmt: skip
        assert not out.exists()
        assert sorted(os.listdir(tmp_path)) == ["[log].csv", "items.parquet", "log.parquet"]

    def test_bad_lines(self, log, tmp_path, capsys):
        path = tmp_path / "log.jsonl.gz"
        path.write_bytes(gzip.compress(f"{log.write_ndjson()}oops\n".encode()))
        out = tmp_path / "data"
        self.refused(capsys, "line 37: not a JSON object", "prepare", path, "--out", out)
        assert main(["prepare", str(path), "--out", str(out), "--skip-bad-lines"]) == 0
        assert "Bad lines, skipped: 1" in capsys.readouterr().out

    def test_foreign_folder(self, tables, tmp_path, capsys):
        self.refused(capsys, "exists and is not a folder that resid wrote",
                     "prepare", *tables, "--fields", "store", "--out", tmp_path)  # fmt: skip

    def test_amazon(self, tmp_path, capsys):
        out = ("--out", tmp_path / "data")
        self.refused(capsys, "'amazon-1999' is not known", "prepare", "amazon-1999", "Books", *out)
        self.refused(capsys, "name the category", "prepare", "amazon-2023", *out)
        self.refused(capsys, "there is no Books.csv.gz", "prepare", "amazon-2023", "Books", "--raw", tmp_path, *out)
        self.refused(capsys, "cannot be reached", "download", "amazon-2023", "Books", "--raw", tmp_path,
                     "--mirror", "http://127.0.0.1:1")  # fmt: skip

    def test_a_file_may_be_called_amazon(self, log, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        log.write_csv("amazon-log.csv")
        assert main(["prepare", "amazon-log.csv", "--out", "data"]) == 0

    def test_amazon_options(self, tmp_path, capsys):
        self.refused(
            capsys, "leave --fields", "prepare", "amazon-2023", "Books", "--fields", "store", "--out", tmp_path / "d"
        )

    def test_the_operating_system_objects(self, tables, tmp_path, capsys):
        self.refused(capsys, "this is a file", "prepare", *tables, "--fields", "store", "--out", tables[0] / "data")
        self.refused(capsys, "log.parquet: this is a file", "download", "amazon-2023", "Books", "--raw", tables[0])

    def test_usage(self, tmp_path, capsys):
        self.refused(capsys, "--out is missing", "prepare", "log.csv")
        self.refused(
            capsys, "--columns: 'user' is not of the form", "prepare", "log.csv", "--columns", "user", "--out", "x"
        )
        self.refused(capsys, "not a Dataset", "info", tmp_path)


def test_killed_half_way_leaves_nothing_and_starts_again(tmp_path):
    synthetic_shop(60_000, 5_000, 600_000).write_amazon_2023(tmp_path / "raw", "Shop")
    command = ["prepare", "amazon-2023", "Shop", "--raw", tmp_path / "raw", "--out", tmp_path / "out" / "data"]
    for sign, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with subprocess.Popen([RESID, *map(str, command)], stderr=subprocess.PIPE) as process:
            assert process.stderr.readline()  # it has begun to read
            time.sleep(0.3)
            process.send_signal(sign)
            said = process.stderr.read().decode()
            assert "Traceback" not in said
            assert ("Interrupted" in said) == (sign != signal.SIGKILL)
        assert process.returncode == code
        assert not (tmp_path / "out" / "data").exists()
    assert run(*command).returncode == 0
    assert os.listdir(tmp_path / "out") == ["data"]
