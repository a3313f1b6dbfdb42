"""The command line: preparation, stages, errors."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

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
                   "--no-qualify-paths", "--unlisted-items", "missing", "--unseen-targets", "train", "--skip-bad-lines"]  # fmt: skip
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
        assert (settings.qualify_paths, settings.unlisted_items, settings.unseen_targets) == (False, "missing", "train")
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
        """With a smaller shop and a free port: it prints, writes a report, and serves the model and co-occurrence."""
        program = (
            "import functools, importlib, sys\nfrom resid.cli import main\ndemo = importlib.import_module('resid.cli.demo')\n"
            "demo._SHOP = {'users': 1_500, 'items': 400, 'interactions': 15_000}\n"
            "demo.run_service = functools.partial(demo.run_service, port=0)\nsys.exit(main(['demo', '--serve']))"
        )
        with (tmp_path / "printed").open("w+", encoding="utf-8") as printed:
            command = [sys.executable, "-c", program]
            child = subprocess.Popen(command, cwd=tmp_path, stdout=printed, stderr=subprocess.PIPE, text=True)
            address = next(found[1] for line in child.stderr if (found := re.match(r"Serving on (\S+);", line)))
            with urllib.request.urlopen(f"{address}/version", timeout=30) as answer:
                assert [model["name"] for model in json.load(answer)["models"]] == ["run", "cooccurrence"]
            child.terminate()
            child.communicate(timeout=60)
            assert child.returncode == 0
            printed.seek(0)
            shown = printed.read()
        monkeypatch.chdir(tmp_path)
        rows = re.findall(r"│ (popularity|co-occurrence|ReSID) +│ ([0-9.]+) │ ([0-9.]+) │ ([0-9.]+) │", shown)
        recall = {name: float(value) for name, _, value, _ in rows}
        assert recall["popularity"] < recall["co-occurrence"] < recall["ReSID"]
        assert shown.count("← the next item") == 2
        command = re.search(r"resid (recommend demo-shop/run --history \S+ -k 5)", shown)[1]  # what it says to try
        assert main([*command.split(), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["items"]) == 5
        assert "Open demo-shop/report.html in a browser" in shown
        assert "cooccurrence" in (tmp_path / "demo-shop" / "report.html").read_text(encoding="utf-8")
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
        arguments = ("encode", prepared, "--out", tmp_path / "run", "--set", "encoder.epochs=1")
        for change, message in (
            (
                "encoder.wide=3",
                "[encoder] there is no setting 'wide' (did you mean 'width'?); available settings: epochs",
            ),
            ("width", "--set: 'width' does not have the form name=value"),
            ("encoder.dropout=2", "[encoder] invalid value '2' for 'dropout'"),
            ("encoder.width=30", "[encoder] width=30 must be a multiple of heads=4"),
            ("encoder.hidden=30", "[encoder] the setting 'hidden' is now called 'ffn_width'"),
        ):
            self.refused(capsys, message, *arguments, "--set", change)
        self.refused(capsys, "is a Dataset; choose another folder", "encode", prepared, "--out", prepared)
        self.refused(capsys, "not a Dataset", "encode", tmp_path, "--out", tmp_path / "run")
        for command in ("encode", "quantize"):
            message = (
                "[encoder] 'unger' also reads the text vectors of another encoder; fit a recipe that has both with"
            )
            self.refused(capsys, message, command, prepared, "--out", tmp_path / "run", "--recipe", "unger")
        assert not (tmp_path / "run").exists()
        self.refused(capsys, "there is no tracker 'excel'", *arguments, "--track", "excel")

    def test_quantize_generate_and_inspect(self, prepared, shop, tmp_path, capsys):
        run, ids, vectors = tmp_path / "run", tmp_path / "ids.parquet", tmp_path / "vectors"
        small = [f"--set=encoder.{change}" for change in ("epochs=1", "width=16", "ffn_width=16")]
        assert main([*map(str, ("encode", prepared, "--out", run, "--embeddings", vectors)), *small]) == 0
        capsys.readouterr()
        arguments = ("quantize", prepared, "--out", run, *small)
        for change, message in (
            ("quantizer.branching=a,b", "[quantizer] invalid value 'a' for 'branching'"),
            ("quantizer.branching=99,99", "[quantizer] branching=(99, 99) has 9,801 leaves"),
            ("quantizer.kind=kmeans", "there is no quantizer 'kmeans' (did you mean 'rq-kmeans'?)"),
            ("quantizer.seed=-1", "[quantizer] invalid value '-1' for 'seed'"),
        ):
            self.refused(capsys, message, *arguments, "--set", change)
        self.refused(capsys, "name a file that ends with .parquet", *arguments, "--ids", tmp_path)
        self.refused(capsys, "ids.txt: name a file that ends with .parquet", *arguments, "--ids", tmp_path / "ids.txt")
        self.refused(
            capsys, "would be the run's folder; write the IDs with --ids", "quantize", prepared, "--out", "ids.csv"
        )
        self.refused(capsys, "there are no valid item embeddings here", *arguments, "--embeddings", prepared)
        self.refused(capsys, "there is no such file", "inspect", ids)
        self.refused(capsys, "has no valid semantic IDs", "inspect", vectors / "weights.safetensors")
        self.refused(capsys, "this run has no semantic IDs yet", "inspect", run)
        other = tmp_path / "other"
        synthetic = synthetic_shop(users=100, items=40, interactions=900, seed=5)
        Dataset.from_tables(synthetic.interaction_table, synthetic.item_table, ["store"]).save(other)
        self.refused(
            capsys, "embeddings of another Dataset", "quantize", other, "--out", tmp_path / "x", "--embeddings", vectors
        )
        self.refused(capsys, "this is a run on another Dataset", "quantize", other, "--out", run)

        assert main([*map(str, arguments), "--ids", str(ids), "--json"]) == 0
        captured = capsys.readouterr()
        assert "Encoder: reusing famae" in captured.err  # what 'resid encode' fitted
        found = json.loads(captured.out)
        assert found["unique"] == 1
        assert [level["level"] for level in found["levels"]] == [1, 2, 3]
        assert pl.read_parquet(ids)["item"].to_list() == Dataset.load(prepared).item_ids.to_list()
        for name, read in (("ids.csv", pl.read_csv), ("ids.jsonl", pl.read_ndjson)):
            assert main([*map(str, arguments), "--ids", str(tmp_path / name), "--json"]) == 0
            assert read(tmp_path / name).rows() == pl.read_parquet(ids).rows()
        capsys.readouterr()
        few = ["quantize", str(prepared), "--out", str(tmp_path / "few"), "--embeddings", str(vectors)]
        few += [f"--set=quantizer.{change}" for change in ("kind=rq-kmeans", "codebook_size=2", "n_levels=2")]
        for collisions in ("deduplicate", "keep"):
            assert main([*few, f"--set=quantizer.collisions={collisions}", "--json"]) == 0
            quality = json.loads(capsys.readouterr().out)
            assert (quality["unique"] == 1) == bool(quality["before_deduplication"]) == (collisions == "deduplicate")
        for source in ((ids, "--embeddings", vectors, "--data", prepared), (run,)):
            assert main(["inspect", *map(str, source), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["levels"] == found["levels"]
        assert main(["inspect", str(ids)]) == 0
        shown = capsys.readouterr().out
        assert "entropy given the prefix" in shown
        assert "target's code" not in shown
        self.refused(capsys, "IDs of other items", "inspect", ids, "--data", other)

        tiny = [f"--set=generator.{change}" for change in ("width=16", "ffn_width=16", "layers=1", "epochs=1")]
        for kind in ("onepass", "t5"):
            own = tmp_path / kind
            command = (
                "generate",
                prepared,
                ids,
                "--out",
                own,
                "--embeddings",
                vectors,
                "--set",
                f"generator.kind={kind}",
            )
            assert main([*map(str, command), *tiny, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["epochs"] == 1
            assert main([*map(str, command), *tiny]) == 0
            assert f"Generator: reusing {kind}" in capsys.readouterr().err
            assert main(["evaluate", str(own), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["decoding"] == "beam"
        again = tmp_path / "again"
        Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"]).save(again)
        self.refused(capsys, "these IDs belong to another Dataset", "generate", again, ids, "--out", tmp_path / "x")
        self.refused(capsys, "IDs of other items", "generate", other, ids, "--out", tmp_path / "x")
        content = (vectors / "weights.safetensors").read_bytes()
        (vectors / "weights.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self.refused(capsys, "weights.safetensors: missing or altered", *arguments, "--embeddings", vectors)
        assert (
            main([*map(str, arguments), "--set", "quantizer.kind=rq-kmeans", "--set", "quantizer.codebook_size=9"]) == 0
        )
        shown = capsys.readouterr().out.replace("\n", " ")
        assert "100.0% of the items with a unique ID" in shown
        assert "Before deduplication" in shown

    def test_fit_finds_the_stages_of_single_commands(self, prepared, tmp_path, capsys):
        """And single commands find those of fit: all stand on the same primitive."""
        tiny = [f"--set={s}.{c}" for s in ("encoder", "generator") for c in ("epochs=1", "width=16", "ffn_width=16")]
        for first, then in (("quantize", "fit"), ("fit", "quantize")):
            run = str(tmp_path / first)
            assert main([first, str(prepared), "--out", run, *tiny]) == 0
            capsys.readouterr()
            assert main([then, str(prepared), "--out", run, *tiny]) == 0
            said = capsys.readouterr().err
            assert "Encoder: reusing famae" in said
            assert "Quantizer: reusing gaoq" in said
            assert main(["encode", str(prepared), "--out", run, *tiny]) == 0
            assert "Encoder: reusing famae" in capsys.readouterr().err

    def test_bad_table(self, tables, tmp_path, capsys):
        pl.read_parquet(tables[0]).with_columns(user=pl.lit(None, pl.String)).write_csv(tmp_path / "[log].csv")
        out = tmp_path / "data"
        self.refused(capsys, "[log].csv, column 'user': missing value in 3,000 rows, first in rows 1, 2, 3",
                     "prepare", tmp_path / "[log].csv", tables[1], "--fields", "store", "--out", out)  # fmt: skip
        assert not out.exists()
        assert sorted(os.listdir(tmp_path)) == ["[log].csv", "items.parquet", "log.parquet"]

    def test_bad_lines(self, log, tmp_path, capsys):
        path = tmp_path / "log.jsonl.gz"
        path.write_bytes(gzip.compress(f"{log.write_ndjson()}oops\n".encode()))
        out = tmp_path / "data"
        self.refused(capsys, "line 37: not a JSON object", "prepare", path, "--out", out)
        assert main(["prepare", str(path), "--out", str(out), "--skip-bad-lines"]) == 0
        assert "Invalid lines (skipped): 1" in capsys.readouterr().out

    def test_foreign_folder(self, tables, tmp_path, capsys):
        self.refused(capsys, "the folder exists and was not written by resid",
                     "prepare", *tables, "--fields", "store", "--out", tmp_path)  # fmt: skip

    def test_amazon(self, tmp_path, capsys):
        out = ("--out", tmp_path / "data")
        self.refused(capsys, "unknown data set 'amazon-1999'", "prepare", "amazon-1999", "Books", *out)
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
        self.refused(
            capsys, "is a file, so the folder", "prepare", *tables, "--fields", "store", "--out", tables[0] / "data"
        )
        self.refused(capsys, "log.parquet is a file", "download", "amazon-2023", "Books", "--raw", tables[0])

    def test_usage(self, tmp_path, capsys):
        self.refused(capsys, "--out is missing", "prepare", "log.csv")
        self.refused(
            capsys, "--columns: 'user' does not have the form", "prepare", "log.csv", "--columns", "user", "--out", "x"
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
