"""Damaged files: a flipped bit or a cut in any file gives the same result or one sentence, and never another result.

The environment variable RESID_FAULT_TRIALS sets the number of trials of every test.
"""

import os
import shutil

import numpy as np
import pytest

import resid
from resid import Dataset, InputError
from resid.data import synthetic_shop
from resid.encode import ItemEmbeddings
from resid.evaluate import evaluate
from resid.methods.update import recipe_of
from resid.quantize import SemanticIds
from resid.recommend import recommend_file, stream
from resid.runs import load_dataset, read_evaluation, read_metrics, read_run, write_evaluation
from tests.faults.counts import COUNTS

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "36"))
pytestmark = pytest.mark.timeout(300 + 5 * TRIALS)
TINY = {f"recommender.{name}": 8 for name in ("width", "ffn_width")} | {
    "recommender.layers": 1,
    "recommender.heads": 1,
    "recommender.epochs": 2,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A Dataset, a run with a model, IDs and embeddings, all tiny."""
    folder = tmp_path_factory.mktemp("faults")
    shop = synthetic_shop(users=60, items=30, interactions=600, seed=3)
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"], k_core=3)
    data.save(folder / "data")
    resid.fit(folder / "data", "sasrec", folder / "run", changes=TINY)
    codes = np.column_stack([np.arange(data.n_items) // 6, np.arange(data.n_items) % 6])
    (folder / "ids").mkdir()
    SemanticIds(codes, item_ids=data.item_ids, facts={"data": data.fingerprint}).save(folder / "ids" / "ids.parquet")
    vectors = np.random.default_rng(0).random((data.n_items, 4), dtype=np.float32)
    ItemEmbeddings(vectors, {"item": (0, 4)}, data.fingerprint).save(folder / "vectors")
    return folder


def damage(path, rng):
    """Flip one bit of a file, in half of the cases near its beginning, or cut the file."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.2:
        path.write_bytes(content[: rng.integers(len(content))])
        return
    end = len(content) if rng.random() < 0.5 else min(len(content), 400)
    content[rng.integers(end)] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def campaign(original, work, result, prepare=lambda folder: None):
    """Damage one file of a copy after another; return how many trials were refused."""
    files = sorted(str(path.relative_to(original)) for path in original.rglob("[!.]*") if path.is_file())
    refused, rng = 0, np.random.default_rng(0)
    shutil.copytree(original, work)
    prepare(work)
    expected = result(work)
    for trial in range(TRIALS):
        shutil.rmtree(work)
        shutil.copytree(original, work)
        prepare(work)
        name = files[trial % len(files)]
        if not (work / name).exists():  # removed by `prepare`
            continue
        damage(work / name, rng)
        COUNTS["files with a flipped bit or cut"] += 1
        try:
            found, sentence = result(work), ""
        except InputError as error:
            found, sentence = expected, str(error)
            refused += 1
        assert found == expected, name
        assert not sentence or (str(work) in sentence and "\n" not in sentence), name
        assert not any(word in sentence for word in ("Errno", "os error", ".partial")), name
    return refused


def recommended(model):
    known = model.catalogue_.item_ids
    items, scores = model.recommend([known[:3].to_list(), known[4:9].to_list()], 5)
    return items.tolist(), scores.tobytes(), model.history_, model.best_epoch_


def test_dataset(made, tmp_path):
    def result(folder):
        data = Dataset.load(folder)
        windows = [data.windows(name).window(5) for name in ("train", "validation", "test")]
        return data.info(), data.item_table.to_dicts(), [(items.tolist(), target) for items, target in windows]

    assert campaign(made / "data", tmp_path / "copy", result) > TRIALS * 0.9


def test_model(made, tmp_path):
    def result(folder):
        return recommended(resid.load(folder))

    assert campaign(made / "run" / "model", tmp_path / "copy", result) > TRIALS * 0.9


def test_run(made, tmp_path):
    """What the commands read from a run: its record, its model, and the stages that are reused."""

    def result(folder):
        fitted = resid.fit(made / "data", "sasrec", folder, changes=TINY)
        return recommended(fitted), recommended(resid.load(folder)), load_dataset(folder).fingerprint

    campaign(made / "run", tmp_path / "copy", result)


def test_settings_of_a_run(made, tmp_path):
    """What ``resid update --new-ids`` fits anew from."""

    def result(folder):
        return recipe_of(folder, "sasrec").toml()

    (tmp_path / "run").mkdir()
    shutil.copy(made / "run" / "recipe.toml", tmp_path / "run")
    assert campaign(tmp_path / "run", tmp_path / "copy", result) > TRIALS * 0.7


def test_training(made, tmp_path):
    """A run whose part is lost takes up what training left."""

    def result(folder):
        return recommended(resid.fit(made / "data", "sasrec", folder, changes=TINY))

    def lose_the_part(folder):
        shutil.rmtree(folder / stage / "part")

    stage = read_run(made / "run").stages["recommender"]
    refused = campaign(made / "run", tmp_path / "copy", result, lose_the_part)
    assert refused


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "best.safetensors"])
def test_checkpoint(made, tmp_path, name):
    """No flipped bit of a checkpoint is accepted, neither in the tensors nor in the facts, and the message says what to do."""
    from resid.train.checkpoint import load_checkpoint

    stage = made / "run" / read_run(made / "run").stages["recommender"] / "training"
    content = (stage / name).read_bytes()
    rng, path = np.random.default_rng(1), tmp_path / name
    for place in [*np.linspace(0, 1_999, TRIALS, dtype=int), *rng.integers(len(content), size=TRIALS)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        COUNTS["files with a flipped bit or cut"] += 1
        with pytest.raises(InputError, match=f"{name}: .*damaged checkpoint .*; remove {tmp_path} to start again"):
            load_checkpoint(path)
    for length in rng.integers(len(content), size=5):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=f"{name}: .*damaged checkpoint .*; remove {tmp_path} to start again"):
            load_checkpoint(path)


def test_ids_and_embeddings(made, tmp_path):
    def ids(folder):
        found = SemanticIds.load(folder / "ids.parquet")
        return found.table().to_dicts(), found.facts, found.level_sizes

    def vectors(folder):
        found = ItemEmbeddings.load(folder)
        return found.digest, found.columns, found.fingerprint

    assert campaign(made / "ids", tmp_path / "ids", ids) > TRIALS * 0.9
    assert campaign(made / "vectors", tmp_path / "vectors", vectors) > TRIALS * 0.9


def test_evaluation(made, tmp_path):
    """What ``resid evaluate --against``, the model card and the report read."""

    def result(folder):
        return read_evaluation(folder, "test", "test", 10).to_dicts(), read_metrics(folder)

    found = evaluate(resid.load(made / "run"), Dataset.load(made / "data"))
    write_evaluation(made / "run", "test", found.metrics(), found.table(), tmp_path / "evaluation")
    assert campaign(tmp_path / "evaluation", tmp_path / "copy", result) > TRIALS * 0.9


def test_a_stopped_file_of_recommendations(made, tmp_path, monkeypatch):
    """What was damaged of a stopped job is computed again."""
    monkeypatch.setattr(stream, "_FILE_ROWS", 200)
    shop = synthetic_shop(users=60, items=30, interactions=600, seed=3)
    shop.interaction_table.write_parquet(tmp_path / "log.parquet")
    model = resid.load(made / "run")

    def result(folder):
        recommend_file(model, tmp_path / "log.parquet", folder / "recs.csv", 5)
        assert [path.name for path in folder.iterdir()] == ["recs.csv"]
        return (folder / "recs.csv").read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "stopped").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(stream, "_join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            result(tmp_path / "stopped")
    outputs = sorted((tmp_path / "stopped").rglob("output/*.parquet"))
    assert len(outputs) == 3
    outputs[-1].unlink()
    assert campaign(tmp_path / "stopped", tmp_path / "copy", result) == 0


def test_metrics_of_a_run_are_not_read_back(made, tmp_path):
    """They are written for others to read; the run has its own in the checkpoint."""
    shutil.copytree(made / "run", tmp_path / "run")
    stage = tmp_path / "run" / read_run(made / "run").stages["recommender"]
    path = stage / "training" / "metrics.jsonl"
    content = path.read_text()
    path.write_text(content.replace("1", "7") + '{"epoch": 3, "lo')
    shutil.rmtree(stage / "part")
    model = resid.fit(made / "data", "sasrec", tmp_path / "run", changes=TINY)
    assert model.history_ == resid.load(made / "run").history_
    assert path.read_text() == content
