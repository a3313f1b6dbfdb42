"""A full disk: every command that writes leaves the old files as they were, and says in one sentence what is wrong."""

import json
import os

import pytest

from resid.data import synthetic_shop
from tests.faults.counts import COUNTS

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "0"))
FREE = tuple(range(0, 4_096 * min(TRIALS, 80), 4_096)) or (0, 20_000)  # bytes; a page of a tmpfs has 4,096
pytestmark = pytest.mark.timeout(300 + 30 * len(FREE))

SCRIPT = """
import contextlib, io, json, os, shutil
from pathlib import Path
from resid.cli import main
from resid.runs import read_run

small, old, filler = Path("small"), Path("old"), Path("small/filler")
tiny = "--set encoder.kind=sasrec --set encoder.width=8 --set encoder.ffn_width=8 --set encoder.layers=1 " \\
       "--set encoder.heads=1 --set encoder.epochs=1"
codes = "--set quantizer.codebook_size"
model = "--recipe sasrec --set recommender.width=8 --set recommender.ffn_width=8 --set recommender.layers=1 " \\
        "--set recommender.heads=1 --set recommender.epochs=1"
COMMANDS = [  # a command, and the option that makes it write something else
    ("prepare log.parquet --k-core 3 --out small/data", "--max-length 9"),
    (f"encode small/data --out small/steps --embeddings small/vectors {tiny}", "--seed 1"),
    (f"quantize small/data --out small/steps --ids small/ids.parquet --embeddings small/vectors "
     f"--set quantizer.kind=rq-kmeans {codes}=5", f"{codes}=4"),
    (f"fit small/data --out small/run {model}", "--seed 1"),
    ("evaluate small/run", "--cutoffs 3"),
    *((f"recommend small/run --histories log.parquet --out small/recs.{suffix}", "-k 5") for suffix in ("parquet", "csv")),
]

def run(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main(command.split())
    return code, said.getvalue()

def files():
    return {str(path): path.read_bytes() for path in sorted(small.rglob("*")) if path.is_file() and path != filler}

for command, _ in COMMANDS:
    assert run(command)[0] == 0, command
shutil.copytree(small, old)
found = []
for command, change in COMMANDS:
    for free in LEFT:
        for path in small.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(old, small, dirs_exist_ok=True)
        before, space = files(), os.statvfs(small)
        filler.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - free)))
        code, said = run(f"{command} {change}")
        after = files()
        found.append({
            "command": command, "free": free, "code": code,
            "errors": [line for line in said.splitlines() if line.startswith("Error: ")], "traceback": "Traceback" in said,
            "changed": [name for name in before if after.get(name) != before[name] and not name.endswith("run.json")],
            "left": [name for name in after if ".partial" in name or ".tmp" in name or ".replaced" in name],
            "runs": all(read_run(path.parent) for path in small.glob("*/run.json")),
        })
    filler.unlink()
    assert run(f"{command} {change}")[0] == 0, command  # with space, it continues
print(json.dumps(found))
"""


@pytest.fixture
def log_table(tmp_path):
    shop = synthetic_shop(users=60, items=30, interactions=600, seed=3)
    shop.interaction_table.write_parquet(tmp_path / "log.parquet")


@pytest.mark.usefixtures("log_table")
def test_every_command_leaves_the_old_files(on_a_small_disk):
    """With more space from trial to trial, the disk is full at one write after the other."""
    found = json.loads(on_a_small_disk(SCRIPT.replace("LEFT", str(FREE)), "3m").splitlines()[-1])
    COUNTS["commands on a full disk"] += sum(trial["code"] != 0 for trial in found)
    assert {trial["command"].split()[0] for trial in found if trial["code"] == 2} == {
        "prepare",
        "encode",
        "quantize",
        "fit",
        "evaluate",
        "recommend",
    }
    for trial in found:
        assert not trial["left"], trial
        assert not trial["traceback"], trial
        assert trial["runs"], trial
        if trial["code"] == 0:  # what was free was enough
            continue
        assert trial["code"] == 2, trial
        assert trial["changed"] == [], trial
        (sentence,) = trial["errors"]
        assert sentence.startswith("Error: small/"), trial
        assert ": the disk is full; free some space or choose another folder, and run it again." in sentence, trial
        assert not any(word in sentence for word in (".partial", ".lock", "Errno")), trial


def test_a_folder_that_cannot_be_written(on_a_small_disk):
    """The message names the path that the user gave, not a temporary file."""
    script = """
import subprocess
from pathlib import Path
import polars as pl
from resid import InputError
from resid.core.artifact import Artifact, write_artifact
from resid.core.files import write_text
from resid.core.locks import exclusive
from resid.core.tables import write_table
from resid.train.checkpoint import save_checkpoint
subprocess.run(["mount", "-o", "remount,ro", "small"], check=True)
for write in (
    lambda: write_text(Path("small/a.txt"), "a"),
    lambda: write_text(Path("small/new/a.txt"), "a"),
    lambda: write_table(Path("small/a.parquet"), pl.DataFrame({"a": [1]})),
    lambda: write_table(Path("small/a.csv"), pl.DataFrame({"a": [1]})),
    lambda: save_checkpoint(Path("small/a.safetensors"), {}, {}),
    lambda: write_artifact("small/model", Artifact("encoder", "a", 1)),
    lambda: exclusive(Path("small/run")).__enter__(),
):
    try:
        write()
    except InputError as error:
        print(error)
"""
    names = ["a.txt", "new/a.txt", "a.parquet", "a.csv", "a.safetensors", "model", "run"]
    assert on_a_small_disk(script, "64k").splitlines() == [
        f"small/{name}: cannot be written (read-only file system); choose another folder." for name in names
    ]
