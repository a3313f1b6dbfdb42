"""Bundles: whole or refused, and never code."""

import json
import pickle

import pytest

import resid
from resid import InputError
from resid.core.artifact import _digest
from resid.sequential import CoOccurrence
from tests.recommend.contract import walks


@pytest.fixture
def saved(tmp_path):
    CoOccurrence().fit(walks()).save(tmp_path / "model")
    return tmp_path / "model"


def _manifest(folder, **changes):
    """Change a manifest as somebody would who knows how it is made."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text()) | changes
    del content["sha256"]
    path.write_text(json.dumps(content | {"sha256": _digest(content)}))


def test_it_is_whole(saved):
    assert len({path.stat().st_mode & 0o777 for path in saved.iterdir()}) == 1  # who may read one file may read all
    assert sorted(path.name for path in saved.iterdir()) == ["items.parquet", "manifest.json", "weights.safetensors"]
    (saved / ".DS_Store").touch()  # what is hidden is not read
    assert isinstance(resid.load(saved), CoOccurrence)


@pytest.mark.parametrize("name", ["items.parquet", "weights.safetensors"])
@pytest.mark.parametrize("fault", ["missing", "altered", "truncated"])
def test_a_file_that_is_not_what_it_was(saved, name, fault):
    path = saved / name
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if fault == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{name}: missing or altered; copy or save the model again"):
        resid.load(saved)


def test_nothing_is_there(tmp_path, saved):
    with pytest.raises(InputError, match="there is no such folder"):
        resid.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no model is here, there is no manifest\.json"):
        resid.load(tmp_path.parent)
    with pytest.raises(InputError, match="a path is needed, not 5"):
        resid.load(5)
    (saved / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json: damaged"):
        resid.load(saved)


def test_a_manifest_that_was_altered(saved):
    path = saved / "manifest.json"
    path.write_text(path.read_text().replace('"max_history": 31', '"max_history": 3'))
    with pytest.raises(InputError, match=r"manifest\.json: altered; copy or save the model again"):
        resid.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2 is not known here, 1 is; update resid"),
        ({"kind": "oracle"}, "a model of the kind 'oracle' is not known here; update resid"),
        ({"settings": {"last": 0}}, "the setting 'last' cannot be 0"),
        ({"files": {"../items.parquet": {"sha256": ""}, "weights.safetensors": {"sha256": ""}}}, "cannot carry code"),
        ({"files": {"items.parquet": {"sha256": ""}}}, r"manifest\.json: altered"),
        ({"max_history": "long"}, "parts of the model do not fit each other"),
    ],
)
def test_a_manifest_that_cannot_be_used(saved, changes, message):
    _manifest(saved, **changes)
    with pytest.raises(InputError, match=message):
        resid.load(saved)


@pytest.mark.parametrize("name", ["weights.pkl", "model.pt", "extra.bin"])
def test_a_pickle_is_refused(saved, name):
    (saved / name).write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match=f"{name}: a model consists of .* which cannot carry code"):
        resid.load(saved)


def test_a_pickle_under_another_name_is_not_read(saved):
    import hashlib

    content = pickle.dumps({"a": 1})
    (saved / "weights.safetensors").write_bytes(content)
    files = json.loads((saved / "manifest.json").read_text())["files"]
    files["weights.safetensors"]["sha256"] = hashlib.sha256(content).hexdigest()
    _manifest(saved, files=files)
    with pytest.raises(InputError, match="a file of the model cannot be read"):
        resid.load(saved)


def test_it_does_not_write_over_something_else(saved, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    model = resid.load(saved)
    with pytest.raises(InputError, match="not a folder that resid wrote"):
        model.save(tmp_path / "mine")
    model.save(saved)  # over a model it does
    resid.load(saved)
