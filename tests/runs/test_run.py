"""The run's folder: stages are reused, continued, and kept apart."""

import fcntl
import json
import re
import shutil
import signal

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError, Runtime
from resid.encode import FAMAE, DINEncoder, DINSettings, FamaeSettings
from resid.quantize import RQVAE
from resid.runs import Run, load_stage, read_evaluation, read_metrics, read_run, write_evaluation
from resid.sequential import HGN, CoOccurrence, SASRec

TINY = {
    "encoder.width": 16,
    "encoder.ffn_width": 32,
    "encoder.epochs": 2,
    "generator.width": 16,
    "generator.ffn_width": 32,
    "generator.layers": 1,
    "generator.epochs": 2,
}


class Recorder:
    """Progress that records its messages."""

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
    heard = Recorder()
    resid.fit(data, recipe, folder, changes=changes, runtime=Runtime(progress=heard))
    return heard


def _reused(heard):
    return [step.split(":")[0] for step in heard.steps if "reusing" in step]


def _answer(model, data):
    items, scores = model.recommend([data.item_ids[:3].to_list()], 5)
    return items.tolist(), scores.tobytes()


def test_from_tables_to_recommendations(data, run):
    model = resid.load(run)
    items, scores = model.recommend([data.item_ids[:3].to_list()], 5)
    assert items.shape == scores.shape == (1, 5)
    assert len(model.semantic_ids) == data.n_items
    assert resid.Recipe.read(run / "recipe.toml").part("encoder").settings.epochs == 2
    record = read_run(run)
    assert record.data == str(data.folder.resolve())
    assert record.recipe == "resid"
    assert set(record.stages) == {"encoder", "quantizer", "generator"}
    assert record.model_stages == record.stages
    assert all((run / folder / "part").is_dir() for folder in record.stages.values())


def test_the_same_again_reuses_everything(data, run):
    before = _answer(resid.load(run), data)
    heard = _heard(data, run, TINY)
    assert heard.bars == []  # nothing was trained
    assert _reused(heard) == ["Encoder", "Quantizer", "Generator"]
    assert _answer(resid.load(run), data) == before


def test_a_change_runs_its_stage_and_those_after_it(data, run):
    heard = _heard(data, run, TINY | {"quantizer.branching": (3, 2)})
    assert _reused(heard) == ["Encoder"]
    assert heard.bars == ["Epoch 1 of 2", "Epoch 2 of 2"]  # of the generator
    assert resid.load(run).ids_.level_sizes[:2] == (3, 2)
    heard = _heard(data, run, TINY)  # and the old settings are still there
    assert heard.bars == []


@pytest.mark.parametrize("stage", ["encoder", "quantizer", "generator"])
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_a_damaged_part_is_fitted_again(data, run, stage, damage):
    """What training left is taken up, so nothing is trained again; the stages after it are reused, as nothing changed."""
    before = _answer(resid.load(run), data)
    path = run / read_run(run).stages[stage] / "part" / "weights.safetensors"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flipped = bytes([content[-1] ^ 1])
        path.write_bytes(content[:-1] + flipped if damage == "altered" else content[: len(content) // 2])
    heard = _heard(data, run, TINY)
    assert any("missing or altered" in step and step.endswith("fitting it again") for step in heard.steps)
    assert _reused(heard) == [name for name in ("Encoder", "Quantizer", "Generator") if name.lower() != stage]
    assert heard.bars == []
    assert path.read_bytes() == content
    assert _answer(resid.load(run), data) == before


def test_stages_are_shared_by_methods_with_the_same_part(data, run, tmp_path):
    """T5 reads no embeddings and has a key of its own, but shares the encoder and the quantizer of the run."""
    changes = {name: value for name, value in TINY.items() if not name.startswith("generator.")}
    changes |= {"generator.width": 16, "generator.ffn_width": 32, "generator.layers": 1, "generator.epochs": 1}
    heard = _heard(data, run, changes, recipe="resid-t5")
    assert _reused(heard) == ["Encoder", "Quantizer"]
    _heard(data, run, TINY)


def test_the_key_has_exactly_the_inputs_that_a_part_reads(data, tmp_path):
    """Other vectors with the same IDs train the one-pass generator again, and leave T5 as it is."""
    from resid.encode import ItemEmbeddings
    from resid.methods.semantic_ids import fit_generator
    from resid.quantize import SemanticIds

    codes = np.arange(data.n_items)[:, None] // [[9, 1]] % 9
    ids = SemanticIds(np.column_stack([codes, np.arange(data.n_items)]), item_ids=data.item_ids)
    rng = np.random.default_rng(0)
    vectors = [ItemEmbeddings(rng.random((data.n_items, 8), dtype=np.float32), {}, data.fingerprint) for _ in range(2)]
    small = {"width": 16, "ffn_width": 16, "layers": 1, "epochs": 1}
    for kind, keys in (("t5", 1), ("onepass", 2)):
        changes = {"generator.kind": kind} | {f"generator.{name}": value for name, value in small.items()}
        spec = resid.Recipe.read("resid").replace(changes).part("generator")
        with Run.open(tmp_path / kind, data) as opened:
            for some in vectors:
                fit_generator(opened, spec, data, ids, some)
        assert len(list((tmp_path / kind / "generator").iterdir())) == keys


def test_a_loaded_model_has_its_encoder_and_quantizer(data, run, shop, tmp_path):
    """New items get an embedding and an ID from the saved model alone."""
    model = resid.load(run)
    assert set(model.parts_) == {"encoder", "quantizer"}
    new = shop.item_table.head(3).with_columns(item=np.array(["new 1", "new 2", "new 3"]))
    ids, vectors = model.parts_["encoder"].embed_new(new)
    assert ids.to_list() == ["new 1", "new 2", "new 3"]
    assert vectors.shape[1] == model.parts_["quantizer"].n_features_in_
    model.save(tmp_path / "small", parts=False)
    assert set(resid.load(tmp_path / "small").parts_) <= set(model.required_parts)


def test_one_stage_of_a_run(data, run):
    assert isinstance(load_stage(run, "encoder"), FAMAE)
    assert load_stage(run, "recommender") is None


def test_a_fit_that_fails_leaves_the_run_as_it_was(data, run):
    _heard(data, run, TINY)
    before = {name: (run / name).read_text() for name in ("run.json", "recipe.toml")}
    with pytest.raises(InputError, match=r"\[quantizer\] branching=\(5000,\) has 5,000 leaves"):
        resid.fit(data, "resid", run, changes=TINY | {"quantizer.branching": (5000,)})
    assert {name: (run / name).read_text() for name in before} == before
    (run / "model" / "notes.txt").write_text("mine")
    try:
        with pytest.raises(InputError, match=r"was not written by resid \(it contains notes.txt\)"):
            resid.fit(data, "popularity", run)
    finally:
        (run / "model" / "notes.txt").unlink()


def test_killed_before_anything_was_written(data, tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.partial").write_text("{")
    resid.fit(data, "popularity", tmp_path)
    assert read_run(tmp_path).recipe == "popularity"


def test_without_a_folder_nothing_is_left(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = resid.fit(data, "cooccurrence")
    assert not list(tmp_path.iterdir())
    assert model.kind == "cooccurrence"
    assert _answer(resid.fit(data.folder, "cooccurrence"), data) == _answer(model, data)  # a path is as good


def test_folders_that_cannot_be_used(data, run, log, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"mine: the folder exists and is not a run \(it contains thesis.txt\)"):
        resid.fit(data, "popularity", tmp_path / "mine")
    for place in ("thesis.txt", "thesis.txt/run"):
        with pytest.raises(InputError, match=r"thesis.txt is a file, so the folder"):
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
            (json.dumps({"format": 9}), "format 9 is not supported, this version reads 2"),
            ('{"format": 2}', "damaged"),
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


def test_killed_at_any_moment_it_continues(data, server, tmp_path):
    """Killed again and again after other times, the run ends with the model of a run that was not."""
    changes = json.dumps(TINY | {"encoder.epochs": 4, "generator.epochs": 6})
    whole = server.run([data.folder, tmp_path / "whole", changes], program=PROGRAM)
    assert whole.code == 0, whole.said
    killed = [data.folder, tmp_path / "killed", changes]
    random = np.random.default_rng(0)
    codes = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        stop = {"signal": number, "after": random.uniform(0, whole.seconds / 2)}
        codes.append(server.run(killed, program=PROGRAM, stop=stop).code)
    assert any(codes)
    assert server.run(killed, program=PROGRAM).code == 0
    assert _answer(resid.load(tmp_path / "killed"), data) == _answer(resid.load(tmp_path / "whole"), data)


SMALL = {"recommender.width": 16, "recommender.ffn_width": 32, "recommender.layers": 1, "recommender.epochs": 2}


def test_a_recommender_without_ids(data, tmp_path):
    """The variant with fields; a second call reuses it, another setting gets another folder."""
    heard = _heard(data, tmp_path / "run", SMALL, recipe="sasrec*")
    assert any(step.startswith("Recommender: fitting sasrec in ") for step in heard.steps)
    model = resid.load(tmp_path / "run")
    assert model.settings.use_fields
    assert list(model.field_sizes_) == ["item", "store", "cat1", "cat2", "cat3"]
    again = _heard(data, tmp_path / "run", SMALL, recipe="sasrec*")
    assert _reused(again) == ["Recommender"]
    assert _answer(resid.load(tmp_path / "run"), data) == _answer(model, data)
    assert read_run(tmp_path / "run").recipe == "sasrec-fields"
    first = read_run(tmp_path / "run").stages["recommender"]
    resid.fit(data, "sasrec*", tmp_path / "run", changes=SMALL | {"seed": 1})
    assert (tmp_path / "run" / first).is_dir()
    assert read_run(tmp_path / "run").stages["recommender"] != first


@pytest.mark.parametrize("kind", ["sasrec", "bert4rec"])
def test_other_encoders(kind, data, tmp_path):
    """The ablations E2 and E3: the item-ID embeddings of a sequential recommender."""
    (tmp_path / "mine.toml").write_text(
        f'[encoder]\nkind = "{kind}"\n[quantizer]\nkind = "gaoq"\n[generator]\nkind = "onepass"\n'
    )
    heard = _heard(data, tmp_path / "run", TINY | {"encoder.layers": 1}, recipe=tmp_path / "mine.toml")
    assert any(step.startswith(f"Encoder: fitting {kind} in ") for step in heard.steps)
    assert len(resid.load(tmp_path / "run").semantic_ids) == data.n_items
    again = _heard(data, tmp_path / "run", TINY | {"encoder.layers": 1}, recipe=tmp_path / "mine.toml")
    assert _reused(again) == ["Encoder", "Quantizer", "Generator"]


def test_epochs_report_their_metric(data, tmp_path):
    heard = Recorder()
    changes = {"epochs": 2, "width": 16, "ffn_width": 32, "heads": 2}
    changes = {f"recommender.{name}": value for name, value in changes.items()}
    model = resid.fit(data, "sasrec", tmp_path, changes=changes, runtime=Runtime(progress=heard))
    values = [record["ndcg@10"] for record in model.history_]
    best = max(values)
    assert (
        heard.results[1]
        == f"Epoch 2: validation NDCG@10 {values[1]:.4f}, best so far: epoch {values.index(best) + 1} ({best:.4f})"
    )


def test_passes_between_evaluations_are_epochs(tmp_path):
    heard, vectors = Recorder(), np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    quantizer = RQVAE(
        codebook_size=4, latent_dim=4, hidden_layer_sizes=(8,), epochs=6, evaluate_every=3, random_state=0
    )
    quantizer.fit(vectors, runtime=Runtime(tmp_path, progress=heard))
    assert heard.bars == ["Epochs 1–3 of 6", "Epochs 4–6 of 6"]
    assert heard.results[1].startswith("Epoch 6: share of distinct IDs 0.")
    assert re.search(r"best so far: epoch [36] ", heard.results[1])


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (FAMAE(FamaeSettings(epochs=1, width=8, layers=1)), "validation NDCG@10 with all fields masked"),
        (DINEncoder(DINSettings(epochs=1, width=8)), "validation NDCG@10"),
        (RQVAE(2, 4, hidden_layer_sizes=(8,), latent_dim=4, epochs=1, random_state=0), "share of distinct IDs"),
    ],
)
def test_metrics_are_called_by_what_they_measure(data, part, written):
    heard = Recorder()
    inputs = np.random.default_rng(0).normal(size=(30, 8)) if isinstance(part, RQVAE) else data
    part.fit(inputs, runtime=Runtime(progress=heard))
    assert heard.results[0].startswith(f"Epoch 1: {written} 0.")


def test_results_of_another_model_are_removed(data, tmp_path):
    small = {"recommender.epochs": 1, "recommender.width": 16, "recommender.ffn_width": 32}
    resid.fit(data, "cooccurrence", tmp_path)
    for recipe, changes, replaced in (
        ("cooccurrence", {"recommender.n_recent": 3}, "(recipe) by cooccurrence"),
        ("sasrec", small, "(recipe) by sasrec"),
        ("sasrec", {**small, "recommender.seed": 1}, "(recipe) by sasrec"),
    ):
        (tmp_path / "evaluation").mkdir()
        resid.fit(data, tmp_path / "recipe.toml", tmp_path)  # the same under another name
        assert (tmp_path / "evaluation").exists()
        heard = Recorder()
        resid.fit(data, recipe, tmp_path, changes=changes, runtime=Runtime(progress=heard))
        assert not (tmp_path / "evaluation").exists()
        assert f"Removing {tmp_path / 'evaluation'}, which describes another model" in heard.steps
        assert f"Replacing the model of {tmp_path} {replaced}; its trained stages are kept" in heard.steps
    heard = Recorder()
    resid.fit(data, "sasrec", tmp_path, changes=small, runtime=Runtime(progress=heard))
    assert any("(sasrec) by sasrec with other settings;" in step for step in heard.steps)  # without an evaluation


@pytest.mark.parametrize("kind", [CoOccurrence, FAMAE, HGN, SASRec])
def test_a_path_is_not_a_dataset(kind):
    with pytest.raises(InputError, match=r"expected a Dataset, got a str; open a folder with Dataset\.load"):
        kind().fit("data/mine")


def test_a_run_whose_record_is_damaged(data, tmp_path):
    resid.fit(data, "cooccurrence", tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json: damaged; remove it and run 'resid fit' again"):
        resid.fit(data, "cooccurrence", tmp_path)
    (tmp_path / "run.json").unlink()
    resid.fit(data, "cooccurrence", tmp_path)
    assert read_run(tmp_path).recipe == "cooccurrence"


def test_a_single_number_is_not_a_branching(data, tmp_path):
    with pytest.raises(
        InputError,
        match=r"\[quantizer\] branching=5 must be positive integers, one per level|invalid value 5 for 'branching'",
    ):
        resid.fit(data, "resid", tmp_path / "run", changes=TINY | {"quantizer.branching": 5})
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_was_prepared_again(shop, tmp_path):
    for fields in (["store"], ["store", "categories"]):
        again = Dataset.from_tables(shop.interaction_table, shop.item_table, fields)
        again.save(tmp_path / "data")
        if len(fields) == 1:
            resid.fit(tmp_path / "data", "popularity", tmp_path / "run")
    with pytest.raises(InputError, match="before it was prepared again"):
        resid.fit(tmp_path / "data", "popularity", tmp_path / "run")
    with pytest.raises(InputError, match="expected a Dataset, got a DataFrame"):
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
        ({"recipe": 5}, "expected a path, got 5"),
        ({"folder": 5}, "expected a path, got 5"),
        ({"changes": ["seed=1"]}, "'changes' must be a mapping such as {'encoder.epochs': 20}"),
        ({"changes": {5: 1}}, "there is no setting '5'"),
    ],
)
def test_arguments_of_another_type(data, arguments, message):
    with pytest.raises(InputError, match=message):
        resid.fit(data, **{"recipe": "cooccurrence"} | arguments)


def test_metrics_and_ranks_are_replaced_together(tmp_path):
    """If the metrics cannot be written, the ranks stay those that they belong to."""
    ranks = pl.DataFrame({"user": [1, 2], "rank": [1, 3]})
    metrics = {"seen_kept": {"recall@5": 0.5}}
    write_evaluation(tmp_path / "model", "test", metrics, ranks, tmp_path / "out")
    with pytest.raises(TypeError):
        write_evaluation(tmp_path / "model", "test", {"seen_kept": object()}, ranks.head(1), tmp_path / "out")
    assert read_evaluation(tmp_path / "out", "test", "test", 5).equals(ranks)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["test.json", "test.parquet"]


def test_altered_metrics_are_refused(tmp_path):
    ranks = pl.DataFrame({"user": [1, 2], "rank": [1, 3]})
    write_evaluation(tmp_path / "model", "test", {"seen_kept": {"recall@5": 0.5}}, ranks, tmp_path / "out")
    assert read_metrics(tmp_path / "out")["seen_kept"] == {"recall@5": 0.5}
    path = tmp_path / "out" / "test.json"
    content = json.loads(path.read_text())
    del content["sha256"]  # as an earlier version wrote it
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "test.json").write_text(json.dumps(content))
    shutil.copy(tmp_path / "out" / "test.parquet", tmp_path / "old")
    assert read_metrics(tmp_path / "old") == read_metrics(tmp_path / "out")
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(InputError, match="the evaluation is damaged or of an earlier version"):
        read_metrics(tmp_path / "out")
