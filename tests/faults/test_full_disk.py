"""A full disk: every command that writes leaves the old files as they were, and says in one sentence what is wrong."""

import json
import os

import pytest

from tests.faults.commands import COMMANDS, PROGRAM, SEVERAL, named, write_inputs
from tests.faults.counts import COUNTS
from tests.faults.test_messages import INTERNAL
from tests.forks import ROOT

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "0"))
FREE = tuple(range(0, 4_096 * min(TRIALS, 80), 4_096)) or (0, 20_000)  # bytes; a page of a tmpfs has 4,096
pytestmark = pytest.mark.timeout(300 + 30 * len(FREE))

NAMED = named(COMMANDS, of="small/", to="small/")
OFTEN = ("prepare", "encode", "quantize", "fit", "evaluate", "recommend", "recommend to CSV")

SCRIPT = (
    PROGRAM
    + """
import contextlib, io, json, os, shutil, subprocess
from pathlib import Path
from resid.runs import read_run

small, old, filler = Path("small"), Path("old"), Path("small/filler")

def run(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main(command.split())
    return code, said.getvalue()

def files():
    return {str(path): path.read_bytes() for path in sorted(small.rglob("*")) if path.is_file() and path != filler}

for first, _ in NAMED.values():
    assert run(first)[0] == 0, first
shutil.copytree(small, old)
found, refused = [], {}
for name, (_, command) in NAMED.items():
    for free in LEFT if name in OFTEN else LEFT[:MOST]:
        for path in small.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(old, small, dirs_exist_ok=True)
        before, space = files(), os.statvfs(small)
        filler.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - free)))
        code, said = run(command)
        after = files()
        found.append({
            "name": name, "command": command, "free": free, "code": code,
            "errors": [line for line in said.splitlines() if line.startswith("Error: ")], "traceback": "Traceback" in said,
            "changed": [path for path in before if after.get(path) != before[path] and not path.endswith("run.json")],
            "broken": [path for path, content in after.items() if not is_whole(path, content)],
            "left": [path for path in after if ".partial" in path or ".tmp" in path or ".replaced" in path],
            "runs": all(read_run(path.parent) for path in small.glob("*/run.json")),
        })
    filler.unlink()
    assert run(command)[0] == 0, command  # with space, it continues
subprocess.run(["mount", "-o", "remount,ro", "small"], check=True)
for name, (_, command) in NAMED.items():
    refused[name] = run(command)
print(json.dumps([found, refused]))
"""
)


def test_every_command_leaves_the_old_files(on_a_small_disk, tmp_path):
    """With more space from trial to trial, the disk is full at one write after the other; at the end it cannot be written at all."""
    write_inputs(tmp_path)
    values = {"NAMED": NAMED, "OFTEN": OFTEN, "LEFT": FREE, "MOST": len(FREE) if TRIALS else 1}
    head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    script = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.faults.commands import is_whole\n{head}{SCRIPT}"
    )
    found, refused = json.loads(on_a_small_disk(script, "8m").splitlines()[-1])
    COUNTS["commands on a full disk"] += sum(trial["code"] != 0 for trial in found)
    assert {trial["name"] for trial in found if trial["code"] == 2} == set(NAMED)
    for trial in found:
        assert not trial["left"], trial
        assert not trial["broken"], trial
        assert not trial["traceback"], trial
        assert trial["runs"], trial
        if trial["code"] == 0:  # what was free was enough
            continue
        assert trial["code"] == 2, trial
        assert trial["changed"] == [] or trial["name"] in SEVERAL, trial
        (sentence,) = trial["errors"]
        if "run failed" in sentence:  # a process of a comparison; the others go on
            assert "small/compared/table.md says why" in sentence, trial
            continue
        assert sentence.startswith("Error: small/"), trial
        assert ": the disk is full; free some space or choose another folder, and run it again." in sentence, trial
        assert not any(word in sentence for word in INTERNAL), trial
    COUNTS["commands on a disk that cannot be written"] += len(refused)
    for name, (code, said) in refused.items():
        (sentence,) = [line for line in said.splitlines() if line.startswith("Error: ")]
        assert code == 2, (name, said)
        assert sentence.startswith("Error: small/"), (name, said)
        assert sentence.endswith(": cannot be written (read-only file system); choose another folder."), (name, said)
        assert not any(word in sentence for word in INTERNAL), (name, said)


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
