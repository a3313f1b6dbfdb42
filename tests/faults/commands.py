"""Every command that writes, with tiny inputs, for the campaigns that stop it or leave it no space."""

import json
from pathlib import Path
from typing import Any

import polars as pl

from resid.data import synthetic_shop

_TINY = "--set {0}.width=8 --set {0}.ffn_width=8 --set {0}.layers=1 --set {0}.heads=1"
_FIT = f"--recipe sasrec {_TINY.format('recommender')} --set recommender.epochs=2"
_ENCODER = f"--set encoder.kind=sasrec {_TINY.format('encoder')} --set encoder.epochs=2"
_GENERATOR = (
    f"--recipe resid-t5 {_TINY.format('generator')} --set generator.epochs=1 --set generator.validation_users=20"
)
_CODES = "--set quantizer.codebook_size"


def _and(command: str, option: str = "") -> tuple[str, str]:
    """Return a command, and the same with an option that makes it write something else."""
    return command, f"{command} {option}".strip()


# A command to begin with, and one that replaces what it wrote. {of} is the folder of what is read, {to} of what is written.
COMMANDS = {
    "prepare": _and("prepare log.parquet items.parquet --fields store --k-core 3 --out {to}data", "--max-length 9"),
    "encode": _and(f"encode {{of}}data --out {{to}}steps --embeddings {{to}}vectors {_ENCODER}", "--seed 1"),
    "quantize": _and(
        f"quantize {{of}}data --out {{to}}steps --ids {{to}}ids.parquet --embeddings {{of}}vectors "
        f"--set quantizer.kind=rq-kmeans {_CODES}=5",
        f"{_CODES}=4",
    ),
    "generate": _and(f"generate {{of}}data --ids {{of}}ids.parquet --out {{to}}generated {_GENERATOR}", "--seed 1"),
    "fit": _and(f"fit {{of}}data --out {{to}}run {_FIT}", "--seed 1"),
    "evaluate": _and("evaluate {of}run", "--cutoffs 3"),
    "recommend": _and("recommend {of}run --histories log.parquet --out {to}recs.parquet", "-k 5"),
    "recommend to CSV": _and("recommend {of}run --histories log.parquet --out {to}recs.csv", "-k 5"),
    "export": tuple(f"export {{of}}{model} --format parquet --out {{to}}exported" for model in ("run", "generated")),
    "update": _and(
        "update {of}run new.parquet --out {to}updated --data {of}data --save-data {to}grown --epochs 1", "--replay 0.5"
    ),
    "report": _and("report {of}run --out {to}report.html"),
    "analyse": _and("analyse overlap {of}generated --out {to}figures"),
    "compare": tuple(
        f"compare {{of}}data --recipes {recipes} --seeds 1 --out {{to}}compared"
        for recipes in ("popularity", "popularity,cooccurrence")
    ),
    "demo": _and("demo --out {to}demo"),
    "items add": _and("items add {of}demo/run new-items.parquet --out {to}model"),
    "items remove": _and("items remove {of}model --items NEW --out {to}withdrawn", "--json"),
    "items restore": _and("items restore {of}withdrawn --items NEW --out {to}restored", "--json"),
}
WRITE_NOTHING = {"info", "similar", "inspect", "serve", "recipes", "items list"}
ELSEWHERE = {"download"}  # tests/data/test_download.py
SEVERAL = {"analyse", "compare", "demo", "update"}  # write one file or folder after another
PROGRAM = """
import importlib, sys
demo = importlib.import_module("resid.cli.demo")
demo._SHOP.update(users=100, items=40, interactions=1_000)
demo._SMALL.update({f"{part}.{name}": value for part in ("encoder", "generator") for name, value in (
    ("epochs", 1), ("width", 16), ("ffn_width", 16), ("layers", 1), ("heads", 2)
)})
from resid.cli import main
"""  # a smaller demo


def write_inputs(folder: Path) -> None:
    """Write the tables that the commands read."""
    shop = synthetic_shop(users=60, items=30, interactions=600, seed=3)
    log = shop.interaction_table
    log.write_parquet(folder / "log.parquet")
    shop.item_table.write_parquet(folder / "items.parquet")
    latest = log.group_by("user", maintain_order=True).tail(1).head(10)
    latest.with_columns(pl.lit(log["timestamp"].max() + 1).alias("timestamp")).write_parquet(folder / "new.parquet")
    shop.item_table.head(1).with_columns(pl.lit("NEW").alias("item")).write_parquet(folder / "new-items.parquet")


def named(commands: dict[str, Any], of: str = "", to: str = "") -> dict[str, list[str]]:
    """Return the commands with their folders."""
    return {name: [each.format(of=of, to=to) for each in pair] for name, pair in commands.items()}


def is_whole(path: str, content: bytes) -> bool:
    """Return whether a file is complete, as far as its end tells."""
    ends = {".html": b"</html>", ".svg": b"</svg>", ".parquet": b"PAR1", ".png": b"IEND\xaeB`\x82"}
    if path.endswith(".json"):
        return isinstance(json.loads(content), dict)
    return content.rstrip().endswith(ends.get(Path(path).suffix, b""))
