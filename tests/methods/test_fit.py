"""The run's folder: stages that are reused, that continue, and that keep out of each other's way."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import resid
from resid import Dataset, InputError
from resid.encode import FAMAE
from resid.methods.fit import read_run
from resid.sequential import HGN, CoOccurrence, SASRec

TINY = {
    "encoder.width": 16,
    "encoder.hidden": 32,
    "encoder.epochs": 2,
    "generator.width": 16,
    "generator.hidden": 32,
    "generator.layers": 1,
    "generator.epochs": 2,
}


class Heard:
    """Progress that remembers what it was told."""

    def __init__(self):
        self.steps, self.results, self.bars = [], [], []

    def step(self, text):
        self.steps.append(text)

    def result(self, text):
        self.results.append(text)

    def bar(self, text, total, *, done=0, unit=""):
        from resid.core.progress import Silent

        self.bars.append(text)
        return Silent().bar(text, total, done=done, unit=unit)


@pytest.fixture(scope="module")
def data(shop, tmp_path_factory):
    made = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
    made.save(tmp_path_factory.mktemp("pipeline") / "data")
    return made


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "run"
    resid.fit(data, "resid", folder, changes=TINY)
    return folder


def _heard(data, folder, changes, recipe="resid"):
    heard = Heard()
    resid.fit(data, recipe, folder, changes=changes, progress=heard)
    return heard


def _answer(model, data):
    items, scores = model.recommend([data.item_ids[:3].to_list()], 5)
    return items.tolist(), scores.tobytes()


def test_from_tables_to_recommendations(data, run):
    model = resid.load(run)
    items, scores = model.recommend([data.item_ids[:3].to_list()], 5)
    assert items.shape == scores.shape == (1, 5)
    assert len(model.semantic_ids) == data.n_items
    assert resid.Recipe.read(run / "recipe.toml").part("encoder").settings.epochs == 2
    known = read_run(run)
    assert known["data"] == str(data.folder.resolve())
    assert set(known["stages"]) == {"encoder", "quantizer", "generator"}
    assert all((run / folder).is_dir() for folder in known["stages"].values())


def test_the_same_again_reuses_everything(data, run):
    before = _answer(resid.load(run), data)
    heard = _heard(data, run, TINY)
    assert heard.bars == []  # nothing was trained
    assert [step.split(":")[0] for step in heard.steps if "reused" in step] == ["Encoder", "Quantizer"]
    assert "Finished already" in heard.steps
    assert _answer(resid.load(run), data) == before


def test_a_change_runs_its_stage_and_those_after_it(data, run):
    heard = _heard(data, run, TINY | {"quantizer.branching": (3, 2)})
    assert [step.split(":")[0] for step in heard.steps if "reused" in step] == ["Encoder"]
    assert heard.bars == ["Epoch 1 of 2", "Epoch 2 of 2"]  # of the generator
    assert resid.load(run).ids_.sizes[:2] == (3, 2)
    heard = _heard(data, run, TINY)  # and the old settings are still there
    assert heard.bars == []


def test_lost_embeddings_are_made_again(data, run):
    folder = run / read_run(run)["stages"]["encoder"] / "embeddings"
    (folder / "vectors.npy").write_bytes(b"no numbers")
    heard = _heard(data, run, TINY)
    assert [step.split(":")[0] for step in heard.steps if "reused" in step] == ["Quantizer"]
    assert heard.bars == []  # the encoder was finished, it only had to embed again


def test_lost_ids_are_made_again(data, run):
    path = run / read_run(run)["stages"]["quantizer"] / "ids.parquet"
    before = path.read_bytes()
    path.write_bytes(b"no table")
    heard = _heard(data, run, TINY)
    assert any("no semantic IDs are here" in step for step in heard.steps)
    assert path.read_bytes() == before


def test_a_fit_that_fails_leaves_the_run_as_it_was(data, run):
    before = {name: (run / name).read_text() for name in ("run.json", "recipe.toml")}
    with pytest.raises(InputError, match=r"\[quantizer\] branching=\(5000,\) makes 5,000 leaves"):
        resid.fit(data, "resid", run, changes=TINY | {"quantizer.branching": (5000,)})
    assert {name: (run / name).read_text() for name in before} == before
    (run / "model" / "notes.txt").write_text("mine")
    try:
        with pytest.raises(InputError, match=r"not a folder that resid wrote \(it has notes.txt\)"):
            resid.fit(data, "popularity", run)
    finally:
        (run / "model" / "notes.txt").unlink()


def test_killed_before_anything_was_written(data, tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.partial").write_text("{")
    resid.fit(data, "popularity", tmp_path)
    assert read_run(tmp_path)["recipe"] == "popularity"


def test_several_processes_are_refused(data, tmp_path):
    class Two:
        world_size = 2

    with pytest.raises(InputError, match="all stages at once run in one process"):
        resid.fit(data, "resid", tmp_path, fabric=Two())


def test_without_a_folder_nothing_is_left(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = resid.fit(data, "cooccurrence")
    assert not list(tmp_path.iterdir())
    assert model.name == "cooccurrence"
    assert _answer(resid.fit(data.folder, "cooccurrence"), data) == _answer(model, data)  # a path is as good


def test_folders_that_cannot_be_used(data, run, log, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"mine: this exists and is not a run \(it has thesis.txt\)"):
        resid.fit(data, "popularity", tmp_path / "mine")
    for place in ("thesis.txt", "thesis.txt/run"):
        with pytest.raises(InputError, match=r"thesis.txt: this is a file"):
            resid.fit(data, "popularity", tmp_path / "mine" / place)
    with pytest.raises(InputError, match="this is a run on another Dataset"):
        resid.fit(Dataset.from_tables(log), "popularity", run)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another run is using this folder"):
            resid.fit(data, "popularity", run)
    saved = (run / "run.json").read_text()
    try:
        for text, message in (
            ("{", "damaged"),
            (json.dumps({"format": 9}), "format 9 is not known here, 1 is"),
            ('{"format": 1}', "damaged"),
        ):
            (run / "run.json").write_text(text)
            with pytest.raises(InputError, match=message):
                resid.fit(data, "popularity", run)
    finally:
        (run / "run.json").write_text(saved)


PROGRAM = """
import json, sys, resid
resid.fit(sys.argv[1], "resid", sys.argv[2], changes=json.loads(sys.argv[3]))
"""


def test_killed_at_any_moment_it_continues(data, tmp_path):
    """Killed again and again after other times, the run ends with the model of a run that was not."""
    changes = TINY | {"encoder.epochs": 4, "generator.epochs": 6}
    command = [sys.executable, "-c", PROGRAM, str(data.folder), str(tmp_path / "killed"), json.dumps(changes)]
    random = np.random.default_rng(0)
    kills = 0
    for signal_number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = random.uniform(0, 2.5)
        while process.poll() is None and not (tmp_path / "killed").exists():
            time.sleep(0.001)  # imports
        begin = time.monotonic()
        while process.poll() is None and time.monotonic() - begin < limit:
            time.sleep(0.001)
        if process.poll() is None:
            os.kill(process.pid, signal_number)
            kills += 1
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert kills
    whole = resid.fit(data, "resid", tmp_path / "whole", changes=changes)
    assert _answer(resid.load(tmp_path / "killed"), data) == _answer(whole, data)


SMALL = {"recommender.width": 16, "recommender.hidden": 32, "recommender.layers": 1, "recommender.epochs": 2}


def test_a_recommender_without_ids(data, tmp_path):
    """The starred variant; a second call finds it finished, another setting gets another folder."""
    heard = _heard(data, tmp_path / "run", SMALL, recipe="sasrec*")
    assert any(step.startswith("Recommender: sasrec in ") for step in heard.steps)
    model = resid.load(tmp_path / "run")
    assert model.settings.fields
    assert list(model.sizes_) == ["item", "store", "cat1", "cat2", "cat3"]
    again = _heard(data, tmp_path / "run", SMALL, recipe="sasrec*")
    assert "Finished already" in again.steps
    assert _answer(resid.load(tmp_path / "run"), data) == _answer(model, data)
    assert read_run(tmp_path / "run")["recipe"] == "sasrec*"
    first = read_run(tmp_path / "run")["stages"]["recommender"]
    resid.fit(data, "sasrec*", tmp_path / "run", changes=SMALL | {"seed": 1})
    assert (tmp_path / "run" / first).is_dir()
    assert read_run(tmp_path / "run")["stages"]["recommender"] != first


@pytest.mark.parametrize("kind", ["sasrec", "bert4rec"])
def test_other_encoders(kind, data, tmp_path):
    """The ablations E2 and E3: vectors of item-IDs from a sequential recommender."""
    (tmp_path / "mine.toml").write_text(
        f'[encoder]\nkind = "{kind}"\n[quantizer]\nkind = "gaoq"\n[generator]\nkind = "onepass"\n'
    )
    heard = _heard(data, tmp_path / "run", TINY | {"encoder.layers": 1}, recipe=tmp_path / "mine.toml")
    assert any(step.startswith(f"Encoder: {kind} in ") for step in heard.steps)
    assert len(resid.load(tmp_path / "run").semantic_ids) == data.n_items
    again = _heard(data, tmp_path / "run", TINY | {"encoder.layers": 1}, recipe=tmp_path / "mine.toml")
    assert any("is there, reused" in step for step in again.steps)


def test_epochs_tell_how_good_they_are(data, tmp_path):
    heard = Heard()
    changes = {"epochs": 2, "width": 16, "hidden": 32, "heads": 2}
    model = resid.fit(
        data, "sasrec", tmp_path, changes={f"recommender.{k}": v for k, v in changes.items()}, progress=heard
    )
    values = [record["ndcg@10"] for record in model.history_]
    best = max(values)
    assert heard.results[1] == (
        f"Epoch 2: ndcg@10 {values[1]:.4f}; epoch {values.index(best) + 1} is the best, {best:.4f}"
    )


def test_figures_of_another_model_are_removed(data, tmp_path):
    small = {"recommender.epochs": 1, "recommender.width": 16, "recommender.hidden": 32}
    resid.fit(data, "cooccurrence", tmp_path)
    for recipe, changes in (
        ("cooccurrence", {"recommender.last": 3}),
        ("sasrec", small),
        ("sasrec", {**small, "recommender.seed": 1}),
    ):
        (tmp_path / "evaluation").mkdir()
        resid.fit(data, tmp_path / "recipe.toml", tmp_path)  # the same under another name
        assert (tmp_path / "evaluation").exists()
        heard = Heard()
        resid.fit(data, recipe, tmp_path, changes=changes, progress=heard)
        assert not (tmp_path / "evaluation").exists()
        assert f"{tmp_path / 'evaluation'} is of another model and is removed" in heard.steps


@pytest.mark.parametrize("kind", [CoOccurrence, FAMAE, HGN, SASRec])
def test_a_path_is_no_dataset(kind):
    with pytest.raises(InputError, match=r"a Dataset is needed, not a str; see Dataset\.load"):
        kind().fit("data/mine")


def test_a_run_whose_note_is_damaged(data, tmp_path):
    resid.fit(data, "cooccurrence", tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json: damaged; remove it and run 'resid fit' again"):
        resid.fit(data, "cooccurrence", tmp_path)
    (tmp_path / "run.json").unlink()
    resid.fit(data, "cooccurrence", tmp_path)
    assert read_run(tmp_path)["recipe"] == "cooccurrence"


def test_one_number_is_no_tree(data, tmp_path):
    with pytest.raises(InputError, match=r"branching=5 must be whole numbers of at least 1, one for every level"):
        resid.fit(data, "resid", tmp_path / "run", changes=TINY | {"quantizer.branching": 5})
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_was_prepared_again(shop, tmp_path):
    for fields in (["store"], ["store", "categories"]):
        again = Dataset.from_tables(shop.interaction_table, shop.item_table, fields)
        again.save(tmp_path / "data")
        if len(fields) == 1:
            resid.fit(tmp_path / "data", "popularity", tmp_path / "run")
    with pytest.raises(InputError, match="as it was before it was prepared again"):
        resid.fit(tmp_path / "data", "popularity", tmp_path / "run")
    with pytest.raises(InputError, match="a Dataset is needed, not a DataFrame"):
        resid.fit(shop.interaction_table, "popularity")


def test_a_dataset_that_was_altered(data, tmp_path):
    data.save(tmp_path / "data")
    sequence = np.load(tmp_path / "data" / "sequence.npy")
    np.save(tmp_path / "data" / "sequence.npy", sequence[::-1])  # of the same size
    with pytest.raises(InputError, match=r"sequence\.npy: missing or damaged; prepare the Dataset again"):
        resid.fit(tmp_path / "data", "cooccurrence")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": 5}, "a path is needed, not 5"),
        ({"folder": 5}, "a path is needed, not 5"),
        ({"changes": ["seed=1"]}, "changes are settings by name, as {'encoder.epochs': 20}"),
        ({"changes": {5: 1}}, "there is no setting '5'"),
    ],
)
def test_what_is_of_another_type(data, arguments, message):
    with pytest.raises(InputError, match=message):
        resid.fit(data, **{"recipe": "cooccurrence"} | arguments)
