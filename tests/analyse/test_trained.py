"""Analyses that train, from a Dataset to the figure; what is there already is reused."""

import json

import pytest
from torch import nn

from resid import Dataset, InputError, Recipe, Runtime
from resid.analyse import analyse_branching, analyse_scaling
from resid.analyse.scaling import _parameters, _sized
from resid.analyse.trained import codes_only
from resid.cli import main
from resid.core.progress import Silent
from resid.quantize.cluster_tree import automatic_branching
from tests.analyse.conftest import TINY, read

SETTINGS = [f"--set={name}={value}" for name, value in TINY.items() if name != "encoder.epochs"]


class Steps(Silent):
    """Keeps the messages, and stops at one of them as Ctrl-C does."""

    def __init__(self, stop_at="nothing"):
        self.steps, self.stop_at = [], stop_at

    def step(self, text):
        self.steps.append(text)

    def result(self, text):
        if text.startswith(self.stop_at):
            raise KeyboardInterrupt


def small(changes=None):
    return codes_only(Recipe.read("resid-codes"), TINY | (changes or {}))


def test_embeddings(tiny_data, tmp_path, capsys):
    arguments = [
        "analyse",
        "embeddings",
        str(tiny_data),
        "--out",
        str(tmp_path),
        "--epochs-of-encoder=1,3,2",
        *SETTINGS,
    ]
    assert main(arguments) == 0
    first, table = capsys.readouterr(), read(tmp_path, "embeddings")
    assert "Correlation with downstream R@10 over 3 checkpoints, Pearson (Spearman): Metric 1" in first.out
    assert "Checkpoint 3 of 3: FAMAE of 3 epochs" in first.err
    assert table["epochs"].to_list() == [1, 2, 3]
    assert table["metric2"].n_unique() > 1
    before = {file.name: file.read_bytes() for file in tmp_path.glob("embeddings.*")}
    assert len(before) == 3
    assert main([*arguments, "--json"]) == 0
    second = capsys.readouterr()
    assert second.err.count("reusing") == 9
    assert "fitting" not in second.err
    assert "Evaluating" not in second.err
    assert json.loads(second.out)["sentence"] in " ".join(first.out.split())
    assert before == {file.name: file.read_bytes() for file in tmp_path.glob("embeddings.*")}


def test_an_interrupted_analysis_continues(tiny_data, tmp_path):
    data, sizes = Dataset.load(tiny_data), {"first": (3, 2), "second": (3, 4)}
    whole = analyse_branching(data, small(), tmp_path / "whole", **sizes, runtime=Runtime(progress=Steps()))
    with pytest.raises(KeyboardInterrupt):
        analyse_branching(data, small(), tmp_path / "cut", **sizes, runtime=Runtime(progress=Steps("Branching 3 of 4")))
    left = Steps()
    again = analyse_branching(data, small(), tmp_path / "cut", **sizes, runtime=Runtime(progress=left))
    assert again.table.equals(whole.table)
    assert sum("fitting" in step for step in left.steps) == 4  # quantizer and generator of two points
    assert sum("Evaluating" in step for step in left.steps) == 2
    assert whole.table.select("b1", "b2").rows() == [(2, 3), (2, 4), (3, 3), (3, 4)]
    best = whole.table["recall@10"].max()
    assert f"highest, {best:.4f}" in whole.sentence


def test_default_grid(tiny_data, tmp_path):
    data = Dataset.load(tiny_data)
    sizes = [{max(2, size // 2), size, 2 * size} for size in automatic_branching(data.n_items)]
    first = f"Branching 1 of {len(sizes[0]) * len(sizes[1])}: b1 = {min(sizes[0])}, b2 = {min(sizes[1])}"
    with pytest.raises(KeyboardInterrupt):
        analyse_branching(data, small(), tmp_path, runtime=Runtime(progress=Steps(first)))


def test_scaling(tiny_data, tmp_path, capsys):
    options = ["--recipes=resid-codes,sasrec", "--widths=8,16", "--layers=1", "--set=generator.beam_size=20"]
    encoder = ["--set=encoder.width=8", "--set=encoder.ffn_width=8", "--set=encoder.layers=1", "--epochs=1"]
    arguments = ["analyse", "scaling", str(tiny_data), "--out", str(tmp_path), *options, *encoder]
    assert main(arguments) == 0
    told, table = capsys.readouterr(), read(tmp_path, "scaling")
    assert "Best NDCG@10" in told.out
    assert table.rows()[0][:3] == ("resid-codes", 8, 1)
    assert (table["parameters"].to_numpy().reshape(2, 2)[:, 1] > 2 * table["parameters"].to_numpy()[::2]).all()
    assert told.err.count("Encoder: fitting") == 1  # it is shared
    data = Dataset.load(tiny_data)
    with pytest.raises(InputError, match=r"none of the recipes has the section of 'quantizer\.seed'"):
        analyse_scaling(data, [Recipe.read("sasrec")], tmp_path, changes={"quantizer.seed": 1})
    with pytest.raises(InputError, match="the recommender of 'popularity' has no layers"):
        analyse_scaling(data, [Recipe.read("popularity")], tmp_path)


def test_sizes_and_parameters():
    settings = _sized(Recipe.read("resid-t5"), 96, 3).part("generator").settings
    assert (settings.width, settings.layers, settings.ffn_width) == (96, 3, 384)
    assert (settings.heads, settings.head_width) == (3, 32)
    network = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5))
    assert _parameters(type("Model", (), {"model_": network})) == (25, 28)


def test_generators_read_codes_alone_unless_told_otherwise():
    settings = small({"generator.input_embeddings": True}).part("generator").settings
    assert settings.input_embeddings
    assert not settings.output_embeddings
    assert not settings.learned_item_embeddings
    joint = codes_only(Recipe.read("resid"), {}).part("generator").settings
    assert joint == Recipe.read("resid").part("generator").settings


def test_invalid(tiny_data, tmp_path, capsys):
    for arguments, problem in (
        (["embeddings", str(tiny_data), "--epochs-of-encoder=2"], "give at least two different"),
        (["embeddings", str(tiny_data), "--epochs-of-encoder=2,x"], "must be positive integers"),
        (["embeddings", str(tiny_data), "--recipe=tiger"], "'tiger' has another encoder"),
        (["branching", str(tiny_data), "--recipe=tiger"], "the quantizer of 'tiger' has no branching"),
        (["branching", str(tiny_data), "--first=50", "--second=50"], "[quantizer]"),
        (["scaling", str(tiny_data), "--recipes=nothing"], "there is no recipe 'nothing'"),
        (["branching", str(tmp_path / "no")], "no"),
    ):
        assert main(["analyse", *arguments, "--out", str(tmp_path / "out")]) == 2
        assert problem in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
