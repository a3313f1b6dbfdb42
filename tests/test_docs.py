"""The code blocks of the README and the guide run, links lead somewhere, and all documents agree on the version."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import resid
from resid.cli import main
from resid.cli.app import app
from resid.methods.recipe import recipe_names

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = [ROOT / "README.md", ROOT / "docs" / "guide.md"]
PAGES = sorted(
    page for place in ("*.md", "docs/*.md", "benchmarks/*.md", "results/**/*.md") for page in ROOT.glob(place)
)


def blocks(page, info):
    """Return the code blocks of a page with this info string; ``notest`` after the language keeps a block from running."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == info]


@pytest.fixture
def folder(tmp_path, shop, monkeypatch):
    """The working directory, with the files that the pages use."""
    raw = shop.item_table
    shop.interaction_table.write_parquet(tmp_path / "interactions.parquet")
    names = {"user": "customer", "item": "sku", "timestamp": "time"}
    shop.interaction_table.rename(names).write_csv(tmp_path / "log.csv")
    raw.write_parquet(tmp_path / "items.parquet")
    raw.head(1).with_columns(item=pl.lit("new")).write_parquet(tmp_path / "new-items.parquet")
    often = shop.interaction_table["item"].mode()[0]  # no filter removes it
    latest = shop.interaction_table.tail(30).with_columns(timestamp=pl.col("timestamp") + 10**11, item=pl.lit(often))
    latest.write_parquet(tmp_path / "new-interactions.parquet")
    raw.select(sku="item", brand="store").write_csv(tmp_path / "items.csv")
    shop.write_amazon_2023(tmp_path / "downloads", "Musical_Instruments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.name)
def test_python(page, folder):
    namespace: dict = {}
    code = blocks(page, "python")
    assert code
    for block in code:
        exec(compile(block, str(page), "exec"), namespace)


def test_types(tmp_path):
    """The code of the README passes `mypy --strict`, with the settings and the cache of `make lint`, which does most of it."""
    source = tmp_path / "readme.py"
    typed = "from typing import assert_type\nassert_type(resid.load('my-model'), resid.Recommender)\n"
    source.write_text("\n".join([*blocks(ROOT / "README.md", "python"), typed]))
    command = [sys.executable, "-m", "mypy", "--num-workers=0", str(source)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.name)
def test_shell(page, folder):
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) > 8
    for command in commands:
        assert command[0] == "resid"
        if command[1] == "demo":  # test_cli runs it
            continue
        if command[1] == "download":  # the files are there already, so nothing is downloaded
            command = [part for part in command if part != "--five-core"]
        assert main(command[1:]) == 0, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_not_run(page):
    """Commands in other blocks have valid arguments and settings."""
    text = "\n".join(blocks(page, "console") + blocks(page, "bash notest")).replace("\\\n", " ")
    for line in re.split(r"\n|&&", text):
        command = shlex.split(line, comments=True)
        if command[:1] == ["torchrun"]:
            command = command[command.index("-m") + 1 :]
        if command[:1] == ["resid"]:
            _, bound, _ = app.parse_args(command[1:], exit_on_error=False, print_error=False)
            if "training" in bound.arguments:
                bound.arguments["training"].changed_recipe()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                target
            )


@cache
def definitions(module):
    """Return the names that a module defines: functions, classes and their methods."""
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_symbols_of_the_methods():
    """Every link to code in docs/method.md names something that its file defines."""
    page = ROOT / "docs" / "method.md"
    links = re.findall(r"\[([^\]]*)\]\(([^)\s]+\.py)\)", page.read_text())
    assert len(links) > 50
    for text, target in links:
        assert text.strip("`") in definitions((page.parent / target).resolve()), (text, target)


def test_methods_cover_all_recipes():
    text = (ROOT / "docs" / "method.md").read_text()
    names = {re.sub("(-paper)?(-fields)?$", "", name) for name in recipe_names()}
    assert not {name for name in names if f"`{name}`" not in text}


def test_recipes_of_the_guide():
    """The TOML of the guide is a recipe."""
    for block in blocks(ROOT / "docs" / "guide.md", "toml"):
        resid.Recipe._from_toml("guide", tomllib.loads(block))


def test_version():
    version = resid.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
