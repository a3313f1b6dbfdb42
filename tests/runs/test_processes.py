"""`resid fit` and the single stages under torchrun: two processes train as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import resid
from resid import Dataset
from resid.data import synthetic_shop
from resid.runs import read_run

PLAIN = {  # nothing random, so that two processes can be compared with one
    "encoder": ("dropout=0", "width=16", "ffn_width=32", "epochs=3", "batch_size=64"),
    "generator": ("dropout=0", "width=16", "ffn_width=32", "layers=1", "epochs=3", "batch_size=64"),
    "recommender": ("dropout=0", "width=16", "ffn_width=32", "layers=1", "epochs=3", "batch_size=64"),
}


def changes(*sections):
    return [f"--set={section}.{change}" for section in sections for change in PLAIN[section]]


def torchrun(*arguments):
    """Run a command in two processes that torchrun starts, and return what is printed."""
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "resid"),
            *arguments,
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture
def command(server):
    """Runs a command in processes with the environment of torchrun, without the seconds that its start takes."""

    def run(*arguments, processes=1):
        finished = server.run(arguments, processes=processes)
        assert finished.code == 0, finished.said
        return finished

    return run


def losses(run, stage):
    path = Path(run) / read_run(run).stages[stage] / "training" / "metrics.jsonl"
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain_data(tmp_path_factory):
    """Without fields, FAMAE always masks the item ID, so its masks are not random either."""
    shop = synthetic_shop(users=150, items=60, interactions=1_800, seed=2)
    folder = tmp_path_factory.mktemp("processes") / "data"
    Dataset.from_tables(shop.interaction_table).save(folder)
    return folder


def test_all_stages_under_torchrun(plain_data, command, tmp_path):
    """Encoder and generator train in both processes, the first one quantizes and writes; then it is all reused."""
    options = ("fit", plain_data, *changes("encoder", "generator"), "--json")
    command(*options, "--out", tmp_path / "one")
    printed = torchrun(*options, "--out", tmp_path / "two")
    assert len(printed.splitlines()) == 1  # one process prints
    assert losses(tmp_path / "two", "encoder") == pytest.approx(losses(tmp_path / "one", "encoder"), rel=1e-4)
    assert len(losses(tmp_path / "two", "generator")) == 3
    model = resid.load(tmp_path / "two")
    assert set(model.parts_) == {"encoder", "quantizer"}
    assert set(model.blend_.weights) == {"codes", "item", "encoder", "cooccurrence"}
    items, _ = model.recommend([model.catalogue_.item_ids[:2].to_list()], 5)
    assert items.shape == (1, 5)
    before = read_run(tmp_path / "two")
    command(*options, "--out", tmp_path / "two", processes=2)
    assert read_run(tmp_path / "two") == before


def test_generator_and_sequential_model(plain_data, command, tmp_path):
    """The batches of both have histories with different numbers of targets, which weigh the same in two processes."""
    for processes in (1, 2):
        run = tmp_path / f"sasrec-{processes}"
        command("fit", plain_data, "--recipe", "sasrec", *changes("recommender"), "--out", run, processes=processes)
    assert losses(tmp_path / "sasrec-2", "recommender") == pytest.approx(
        losses(tmp_path / "sasrec-1", "recommender"), rel=1e-4
    )
    ids = tmp_path / "ids.parquet"
    command("quantize", plain_data, "--out", tmp_path / "ids", "--ids", ids, *changes("encoder"))
    for recipe, more in (("resid-codes", ["--set=generator.item_dropout=0"]), ("resid", [])):
        options = ("generate", plain_data, ids, "--recipe", recipe, *changes("generator"), *more)
        for processes in (1, 2):
            command(*options, "--out", tmp_path / f"{recipe}-{processes}", processes=processes)
        assert losses(tmp_path / f"{recipe}-2", "generator") == pytest.approx(
            losses(tmp_path / f"{recipe}-1", "generator"), rel=1e-4
        )


def test_tokenizer_and_generator_in_turns(plain_data, command, tmp_path):
    """ETEGRec freezes other parts in every epoch, and all processes change the IDs alike."""
    changed = (
        "dropout=0",
        "width=16",
        "ffn_width=32",
        "layers=1",
        "epochs=4",
        "finetune_epochs=1",
        "alignment_start=1",
    )
    small = [f"--set=generator.{change}" for change in (*changed, "tokenizer_learning_rate=0.01", "batch_size=64")]
    encoder = ["--set=encoder.width=16", "--set=encoder.epochs=1", "--set=quantizer.epochs=20"]
    command("fit", plain_data, "--recipe", "etegrec", *encoder, *small, "--out", tmp_path / "run", processes=2)
    model = resid.load(tmp_path / "run")
    assert len(model.history_) == 5
    assert model.ids_.unique
    assert (model.parts_["quantizer"].semantic_ids_.codes == model.ids_.codes).all()
