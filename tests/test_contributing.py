"""CONTRIBUTING.md, followed literally: its files are added to a copy of the project, and its commands run there."""

import json
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
# Uses the model of `resid fit`, then runs the tests, in one process, as every new one spends seconds on imports.
USE = """
import json, sys
import pytest, resid

tests = json.loads(sys.argv.pop(1))

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
sys.exit(pytest.main(["-p", "no:cacheprovider", *tests]) if tests else 0)
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


def run(project, *arguments):
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    return subprocess.run([sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True)


def test_what_is_read():
    assert [example.title for example in EXAMPLES] == [
        "Add a quantizer",
        "Add an encoder",
        "Add a sequential model",
        "Add a method",
    ]
    for example in EXAMPLES:
        assert set(example.listed) == set(example.files)  # each list is complete, and so are the examples
        assert example.commands[0] == example.fit
        assert [command[0] for command in example.commands[1:]] in ([], ["pytest"])
        assert sorted(name.split("/")[0] for name in example.files) in (["src", "src"], ["src", "src", "tests"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_follow(example, project):
    write(project, example)
    done = run(project, "-m", *example.fit)
    assert done.returncode == 0, f"{shlex.join(example.fit)}\n{done.stdout}\n{done.stderr}"
    options = list(example.fit)
    recipe, folder = (options[options.index(name) + 1] for name in ("--recipe", "--out"))
    pairs = [value for name, value in pairwise(options) if name == "--set"]
    tests = next((command[1:] for command in example.commands if command[0] == "pytest"), ())
    done = run(project, "-c", USE, json.dumps(tests), str(project), DATA, recipe, folder, *pairs)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    ("example", "missing"),
    [(example, name) for example in EXAMPLES for name in example.files if name.startswith("src/")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_file_is_necessary(example, missing, project):
    write(project, example, without=missing)
    done = run(project, "-m", *example.fit)
    assert done.returncode == 2, done.stdout
    assert re.search(r"there is no (recipe|method|encoder|quantizer|generator|recommender) ", done.stderr), done.stderr
