"""The code in the README and the guide runs, and the commands they name exist."""

import re
import shlex
from pathlib import Path

import pytest

from resid.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "guide.md"]


def blocks(page, language):
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


@pytest.fixture
def workplace(tmp_path, shop):
    """A folder with the files that the pages speak of."""
    raw = shop.item_table
    shop.interaction_table.write_parquet(tmp_path / "interactions.parquet")
    names = {"user": "customer", "item": "sku", "timestamp": "time"}
    shop.interaction_table.rename(names).write_csv(tmp_path / "log.csv")
    raw.with_columns(cat1=raw["categories"].list.get(0), cat2=raw["categories"].list.get(1)).write_parquet(
        tmp_path / "items.parquet"
    )
    raw.select(sku="item", brand="store").write_csv(tmp_path / "items.csv")
    shop.write_amazon_2023(tmp_path / "downloads", "Musical_Instruments")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python(page, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    namespace: dict = {}
    code = blocks(page, "python")
    assert code
    for block in code:
        exec(compile(block, str(page), "exec"), namespace)


def test_shell(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    commands = [shlex.split(line, comments=True) for page in PAGES for block in blocks(page, "") for line in block.splitlines()
                if line.startswith("resid ")]  # fmt: skip
    assert len(commands) > 8
    for command in commands:
        if command[1] == "demo":  # test_cli runs it
            continue
        if command[1] == "download":  # the files are there already, so nothing is fetched
            command = [part for part in command if part != "--five-core"]
        assert main(command[1:]) == 0, command
