"""CONTRIBUTING.md, followed literally: its files are added to a copy of the project, and its commands run there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from resid import Dataset

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, DATA = Path("src/resid"), "demo-shop/data"
PROGRAMS = {
    "resid": [sys.executable, "-m", "resid"],
    "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
}
USE = """
import sys
import resid

class Steps(resid.ConsoleProgress):
    def step(self, text):
        steps.append(text)

root, data, recipe, run, *pairs = sys.argv[1:]
assert resid.__file__.startswith(root), resid.__file__
data, steps = resid.Dataset.load(data), []
histories = [data.item_ids[:3].to_list(), data.item_ids[5:6].to_list()]
model = resid.load(run)
items, scores = model.recommend(histories, k=5)
assert items.shape == (2, 5) and all(item in data.item_ids for item in items.ravel())

changes = dict(pair.split("=") for pair in pairs)
again = resid.fit(data, recipe, run, changes=changes, runtime=resid.Runtime(progress=Steps()))
sections = resid.Recipe.read(recipe).parts
assert len(steps) == len(sections) and all("reusing" in step for step in steps), steps  # every stage is loaded

again.save("saved")
loaded = resid.load("saved")
assert set(loaded.parts_) == {name for name in sections if not name.endswith(("generator", "recommender"))}
for other in (again, loaded):
    same, values = other.recommend(histories, k=5)
    assert same.tolist() == items.tolist() and values.tolist() == scores.tolist()
"""


@dataclass(frozen=True)
class Example:
    """One of the lists: the files that it names, their content, and the commands."""

    title: str
    listed: tuple[str, ...]
    files: dict[str, str]
    commands: tuple[tuple[str, ...], ...]

    @property
    def fit(self) -> tuple[str, ...]:
        return next(command for command in self.commands if command[:2] == ("resid", "fit"))


def examples():
    found = []
    for text in re.split(r"^### ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```(\S+)[ ]?(\S*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        lines = [line for kind, _, content in blocks if kind == "bash" for line in content.splitlines()]
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
        assert example.fit
        assert sorted(name.split("/")[0] for name in example.files) in (["src", "src"], ["src", "src", "tests"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_follow(example, project):
    write(project, example)
    for command in example.commands:
        done = run(project, PROGRAMS[command[0]], *command[1:])
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    options = list(example.fit)
    recipe, folder = (options[options.index(name) + 1] for name in ("--recipe", "--out"))
    pairs = [value for name, value in pairwise(options) if name == "--set"]
    done = run(project, [sys.executable, "-c", USE], str(project), DATA, recipe, folder, *pairs)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("example", "missing"),
    [(example, name) for example in EXAMPLES for name in example.files if name.startswith("src/")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_file_is_necessary(example, missing, project):
    write(project, example, without=missing)
    done = run(project, PROGRAMS["resid"], *example.fit[1:])
    assert done.returncode == 2, done.stdout
    assert re.search(r"there is no (recipe|method|encoder|quantizer|generator|recommender) ", done.stderr), done.stderr
