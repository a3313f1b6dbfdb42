"""Commands that are stopped at random moments, by SIGKILL, SIGTERM or SIGINT, and run again.

Nothing that was there is damaged, nothing is half-written, and in the end the files are, bit for bit, those of commands that
were not stopped. ``RESID_FAULT_TRIALS=50 pytest tests/faults/test_kills.py`` stops every command and the training of every
recipe so many times; without it, a short selection.
"""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from resid import Dataset, InputError
from resid.methods.recipe import Recipe, recipe_names
from tests.faults.commands import COMMANDS, PROGRAM, is_whole, named, write_inputs
from tests.faults.counts import COUNTS

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "0"))
pytestmark = pytest.mark.timeout(3_600 + 600 * TRIALS)  # the server itself ends commands that hang

RESID = f"{PROGRAM}sys.exit(main(sys.argv[1:]))"
RECIPES = recipe_names() if TRIALS else ("resid", "sasrec")
SIGNALS = {signal.SIGKILL: (-signal.SIGKILL,), signal.SIGTERM: (143, -signal.SIGTERM), signal.SIGINT: (130,)}
# Applied to every part that has a setting of this name, so that a new recipe needs nothing here.
SMALL = {
    "epochs": 2,
    "pretrain_epochs": 1,
    "layers": 1,
    "heads": 2,
    "width": 16,
    "ffn_width": 16,
    "validation_users": 20,
    "batch_size": 128,
}
OFTEN = ("prepare", "encode", "quantize", "generate", "fit", "evaluate", "recommend", "recommend to CSV")
KILLED = named(COMMANDS)


@pytest.fixture(scope="module")
def begun(server, tmp_path_factory):
    """A folder in which every command was run once."""
    folder = tmp_path_factory.mktemp("kills")
    write_inputs(folder)
    for command, _ in KILLED.values():
        finish(server, command.split(), folder)
    return folder


def finish(server, arguments, folder):
    outcome = server.run(arguments, folder, program=RESID)
    assert outcome.code == 0, f"{arguments}\n{outcome.said}"
    return outcome


def stop_somewhere(server, arguments, folder, whole, rng):
    """Run a command and stop it at a random moment; return whether it was stopped before its end."""
    number = list(SIGNALS)[rng.integers(len(SIGNALS))]
    if rng.random() < 0.5:
        stop = {"signal": number, "before": int(rng.integers(whole.changes))}
    else:
        stop = {"signal": number, "after": float(rng.uniform(0, whole.seconds))}
    outcome = server.run(arguments, folder, stop, program=RESID)
    assert outcome.code in (0, *SIGNALS[number]), f"{arguments} {stop}\n{outcome.said}"
    assert "Traceback" not in outcome.said, f"{arguments} {stop}\n{outcome.said}"
    assert "Exception ignored" not in outcome.said, f"{arguments} {stop}\n{outcome.said}"
    stopped = outcome.code != 0
    COUNTS[f"kills by {signal.Signals(number).name}"] += stopped
    return stopped, stop


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder):
    """What commands computed: tensors and tables, without records that contain durations and paths."""
    return {
        name: content
        for name, content in files(folder).items()
        if name.endswith((".safetensors", ".parquet", ".csv", ".npy")) and "/training/" not in f"/{name}"
    }


def left_over(folder):
    return [str(path) for path in folder.rglob("*") if ".partial" in path.name or ".replaced" in path.name]


def changes_of(recipe):
    """Return the settings that make the parts of a recipe small, as options."""
    changes = {
        f"{section}.{name}": value
        for section, spec in Recipe.read(recipe).parts.items()
        for name, value in SMALL.items()
        if hasattr(spec.settings, name)
    }
    try:
        Recipe.read(recipe).replace(changes)
    except InputError:  # some of these sizes do not go together
        changes = {name: value for name, value in changes.items() if name.endswith("epochs")}
    return [option for name, value in changes.items() for option in ("--set", f"{name}={value}")]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_continues(server, begun, tmp_path, recipe):
    """Stopped up to three times on its way, a fit ends with the tensors and tables of one that was not stopped."""
    (tmp_path / "data").symlink_to(begun / "data")
    (tmp_path / "log.parquet").symlink_to(begun / "log.parquet")

    def recommendations(folder):
        finish(server, ["recommend", folder, "--histories", "log.parquet", "--out", "recs.parquet"], tmp_path)
        return (tmp_path / "recs.parquet").read_bytes()

    command = ["fit", "data", "--recipe", recipe, *changes_of(recipe), "--out"]
    whole = finish(server, [*command, "whole"], tmp_path)
    expected, ranked = results(tmp_path / "whole"), recommendations("whole")
    assert expected
    rng = np.random.default_rng(sum(recipe.encode()))
    for _ in range(TRIALS or 2):
        stops = []
        for _ in range(rng.integers(1, 4)):
            stopped, stop = stop_somewhere(server, [*command, "killed"], tmp_path, whole, rng)
            stops.append(stop)
            if not stopped:
                break
        finish(server, [*command, "killed"], tmp_path)
        assert results(tmp_path / "killed") == expected, f"{recipe} {stops}"
        assert recommendations("killed") == ranked, f"{recipe} {stops}"
        assert not left_over(tmp_path), f"{recipe} {stops}"
        shutil.rmtree(tmp_path / "killed")
        COUNTS["runs of recipes that were stopped and continued"] += 1
    COUNTS["recipes stopped and continued"] += 1


@pytest.mark.parametrize("name", KILLED)
def test_every_command_leaves_whole_files(server, begun, tmp_path, name):
    """What a stopped command was to replace is as it was or as it becomes; run again, the command writes the same as ever."""
    arguments = KILLED[name][1].split()
    new, work = tmp_path / "new", tmp_path / "work"
    shutil.copytree(begun, new)
    whole = finish(server, arguments, new)
    before, after = results(begun), results(new)
    rng = np.random.default_rng(sum(name.encode()))
    for _ in range(TRIALS or (3 if name in OFTEN else 1)):
        shutil.copytree(begun, work)
        stopped, stop = stop_somewhere(server, arguments, work, whole, rng)
        written = results(work)
        for path, content in files(work).items():
            if any(part.startswith(".") for part in Path(path).parts):  # temporary
                continue
            assert path not in written or content in (before.get(path), after.get(path)), f"{name} {stop}: {path}"
            assert is_whole(path, content), f"{name} {stop}: {path}"
        if name == "prepare" and (work / "data").exists():
            Dataset.load(work / "data")
        finish(server, arguments, work)
        assert results(work) == after, f"{name} {stop}"
        assert not left_over(work), f"{name} {stop}"
        shutil.rmtree(work)
        COUNTS["commands that were stopped and run again"] += stopped
