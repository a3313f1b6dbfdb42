"""Exports: the tables and networks give the same as the model, and what cannot be exported is said in a sentence."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from resid import InputError, load
from resid.cli import main
from resid.core.checksums import manifest_text
from resid.export import export
from resid.generate import JointGenerator, JointSettings, OnePassGenerator, OnePassSettings
from resid.quantize import SemanticIds
from resid.runs import evaluation_folder, measured, write_evaluation
from resid.sequential import CoOccurrence
from tests.small import TINY, small_data, small_encoder, small_joint, small_onepass, small_t5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    small_t5().save(folder / "t5")
    small_joint().save(folder / "joint")
    CoOccurrence().fit(small_data()).save(folder / "cooccurrence")
    place = np.arange(small_data().n_items)
    embeddings = small_encoder().embed(small_data())
    # Few levels, as every one is a network of its own, whose export takes seconds.
    two = SemanticIds(np.column_stack([place % 8, place // 8]), None, small_data().item_ids)
    settings = JointSettings(**TINY, beam_size=20)
    JointGenerator(settings).fit(small_data(), two, embeddings, small_encoder()).save(folder / "joint-two")
    shared = SemanticIds(place[:, None] // 2, None, small_data().item_ids)  # two items per ID
    onepass = OnePassGenerator(OnePassSettings(**TINY)).fit(small_data(), shared, embeddings)
    onepass.remove_items(onepass.recommend(small_data().item_ids[:2].to_list(), 3)[0])  # the best are withdrawn
    onepass.save(folder / "onepass")
    return folder


def code_of(card):
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    return code


def run_in(folder, code):
    """Run code in another process in a folder, without resid on its path, and return what it prints as JSON."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["joint-two", "onepass"])
def test_onnx_decodes_what_the_model_recommends(folder, tmp_path, name):
    export(folder / name, "onnx", tmp_path / "out")
    model, data = load(folder / name), small_data()
    histories = [data.history(user).to_list() for user in data.user_ids[:40]]
    histories += [[data.item_ids[3]], [data.item_ids[3]] * 50, ["unknown", data.item_ids[4]]]
    items, scores = model.recommend(histories, 7)
    check = f"""
import sys
sys.modules["torch"] = sys.modules["resid"] = None  # neither can be imported
{code_of(tmp_path / "out" / "README.md")}
import json
items, scores = decoder.recommend({histories!r}, k=7)
print(json.dumps([items.tolist(), scores.tolist()]))
"""
    found = run_in(tmp_path / "out", check)
    assert found[0] == items.tolist()
    np.testing.assert_allclose(found[1], scores, atol=1e-4)


def test_transformers_example(folder, tmp_path):
    export(folder / "t5", "transformers", tmp_path / "out")
    code = code_of(tmp_path / "out" / "README.md")
    items, scores = run_in(tmp_path / "out", f"{code}\nimport json; print(json.dumps([items, scores]))")
    expected, values = small_t5().recommend(small_data().item_ids[:3].to_list(), 10)
    assert items == expected.tolist()
    np.testing.assert_allclose(scores, values, atol=1e-4)


def test_parquet(folder, tmp_path):
    export(folder / "joint", "parquet", tmp_path / "out")
    model, read = small_joint(), {path.stem: pl.read_parquet(path) for path in (tmp_path / "out").glob("*.parquet")}
    assert read["ids"].equals(model.semantic_ids)
    np.testing.assert_array_equal(np.stack(read["vectors"]["vector"].to_numpy()), model.item_vectors())
    assert read["items"].drop("training_count").equals(model.catalogue_.items)
    assert read["items"]["training_count"].to_list() == model.catalogue_.counts.tolist()
    export(folder / "cooccurrence", "parquet", tmp_path / "out")  # replaces it
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "items.parquet"]
    assert "no `vectors.parquet`: the model has none" in (tmp_path / "out" / "README.md").read_text()


def test_the_card_of_a_run(folder, tmp_path, capsys):
    run = tmp_path / "run"
    small_joint().save(run / "model")
    record = {"data": "/data/shop", "fingerprint": small_data().fingerprint, "recipe": "resid"}
    (run / "run.json").write_text(manifest_text({"format": 2, **record}))
    metrics = {"recall@10": 0.1234, "intervals": {"recall@10": [0.1, 0.2]}}
    content = {"users": 299, "seen_kept": metrics, "seen_dropped": metrics}
    write_evaluation(run, "test", content, pl.DataFrame({"rank": [1]}))
    with measured(evaluation_folder(run)):  # as a comparison does, whose evaluation of new items is not of this model
        write_evaluation(run, "cold-items", {"targets": 7, "seen_kept": metrics}, pl.DataFrame({"rank": [1]}))
    assert main(["export", str(run), "--format", "parquet", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert "ids.parquet" in json.loads(capsys.readouterr().out)["files"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("# resid\n")
    for text in (
        "| test | kept | recall@10 | 0.1234 | 0.1000 to 0.2000 | 299 |",
        "licence of the data: unknown",
        "`shop`",
        "64 items",
        "- torch ",
        '"beam_size": 20',
    ):
        assert text in card
    assert str(tmp_path) not in card
    assert "cold-items" not in card


@pytest.mark.parametrize(
    ("name", "format_", "out", "message"),
    [
        ("cooccurrence", "onnx", "out", "a CoOccurrence cannot be exported to ONNX; use a one-pass or joint generator"),
        ("joint", "transformers", "out", "a JointGenerator cannot be exported to transformers; use a T5"),
        ("joint", "onx", "out", "there is no format 'onx' (did you mean 'onnx'?); use parquet, onnx, transformers"),
        ("joint", "parquet", "model", "model is a model; choose another folder"),
        ("joint", "parquet", "mine", "the folder exists and is not an export of resid"),
        ("joint", "parquet", "file/below", "is a file, so the folder"),
        ("nowhere", "parquet", "out", "there is no such folder"),
    ],
)
def test_what_cannot_be_exported(folder, tmp_path, name, format_, out, message):
    small_onepass().save(tmp_path / "model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as error:
        export(folder / name, format_, tmp_path / out)
    assert message in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine", "model"]
