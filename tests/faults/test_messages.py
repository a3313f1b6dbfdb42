"""Errors of files name the path that the user gave, in plain words: no temporary names, no error numbers."""

import json

import pytest

from resid.cli import main
from resid.data import synthetic_shop

INTERNAL = (".partial", ".replaced", ".lock", ".tmp", "Errno", "os error", "Input should", "Traceback")
SCRIPT = """
import contextlib, io, json, subprocess
from resid.cli import main

def run(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main(command.split())
    return code, [line for line in said.getvalue().splitlines() if line.startswith("Error: ")]

recipe = "--recipe popularity"
for command in ("prepare log.parquet --k-core 3 --out data", f"fit data {recipe} --out run", f"fit data {recipe} --out small/run"):
    assert run(command)[0] == 0, command
subprocess.run(["mount", "-o", "remount,ro", "small"], check=True)
print(json.dumps({command: run(command) for command in (
    "prepare log.parquet --k-core 3 --out small/data",
    f"fit data {recipe} --out small/new",
    f"fit data {recipe} --out small/run",
    f"quantize data --out small/new",
    "evaluate run --out small/results",
    "evaluate small/run",
    "recommend run --histories log.parquet --out small/recs.csv",
)}))
"""


def test_a_disk_that_cannot_be_written(on_a_small_disk, tmp_path):
    shop = synthetic_shop(users=60, items=30, interactions=600, seed=3)
    shop.interaction_table.write_parquet(tmp_path / "log.parquet")
    found = json.loads(on_a_small_disk(SCRIPT, "3m").splitlines()[-1])
    for command, (code, said) in found.items():
        assert code == 2, command
        (sentence,) = said
        place = next(word for word in command.split() if word.startswith("small/"))
        assert sentence.startswith(f"Error: {place}"), (command, sentence)
        assert sentence.endswith(": cannot be written (read-only file system); choose another folder."), sentence
        assert not any(word in sentence for word in INTERNAL), sentence


@pytest.mark.parametrize("path", ["missing", "folder", "file.txt", "file.txt/below", "x" * 300])
@pytest.mark.parametrize(
    "command",
    [
        "info {}",
        "prepare {} --out out",
        "prepare {}.csv --out out",
        "prepare {}.parquet --out out",
        "prepare log.jsonl {}.jsonl --fields store --out out",
        "fit {} --out out",
        "fit data --recipe {} --out out",
        "fit data --recipe {}.toml --out out",
        "quantize data --embeddings {} --out out",
        "generate data {} --out out",
        "evaluate {}",
        "evaluate run --against {}",
        "recommend {} --history a",
        "recommend run --history a --allow {}",
        "recommend run --histories {} --out recs.csv",
        "inspect {}",
        "encode {} --out out",
        "similar {} --item a",
        "similar run --item {}",
        "export {} --format parquet --out out",
        "items list {}",
        "items add {} log.jsonl --out out",
        "items add run {}.jsonl --out out",
        "items remove run --file {} --out out",
        "update {} log.jsonl --out out",
        "update run {}.jsonl --out out",
        "compare {} --recipes popularity --out out",
        "compare data --recipes {}.toml --out out",
        "report {} --out report.html",
        "report run --out {}/report.txt",
        "analyse overlap {} --out out",
        "analyse branching {} --out out",
        "serve {}",
        "recipes show {}",
    ],
)
def test_paths_that_are_not_there(command, path, tmp_path, monkeypatch, capsys, prepared, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(prepared)
    (tmp_path / "run").symlink_to(run)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "log.jsonl").write_text('{"user": "u", "item": "i", "timestamp": 1}\n')
    arguments = [part.replace("{}", path) for part in command.split()]
    if main(arguments) == 0:
        assert command in ("recommend run --history a --allow {}", "items remove run --file {} --out out")
        assert path == "file.txt"  # an empty list of items
        return
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert not any(word in lines[0] for word in INTERNAL), lines[0]


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    assert main(["fit", str(prepared), "--recipe", "popularity", "--out", str(folder)]) == 0
    return folder
