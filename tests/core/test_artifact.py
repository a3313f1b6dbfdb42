"""Artifacts: complete or refused, and never code."""

import hashlib
import json
import pickle
import shutil

import numpy as np
import polars as pl
import pytest

import resid
from resid import InputError
from resid.core.artifact import Artifact, read_artifact, write_artifact
from resid.core.checksums import manifest_text
from resid.sequential import CoOccurrence
from tests.recommend.contract import walks


@pytest.fixture
def saved(tmp_path):
    CoOccurrence().fit(walks()).save(tmp_path / "model")
    return tmp_path / "model"


def _manifest(folder, **changes):
    """Change a manifest, with a valid checksum."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text()) | changes
    del content["sha256"]
    path.write_text(manifest_text(content))


def _facts(folder, **changes):
    """Change the facts of a manifest, with a valid checksum."""
    facts = json.loads((folder / "manifest.json").read_text())["facts"]
    _manifest(folder, facts=facts | changes)


def test_files(saved):
    assert len({path.stat().st_mode & 0o777 for path in saved.iterdir()}) == 1  # all files have the same permissions
    assert sorted(path.name for path in saved.iterdir()) == ["items.parquet", "manifest.json", "weights.safetensors"]
    (saved / ".DS_Store").touch()  # hidden files are not read
    assert isinstance(resid.load(saved), CoOccurrence)


def test_round_trip_with_nested_parts(tmp_path):
    inner = Artifact("encoder", "inner", 3, facts={"a": [1, None]}, arrays={"x": np.arange(6).reshape(2, 3)})
    middle = Artifact("quantizer", "middle", 1, parts={"encoder": inner}, arrays={"y": np.ones((2, 2), np.float32).T})
    outer = Artifact("generator", "outer", 2, tables={"t": pl.DataFrame({"i": ["a"]})}, parts={"quantizer": middle})
    write_artifact(tmp_path / "artifact", outer)
    found = read_artifact(tmp_path / "artifact")
    assert (found.stage, found.kind, found.version) == ("generator", "outer", 2)
    assert found.tables["t"].equals(outer.tables["t"])
    again = found.parts["quantizer"].parts["encoder"]
    assert (again.stage, again.kind, again.version, again.facts) == ("encoder", "inner", 3, {"a": [1, None]})
    assert np.array_equal(again.arrays["x"], inner.arrays["x"])
    assert np.array_equal(found.parts["quantizer"].arrays["y"], middle.arrays["y"])
    write_artifact(tmp_path / "artifact", inner)  # replaces the folder with its nested parts
    assert sorted(path.name for path in (tmp_path / "artifact").iterdir()) == ["manifest.json", "weights.safetensors"]


@pytest.mark.parametrize("name", ["items.parquet", "weights.safetensors"])
@pytest.mark.parametrize("fault", ["missing", "altered", "truncated"])
def test_altered_file(saved, name, fault):
    path = saved / name
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if fault == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{name}: missing or altered; copy or save the model again"):
        resid.load(saved)


def test_every_flipped_byte_is_refused(saved):
    for path in sorted(saved.iterdir()):
        content = path.read_bytes()
        for place in np.random.default_rng(0).choice(len(content), min(len(content), 100), replace=False):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(InputError):
                resid.load(saved)
        path.write_bytes(content)
    resid.load(saved)


def test_missing_model(tmp_path, saved):
    with pytest.raises(InputError, match="there is no such folder"):
        resid.load(tmp_path / "nowhere")
    with pytest.raises(
        InputError, match=r"there is no model here, manifest\.json is missing; create one with 'resid fit'"
    ):
        resid.load(tmp_path.parent)
    for load in (resid.load, CoOccurrence.load):
        with pytest.raises(InputError, match="expected a path, got 5"):
            load(5)
    (saved / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json: damaged"):
        resid.load(saved)


def test_advice_for_a_model_of_a_run(tmp_path):
    """It is followed: the same fit writes the model anew."""
    data, run = walks(), tmp_path / "run"
    for name, advice in (
        ("weights.safetensors", "altered; run"),
        ("manifest.json", f"damaged; remove {run}/model and run"),
    ):
        resid.fit(data, "popularity", run)
        (run / "model" / name).write_text("{")
        with pytest.raises(InputError, match=f"{advice} the same 'resid fit' again, which writes it anew"):
            resid.load(run)
        if "remove" in advice:
            shutil.rmtree(run / "model")
        resid.fit(data, "popularity", run)
        resid.load(run)


def test_altered_manifest(saved):
    path = saved / "manifest.json"
    text = path.read_text()
    assert '"max_length": 32' in text
    path.write_text(text.replace('"max_length": 32', '"max_length": 3'))
    with pytest.raises(InputError, match=r"manifest\.json: altered; copy or save the model again"):
        resid.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "format 3 is not supported, this version reads 2; update resid"),
        ({"format": 1}, "format 1 is not supported, this version reads 2; update resid or fit again"),
        ({"kind": "oracle"}, "the recommender 'oracle' is not known to this version of resid; update it"),
        (
            {"stage": "oracle"},
            "there is no stage 'oracle'; available stages: encoder, quantizer, generator, recommender",
        ),
        ({"version": 99}, "version 99 of a CoOccurrence is not supported, this version of resid reads up to 1; update"),
        (
            {"files": {"../items.parquet": {"sha256": ""}, "weights.safetensors": {"sha256": ""}}},
            "cannot contain code",
        ),
        ({"files": {"items.parquet": {"sha256": ""}}}, r"manifest\.json: altered"),
        ({"parts": ["encoder"]}, r"manifest\.json: altered"),
        ({"parts": {"../other": ""}}, r"manifest\.json: altered"),
        ({"facts": {}}, "the files of the model do not match"),
    ],
)
def test_invalid_manifest(saved, changes, message):
    _manifest(saved, **changes)
    with pytest.raises(InputError, match=message):
        resid.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"n_recent": 0}}, "invalid value 0 for 'n_recent': it must be at least 1"),
        ({"settings": {"last": 5}}, "the setting 'last' is now called 'n_recent'"),
        ({"catalogue": "long"}, "the files of the model do not match"),
    ],
)
def test_invalid_facts(saved, changes, message):
    _facts(saved, **changes)
    with pytest.raises(InputError, match=message):
        resid.load(saved)


@pytest.mark.parametrize("name", ["weights.pkl", "model.pt", "extra.bin"])
def test_pickle_is_refused(saved, name):
    (saved / name).write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match=f"{name}: a model consists of .* which cannot contain code"):
        resid.load(saved)


def test_pickle_under_another_name_is_not_read(saved):
    content = pickle.dumps({"a": 1})
    (saved / "weights.safetensors").write_bytes(content)
    files = json.loads((saved / "manifest.json").read_text())["files"]
    files["weights.safetensors"]["sha256"] = hashlib.sha256(content).hexdigest()
    _manifest(saved, files=files)
    with pytest.raises(InputError, match="a file of the model cannot be read"):
        resid.load(saved)


def test_foreign_folder_is_not_overwritten(saved, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    model = resid.load(saved)
    with pytest.raises(InputError, match=r"was not written by resid \(it contains thesis\.txt\)"):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (saved / "notes.txt").write_text("mine")  # also in a folder that has a model
    with pytest.raises(InputError, match=r"it contains notes\.txt"):
        model.save(saved)
    (saved / "notes.txt").unlink()
    model.save(saved)  # a model is replaced
    resid.load(saved)
