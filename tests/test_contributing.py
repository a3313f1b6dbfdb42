"""CONTRIBUTING.md, followed literally: its files are added to a copy of the project, and its commands run there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from resid import Dataset

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, DATA = Path("src/resid"), "demo-shop/data"
PROGRAMS = {"resid": [sys.executable, "-m", "resid"], "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]}
USE = """
import sys, resid
assert resid.__file__.startswith(sys.argv[1]), resid.__file__
data, run = resid.Dataset.load(sys.argv[2]), sys.argv[3]
histories = [data.item_ids[:3].to_list(), data.item_ids[5:6].to_list()]
model = resid.load(run)
items, scores = model.recommend(histories, k=5)
assert items.shape == (2, 5) and scores.dtype == "float32" and (items != None).all()
model.save("saved")
again, same = resid.load("saved").recommend(histories, k=5)
assert again.tolist() == items.tolist() and same.tolist() == scores.tolist()
assert set(model.parts_) == {name for name in sys.argv[4:] if name not in ("generator", "recommender")}
"""


@dataclass(frozen=True)
class Example:
    """One of the lists: the files that it names, their content, and the commands."""

    title: str
    listed: tuple[str, ...]
    files: dict[str, str]
    commands: tuple[tuple[str, ...], ...]

    @property
    def recipe(self) -> str:
        return next(Path(name).stem for name in self.files if name.endswith(".toml"))


def examples():
    found = []
    for text in re.split(r"^### ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```(\S+)[ ]?(\S*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        lines = [line for kind, _, content in blocks if kind == "console" for line in content.splitlines()]
        found.append(
            Example(
                text.splitlines()[0],
                tuple(re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)),
                {name: content for _, name, content in blocks if name},
                tuple(tuple(shlex.split(line)) for line in lines),
            )
        )
    return found


EXAMPLES = examples()


@pytest.fixture
def project(tmp_path, shop):
    """A copy of the package and the tests, with their caches of compiled code, and a small Dataset."""
    for folder in (PACKAGE, Path("tests")):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"]).save(tmp_path / DATA)
    return tmp_path


def write(project, example, without=None):
    for name, content in example.files.items():
        if name != without:
            assert not (project / name).exists(), name
            (project / name).write_text(content)


def run(project, command, *arguments):
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    return subprocess.run([*command, *arguments], cwd=project, env=environment, capture_output=True, text=True)


def test_what_is_read():
    assert [example.title for example in EXAMPLES] == [
        "Add a quantizer",
        "Add an encoder",
        "Add a sequential model",
        "Add a method",
    ]
    for example in EXAMPLES:
        assert set(example.listed) == set(example.files)  # each list is complete, and so are the examples
        assert any(command[:2] == ("resid", "fit") for command in example.commands)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.recipe)
def test_follow(example, project):
    write(project, example)
    for command in example.commands:
        done = run(project, PROGRAMS[command[0]], *command[1:])
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    fit = next(command for command in example.commands if command[0] == "resid")
    sections = re.findall(r"^\[(\w+)\]", example.files[f"{PACKAGE}/methods/recipes/{example.recipe}.toml"], flags=re.M)
    done = run(project, [sys.executable, "-c", USE], str(project), DATA, fit[fit.index("--out") + 1], *sections)
    assert done.returncode == 0, done.stderr
    done = run(project, PROGRAMS["resid"], *fit[1:])  # once more: every stage is reused
    assert done.returncode == 0
    assert done.stderr.count("reusing") == len(sections), done.stderr
    assert "fitting" not in done.stderr


@pytest.mark.parametrize(
    ("example", "missing"),
    [(example, name) for example in EXAMPLES for name in example.files if name.startswith("src/")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_file_is_necessary(example, missing, project):
    write(project, example, without=missing)
    fit = next(command for command in example.commands if command[0] == "resid")
    done = run(project, PROGRAMS["resid"], *fit[1:])
    assert done.returncode == 2, done.stdout
    assert re.search(r"there is no recipe|there is no method|needs a kind|cannot be|there is no such", done.stderr), done.stderr
