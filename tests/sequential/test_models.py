"""The trained recommenders: contract, learning, exact resume, errors."""

import json
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

import resid
from resid import Dataset, InputError, Recommender
from resid.cli import main
from resid.core.runtime import Runtime
from resid.data import Batches, synthetic_shop
from resid.evaluate import ranking_metrics
from resid.recommend.trained import TrainedRecommender
from resid.sequential import HGN, BERT4Rec, BERT4RecSettings, HGNSettings, S3Rec, S3RecSettings, SASRec, SASRecSettings
from resid.sequential.s3rec import Pretraining
from resid.train import TrainingError
from resid.train.checkpoint import load_checkpoint
from tests.recommend.contract import RecommenderContract, interrupt_after, walks

SMALL = {"width": 32, "dropout": 0.0, "batch_size": 64, "learning_rate": 3e-3, "seed": 1}
LAYERS = {"layers": 1, "heads": 2, "ffn_width": 64}
KINDS = {
    "hgn": lambda **more: HGN(HGNSettings(**{**SMALL, **more})),
    "sasrec": lambda **more: SASRec(SASRecSettings(**{**SMALL, **LAYERS, **more})),
    "bert4rec": lambda **more: BERT4Rec(BERT4RecSettings(**{**SMALL, **LAYERS, **more})),
    "s3rec": lambda **more: S3Rec(S3RecSettings(**{**SMALL, **LAYERS, "pretrain_epochs": 1, **more})),
}


def fifty_users(*, fields: tuple[str, ...] = ("store", "shelf")) -> Dataset:
    """Return a Dataset of fifty users, each of whom cycles through four of 110 items."""
    random = np.random.default_rng(0)
    rows = []
    for user in range(50):
        own = random.choice(110, 4, replace=False)
        rows += [(f"u{user}", f"i{own[step % 4]}", step) for step in range(8 + user % 10)]
    log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    items = pl.DataFrame(
        {
            "item": [f"i{n}" for n in range(110)],
            "store": [f"s{n % 7}" for n in range(110)],
            "shelf": [f"h{n % 5}" if n % 4 else None for n in range(110)],
        }
    )
    return Dataset.from_tables(log, items, list(fields), k_core=1, missing="keep")


@pytest.fixture(scope="module")
def fifty():
    return fifty_users()


class _Contract(RecommenderContract):
    kind = ""
    options: ClassVar[dict] = {}

    @classmethod
    def make(cls, data):
        return KINDS[cls.kind](epochs=1, **cls.options).fit(data)

    def test_scores_are_dot_products_with_the_candidates(self, model):
        histories = np.array([[-1, 3, 4], [5, 6, 7]])
        with torch.no_grad():
            queries = model.model_.scale_queries(model.model_.query(torch.from_numpy(histories)))
            wanted = (queries @ model.model_.candidates().T).numpy()
        items, scores = model.top(histories, 12)
        assert scores == pytest.approx(np.take_along_axis(wanted, items, axis=1), abs=1e-5)
        assert (np.sort(items, axis=1) == np.arange(12)).all()
        if model.settings.similarity == "cosine":
            assert (np.abs(scores) <= model.settings.width**0.5 + 1e-4).all()

    def test_scoring_in_chunks_gives_the_same_items(self, model, data, monkeypatch):
        histories = np.array([[-1, 3, 4], [5, 6, 7]])
        allowed = np.arange(12) % 5 > 0
        whole = [
            model.top(histories, 9),
            model.top(histories, 3, exclude_seen=True),
            model.top(histories, 9, allowed=allowed),
        ]
        ranks = model.ranks(data.test)
        monkeypatch.setattr("resid.sequential.base._MAX_SCORES", 10)  # one user at a time
        parts = [
            model.top(histories, 9),
            model.top(histories, 3, exclude_seen=True),
            model.top(histories, 9, allowed=allowed),
        ]
        for (items, scores), (again, values) in zip(whole, parts, strict=True):
            assert again.tolist() == items.tolist()
            assert values == pytest.approx(scores, abs=1e-5)
        assert [found.tolist() for found in model.ranks(data.test)] == [found.tolist() for found in ranks]

    def test_ties_are_ranked_in_catalogue_order(self, model, data, monkeypatch):
        vectors = model.model_.candidates().detach()
        monkeypatch.setattr(model, "_candidates", None)
        monkeypatch.setattr(model.model_, "candidates", lambda: torch.ones_like(vectors))
        assert model.ranks(data.test, 12)[0].tolist() == data.test.targets.tolist()
        monkeypatch.setattr(model, "_candidates", None)
        monkeypatch.setattr(model.model_, "candidates", lambda: torch.full_like(vectors, torch.nan))
        with pytest.raises(TrainingError, match="the scores of the model are not finite"):
            model.ranks(data.test)

    def test_counted_ranks_equal_those_of_the_recommended_list(self, model, data):
        for batch in Batches(data.test, 50, shuffle=False):
            listed = Recommender._ranks(model, batch, 10, users=batch.users)
            for ours, theirs in zip(model._ranks(batch, 10), listed, strict=True):
                assert ours.tolist() == theirs.tolist()


class TestSASRec(_Contract):
    kind = "sasrec"


class TestSASRecProducts(_Contract):
    kind, options = "sasrec", {"similarity": "dot", "loss": "binary", "use_fields": True, "target": "id"}


class TestBERT4Rec(_Contract):
    kind, options = "bert4rec", {"use_fields": True}


class TestS3Rec(_Contract):
    kind, options = "s3rec", {"use_fields": True}


class TestHGN(_Contract):
    kind, options = "hgn", {"use_fields": True, "n_recent": 4, "user_embeddings": True}

    def asking(self, data, window):
        return {"users": [data.user_ids[int(data.test.users[window])]]}

    def test_user_embeddings_change_the_scores(self, model):
        with torch.no_grad():
            model.model_.users.weight[5] *= -50
        one, other, mean = (
            model.recommend(["i3", "i4"], 12, users=users)[1].tolist() for users in (["u5"], ["u6"], None)
        )
        assert one != other
        assert other != mean
        with torch.no_grad():
            model.model_.users.weight[5] /= -50


@pytest.mark.parametrize("fields", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_it_memorizes_fifty_users(kind, fields, fifty):
    model = KINDS[kind](epochs=60, use_fields=fields, patience=0).fit(fifty)
    assert ranking_metrics(model.ranks(fifty.test)[0])["recall@10"] > 0.95
    assert ranking_metrics(model.ranks(fifty.test)[1])["recall@10"] == 0  # it was seen, so it is dropped
    assert model.history_[model.best_epoch_ - 1]["ndcg@10"] == max(record["ndcg@10"] for record in model.history_)


@pytest.mark.parametrize("loss", ["sampled", "binary"])
def test_losses_with_sampled_negatives_learn(loss, fifty):
    options = {"negative_group_size": 4, "similarity": "dot" if loss == "binary" else "cosine"}
    model = KINDS["sasrec"](epochs=40, loss=loss, n_negatives=16, patience=0, **options).fit(fifty)
    assert ranking_metrics(model.ranks(fifty.test)[0])["recall@10"] > 0.9


def test_fine_tuning_starts_from_the_pretrained_weights(fifty, tmp_path, monkeypatch):
    begun = []
    fit = TrainedRecommender._train

    def spied(self, *arguments, **how):
        begun.append({name: value.clone() for name, value in self.model_.state_dict().items()})
        fit(self, *arguments, **how)

    monkeypatch.setattr(TrainedRecommender, "_train", spied)
    KINDS["s3rec"](epochs=1, pretrain_epochs=2, use_fields=True).fit(fifty, runtime=Runtime(tmp_path))
    trained, _ = load_checkpoint(tmp_path / "pretraining" / "best.safetensors")
    for name, value in begun[0].items():
        assert torch.equal(value, trained[f"model.model.{name}"])  # the network is part of the tasks
    other = KINDS["s3rec"](epochs=1, pretrain_epochs=1, use_fields=True).fit(fifty)
    assert not torch.equal(begun[0]["positions"], begun[1]["positions"])
    assert other.pretraining_[0]["loss"] > 0


@pytest.fixture(scope="module")
def many():
    shop = synthetic_shop(users=500, items=800, interactions=6_000, seed=0)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"], k_core=2)


def test_targets_below_the_cutoff_are_ruled_out_early(many, monkeypatch):
    model = KINDS["sasrec"](epochs=2).fit(many)
    left, in_reach = [], model._within_reach
    with monkeypatch.context() as patched:
        patched.setattr(model, "_within_reach", lambda *given: left.append(in_reach(*given)) or left[-1])
        counted = model.ranks(many.test, 3)
    assert 0 < sum(map(len, left)) < many.n_users / 2
    monkeypatch.setattr(type(model), "_ranks", Recommender._ranks)  # from the list of the best
    listed = model.ranks(many.test, 3)
    for ours, wanted in zip(counted, listed, strict=True):
        assert ours.tolist() == wanted.tolist()
        assert (ours < 3).any()


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("different", [1, 3, 200])
def test_ruling_out_targets_early_changes_no_rank_among_equal_items(different, similarity, many, monkeypatch):
    """Items with the same vector have the same score up to rounding, and none ranks above another because of it."""
    model = KINDS["sasrec"](epochs=1, similarity=similarity).fit(many)
    vectors = model.model_.candidates().detach()[torch.arange(many.n_items) % different].clone()
    monkeypatch.setattr(model.model_, "candidates", lambda: vectors)
    for k in (1, 10, 60, many.n_items):
        monkeypatch.setattr("resid.sequential.base._MAX_SCORES", 30 * many.n_items)  # in several parts
        counted = model.ranks(many.test, k)
        with monkeypatch.context() as patched:
            patched.setattr(model, "_within_reach", lambda queries, *_: torch.arange(len(queries)))
            whole = model.ranks(many.test, k)
        for ours, wanted in zip(counted, whole, strict=True):
            assert ours.tolist() == wanted.tolist()


class TestResume:
    def test_an_interrupted_s3rec_ends_with_the_same_weights(self, fifty, tmp_path, monkeypatch):
        whole = KINDS["s3rec"](epochs=3, pretrain_epochs=2, use_fields=True, patience=0).fit(
            fifty, runtime=Runtime(tmp_path / "whole")
        )
        for stops in (3, 9):  # within pre-training, and after it
            model = KINDS["s3rec"](epochs=3, pretrain_epochs=2, use_fields=True, patience=0)
            steps = interrupt_after(stops, monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                model.fit(fifty, runtime=Runtime(tmp_path / "parts"))
            assert len(steps) == stops
            monkeypatch.undo()
            with pytest.raises(InputError, match="not fitted yet"):
                model.recommend(["i1"])
        parts = KINDS["s3rec"](epochs=3, pretrain_epochs=2, use_fields=True, patience=0).fit(
            fifty, runtime=Runtime(tmp_path / "parts")
        )
        for ours, theirs in zip(whole.model_.parameters(), parts.model_.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert [r["loss"] for r in whole.history_] == [r["loss"] for r in parts.history_]

    def test_another_configuration_is_refused(self, fifty, tmp_path):
        KINDS["sasrec"](epochs=1).fit(fifty, runtime=Runtime(tmp_path))
        with pytest.raises(InputError, match="this run has another configuration, 'width' was 32 and is now 16"):
            KINDS["sasrec"](epochs=1, width=16).fit(fifty, runtime=Runtime(tmp_path))


def test_pretraining_reads_training_histories_only():
    """Unseen targets that are added to training are not part of the histories of S3-Rec's pre-training."""
    rows = [(user, item, step) for user in "abcd" for step, item in enumerate(["p", "q", "r", f"x{user}", f"y{user}"])]
    log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    data = Dataset.from_tables(log, k_core=1, unseen_targets="train")
    assert len(data.train) == 4 * (2 + 2)
    read = []
    original = Pretraining.cut

    def cut(self, items, rng):
        read.append(items)
        return original(self, items, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pretraining, "cut", cut)
        KINDS["s3rec"](epochs=1).fit(data)
    names = {data.item_ids[int(item)] for items in read for item in items.unique() if item >= 0}
    assert names == {"p", "q", "r"}


def test_a_dataset_without_fields_is_refused(fifty):
    plain = fifty_users(fields=())
    with pytest.raises(InputError, match="the Dataset has no fields; prepare it with --fields"):
        KINDS["sasrec"](use_fields=True).fit(plain)
    KINDS["sasrec"](epochs=1).fit(plain)


def test_a_refused_fit_creates_no_folder(tmp_path):
    with pytest.raises(InputError, match="the Dataset has no fields"):
        resid.fit(fifty_users(fields=()), "hgn-fields", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_of_another_model():
    with pytest.raises(InputError, match="a SASRec takes SASRecSettings, not a S3RecSettings"):
        SASRec(S3RecSettings())
    with pytest.raises(InputError, match="a HGN takes HGNSettings, not a dict"):
        HGN({"epochs": 1})


@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        (SASRecSettings, {"width": 30, "heads": 4}, "width=30 must be a multiple of heads=4"),
        (SASRecSettings, {"loss": "bpr"}, "invalid value 'bpr' for 'loss'"),
        (BERT4RecSettings, {"mask_prob": 0}, "invalid value 0 for 'mask_prob'"),
        (HGNSettings, {"layers": 2}, "there is no setting 'layers'"),
        (HGNSettings, {"last": 2}, "the setting 'last' is now called 'n_recent'"),
        (HGNSettings, {"user_vectors": True}, "the setting 'user_vectors' is now called 'user_embeddings'"),
        (SASRecSettings, {"clip": 1.0}, "the setting 'clip' is now called 'max_grad_norm'"),
        (SASRecSettings, {"hidden": 64}, "the setting 'hidden' is now called 'ffn_width'"),
        (SASRecSettings, {"fields": True}, "the setting 'fields' is now called 'use_fields'"),
        (BERT4RecSettings, {"last_share": 0.5}, "the setting 'last_share' is now called 'last_only_prob'"),
        (BERT4RecSettings, {"negatives": 5}, "the setting 'negatives' is now called 'n_negatives'"),
        (S3RecSettings, {"sampled_attributes": 5}, "'sampled_attributes' is now called 'n_sampled_attributes'"),
    ],
)
def test_bad_settings(kind, bad, message):
    with pytest.raises(InputError, match=message):
        kind(**bad)


def test_it_generalizes_to_longer_histories():
    data = walks()
    model = KINDS["sasrec"](epochs=30, patience=0).fit(data)
    trained = data.test.end - data.test.begin <= 8  # no training history is longer
    assert ranking_metrics(model.ranks(data.test)[0][trained])["ndcg@5"] > 0.95


def test_the_command_passes_the_user_to_hgn(fifty, tmp_path, capsys):
    fifty.save(tmp_path / "data")
    settings = [
        part
        for change in ("epochs=1", "width=8", "user_embeddings=true")
        for part in ("--set", f"recommender.{change}")
    ]
    assert (
        main(["fit", str(tmp_path / "data"), "--recipe", "hgn-fields", "--out", str(tmp_path / "run"), *settings]) == 0
    )
    capsys.readouterr()
    ask = ["recommend", str(tmp_path / "run"), "--history", "i1,i2", "--json"]
    answers = []
    for user in (["--user", "u1"], ["--user", "u2"], []):
        assert main([*ask, *user]) == 0
        answers.append(json.loads(capsys.readouterr().out)["scores"])
    assert answers[0] != answers[1] != answers[2]
    log = pl.DataFrame({"user": ["u1", "u1"], "item": ["i1", "i2"], "timestamp": [1, 2]})
    log.write_parquet(tmp_path / "log.parquet")
    out = tmp_path / "found.parquet"
    assert (
        main(["recommend", str(tmp_path / "run"), "--histories", str(tmp_path / "log.parquet"), "--out", str(out)]) == 0
    )
    assert pl.read_parquet(out)["score"].to_list() == pytest.approx(answers[0])
