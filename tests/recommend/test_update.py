"""New interactions: models are trained further on a grown log, IDs stay, and a kill or an error leaves the old model as it was."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError
from resid.cli import main
from resid.data import synthetic_shop
from resid.data.growth import all_in_training, grow, new_targets, read_interactions, with_replay
from resid.data.prepare import LATEST
from resid.evaluate import evaluate
from resid.recommend.settings import UpdateSettings
from tests.recommend.contract import interrupt_after

TINY = {"width": 16, "ffn_width": 16, "layers": 1, "heads": 2, "epochs": 2}
FIELDS = ["store", "categories"]
RESID = {
    **{f"{part}.{name}": value for part in ("encoder", "generator") for name, value in TINY.items()},
    "quantizer.branching": (4, 3),
    "quantizer.spare": 0.5,
    "generator.beam_size": 20,
}
QUICK = UpdateSettings(epochs=1)


@pytest.fixture(scope="module")
def shop():
    """A shop's log in two parts, with a new item and two new users in the second one; timestamps tell them apart."""
    shop = synthetic_shop(users=150, items=60, interactions=1_500, seed=4)
    log = shop.interaction_table.sort("timestamp")
    log = log.with_columns(timestamp=pl.int_range(pl.len()) + 1_700_000_000)
    old, new = log.head(1_350), log.tail(150)
    new_item = shop.item_table.head(1).with_columns(item=pl.lit("brand-new"))
    more = pl.DataFrame(
        {
            "user": [*new["user"].head(6), *["newcomer"] * 4, "passer-by"],
            "item": ["brand-new"] * 6 + [*new["item"].head(3), "brand-new", new["item"][0]],
            "timestamp": np.arange(11) + new["timestamp"].max() + 1,
        }
    )
    return old, new, pl.concat([new, more.select(new.columns)]), shop.item_table, new_item


@pytest.fixture(scope="module")
def data(shop, tmp_path_factory):
    prepared = Dataset.from_tables(shop[0], shop[3], FIELDS, k_core=1)
    prepared.save(tmp_path_factory.mktemp("data") / "old")
    return prepared


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "resid"
    resid.fit(data, "resid", folder, changes=RESID)
    return folder


def known(data, log):
    """Return the interactions with items of a Dataset."""
    return log.filter(pl.col("item").is_in(data.item_ids.implode()))


class TestGrowth:
    def test_a_file_may_have_the_whole_log(self, shop, data):
        """Also interactions that the Dataset does not have as a filter removed their items."""
        new = known(data, shop[1])
        whole = pl.concat([shop[0].head(5).with_columns(item=pl.lit("filtered")), shop[0], new])
        log, left_out = read_interactions(whole, data.catalogue, data.user_ids, after=data.notes[LATEST])
        assert (len(log), left_out) == (len(new), len(shop[0]) + 5)

    def test_a_time_below_one_is_no_share(self, shop, data):
        new = known(data, shop[1]).with_columns(timestamp=0.7 + pl.int_range(pl.len()) / 1e4)
        assert len(read_interactions(new, data.catalogue, data.user_ids, after=0.69)[0]) == len(new)

    def test_items_keep_the_time_of_their_first_interaction(self, shop, data):
        log, _ = read_interactions(known(data, shop[1]), data.catalogue, data.user_ids)
        assert (grow(data.catalogue, log, data).first_seen == data.first_seen).all()

    def test_the_grown_dataset_is_that_of_the_whole_log(self, shop, data):
        old, new = shop[0], known(data, shop[1]).filter(pl.col("user").is_in(shop[0]["user"].implode()))
        settings = {"k_core": 1, "min_interactions": 3}
        whole = Dataset.from_tables(pl.concat([old, new]), shop[3], FIELDS, **settings)
        log, left_out = read_interactions(new, data.catalogue, data.user_ids, after=data.notes[LATEST])
        grown = grow(data.catalogue, log, data)
        assert left_out == 0
        assert set(whole.item_ids) <= set(data.item_ids)
        for user in whole.user_ids.head(40):
            assert grown.history(user).to_list() == whole.history(user).to_list()
        assert grown.notes[LATEST] == new["timestamp"].max()

    def test_the_training_targets_of_the_fit_are_not_new(self, shop, data):
        log, _ = read_interactions(known(data, shop[1]), data.catalogue, data.user_ids)
        grown = grow(data.catalogue, log, data)
        new = new_targets(grown, data)
        assert new.sum() == len(grown.train) - len(data.train)
        assert new_targets(grown, None).all()
        everything = all_in_training(grown)
        assert len(everything.validation) == len(everything.test) == 0
        final = new_targets(everything, data, all_known=True)
        first = grown.n_users - data.n_users  # the first item of a user is no target
        assert final.sum() == len(log) - first
        replayed = with_replay(grown.train, new, 1.0, 0)
        assert new.sum() < len(replayed) <= 2 * new.sum() + np.bincount(grown.train.users).max()

    def test_what_is_known_by_its_time_is_left_out(self, shop, data):
        log, left_out = read_interactions(
            known(data, pl.concat([shop[0], shop[1]])), data.catalogue, data.user_ids, after=data.notes[LATEST]
        )
        assert left_out == len(known(data, shop[0]))
        assert len(log) == len(known(data, shop[1]))
        with pytest.raises(InputError, match=r"all 1,350 interactions are from 2023.* or before.*give newer ones"):
            read_interactions(shop[0], data.catalogue, data.user_ids, after=data.notes[LATEST])

    def test_a_time_split_moves_on_to_the_new_interactions(self, shop):
        time = {"split": "time", "validate_from": 0.8, "test_from": 0.9, "targets": "all"}
        old = Dataset.from_tables(shop[0], shop[3], FIELDS, k_core=1, **time)
        log, _ = read_interactions(known(old, shop[1]), old.catalogue, old.user_ids)
        grown = grow(old.catalogue, log, old)
        parts = grown.notes["time_split"]["interactions"]
        assert parts["train"] == old.n_interactions + int(0.8 * len(log))
        assert grown.fingerprint != old.fingerprint
        assert Dataset.load(saved(grown)).fingerprint == grown.fingerprint


def saved(data, places=[]):  # noqa: B006 - one folder for this module
    import tempfile

    places.append(tempfile.mkdtemp())
    folder = f"{places[-1]}/data"
    data.save(folder)
    return folder


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("resid-codes", RESID),
        ("resid-t5", {**RESID, "generator.head_width": 8}),
        ("sasrec-fields", {f"recommender.{name}": value for name, value in TINY.items()}),
        ("s3rec", {f"recommender.{name}": value for name, value in TINY.items()} | {"epochs": 1}),
        ("hgn", {"recommender.width": 16, "recommender.epochs": 1}),
        ("bert4rec", {f"recommender.{name}": value for name, value in TINY.items()}),
    ],
)
def test_models_are_updated_and_fitted_to_everything(recipe, changes, data, shop):
    changes = {name: value for name, value in changes.items() if not name.endswith("beam_size")}
    model = resid.fit(data, recipe, changes=changes)
    ids, before = model.ids_, model.checksum
    updated = resid.update(model, known(data, shop[1]), data=data, settings=QUICK)
    assert updated.model is model
    assert updated.data.n_interactions == data.n_interactions + len(known(data, shop[1]))
    assert (model.catalogue_.counts == updated.data.training_counts).all()
    if ids is not None:
        assert (model.ids_.codes == ids.codes).all()
    (record,) = model.lineage_
    assert (record["action"], record["parent"]) == ("update", before)
    assert evaluate(model, updated.data).metrics((10,))["users"] > 100
    with pytest.raises(InputError, match="fitted to another Dataset"):
        evaluate(model, data)
    final = model.refit_on_all(updated.data)
    assert final.catalogue_.counts.sum() == updated.data.n_interactions
    assert len(final.history_) == model.best_epoch_
    assert final.measured_["checksum"] == model.checksum
    with pytest.raises(InputError, match="nothing is left to measure it with"):
        evaluate(final, updated.data)


class TestFolders:
    def update(self, run, shop, tmp_path, *more):
        for name, table in (("new", shop[2]), ("items", shop[4])):
            table.write_parquet(tmp_path / f"{name}.parquet")
        tables = [str(tmp_path / "new.parquet"), str(tmp_path / "items.parquet")]
        return main(["update", str(run), *tables, "--epochs", "2", *more])

    def test_a_new_item_is_added_and_learned(self, run, data, shop, tmp_path, capsys):
        old = resid.load(run)
        assert (
            self.update(run, shop, tmp_path, "--out", str(tmp_path / "m"), "--save-data", str(tmp_path / "d"), "--json")
            == 0
        )
        report = json.loads(capsys.readouterr().out)
        assert [item["item"] for item in report["items"]] == ["brand-new"]
        assert report["interactions"] == len(shop[2])
        model, grown = resid.load(tmp_path / "m"), Dataset.load(tmp_path / "d")
        assert [each["action"] for each in model.lineage_] == ["add", "update"]
        assert grown.history("passer-by").len() == 1
        assert (model.ids_.codes[: len(old.ids_)] == old.ids_.codes).all()
        assert model.catalogue_.counts[-1] > 0
        assert model.n_decoded == len(model.catalogue_)
        assert model.trained_items[-1]
        assert len(evaluate(model, grown).kept) == len(grown.test)
        model.recommend([["brand-new"]], k=5)
        assert not list(tmp_path.glob(".m.update"))
        # The next update starts from the grown Dataset; what it has is not trained on again.
        assert (
            main(
                [
                    "update",
                    str(tmp_path / "m"),
                    str(tmp_path / "new.parquet"),
                    "--data",
                    str(tmp_path / "d"),
                    "--out",
                    str(tmp_path / "m2"),
                ]
            )
            == 2
        )
        assert "give newer ones" in capsys.readouterr().err

    def test_the_weights_of_the_scores_are_fitted_again(self, run, data, shop, monkeypatch):
        model = resid.load(run)
        blend = model.blend_
        few = resid.update(resid.load(run), known(data, shop[1]), data=data, settings=QUICK)
        assert few.model.blend_ == blend
        monkeypatch.setattr("resid.generate.joint._UPDATED_BLEND_USERS", (50, 100))
        resid.update(model, known(data, shop[1]), data=data, settings=QUICK)
        assert model.blend_ != blend

    def test_an_interrupted_update_ends_with_the_same_weights(self, run, shop, tmp_path, monkeypatch):
        before = (run / "model" / "manifest.json").read_bytes()
        assert self.update(run, shop, tmp_path, "--out", str(tmp_path / "whole")) == 0
        with monkeypatch.context() as patch:
            interrupt_after(3, patch)
            assert self.update(run, shop, tmp_path, "--out", str(tmp_path / "twice")) == 130
        assert not (tmp_path / "twice").exists()
        assert self.update(run, shop, tmp_path, "--out", str(tmp_path / "twice")) == 0
        assert resid.load(tmp_path / "twice").digest == resid.load(tmp_path / "whole").digest
        assert (run / "model" / "manifest.json").read_bytes() == before

    def test_a_saved_model_learns_from_the_file_alone(self, run, data, shop, tmp_path, caplog):
        model = resid.load(run)
        model.save(tmp_path / "alone")
        updated = resid.update(tmp_path / "alone", known(data, shop[1]), out=tmp_path / "m", settings=QUICK)
        assert "the Dataset of" in caplog.text
        counts = model.catalogue_.counts + updated.data.training_counts
        assert (updated.model.catalogue_.counts == counts).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda log, _: log.with_columns(item=pl.lit("ghost")),
                "1 item is not in the model, first 'ghost'; give a table",
            ),
            (lambda log, _: log.head(0), "the table is empty"),
            (lambda log, old: old, "give newer ones"),
            (lambda log, _: log.drop("timestamp"), "there is no column 'timestamp'"),
            (
                lambda log, _: log.with_columns(item=pl.int_range(pl.len())),
                "item ids are integers here but text in the model",
            ),
        ],
    )
    def test_bad_interactions_are_refused(self, change, message, run, data, shop, tmp_path, capsys):
        change(known(data, shop[1]), known(data, shop[0])).write_parquet(tmp_path / "new.parquet")
        assert main(["update", str(run), str(tmp_path / "new.parquet"), "--out", str(tmp_path / "m")]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "m").exists()

    def test_what_is_no_model_of_this_data_is_refused(self, run, data, shop, tmp_path, capsys):
        other = Dataset.from_tables(shop[0].head(900), shop[3], FIELDS, k_core=1)
        other.save(tmp_path / "other")
        model = resid.load(run)
        new = known(data, shop[1])
        with pytest.raises(InputError, match="fitted to another Dataset"):
            resid.update(model, new, data=other)
        with pytest.raises(InputError, match="is a run, which stays on its Dataset"):
            resid.update(run, new, out=run)
        with pytest.raises(InputError, match="is the Dataset that grows"):
            resid.update(model, new, data=data, save_data=data.folder, settings=QUICK)
        assert not model.lineage_  # and is not changed
        model.save(tmp_path / "damaged")
        (tmp_path / "damaged" / "weights.safetensors").write_bytes(b"damaged")
        with pytest.raises(InputError, match="missing or altered"):
            resid.update(tmp_path / "damaged", new, data=data, out=tmp_path / "m")
        with pytest.raises(InputError, match="Popularity has no network"):
            resid.update(resid.fit(data, "popularity"), new, data=data)

    def test_new_ids_come_with_a_map(self, run, shop, data, tmp_path):
        assert self.update(run, shop, tmp_path, "--out", str(tmp_path / "r"), "--new-ids") == 2
        for name, table in (("new", shop[2]), ("items", shop[4])):
            table.write_parquet(tmp_path / f"{name}.parquet")
        tables = [str(tmp_path / "new.parquet"), str(tmp_path / "items.parquet")]
        more = ["--save-data", str(tmp_path / "d"), "--new-ids", "--out", str(tmp_path / "r")]
        shutil.copytree(run, tmp_path / "run")
        withdrawn = data.item_ids[5]
        assert (
            main(["items", "remove", str(tmp_path / "run"), "--items", withdrawn, "--out", str(tmp_path / "run")]) == 0
        )
        assert main(["update", str(tmp_path / "run"), *tables, *more]) == 0
        ids = pl.read_parquet(tmp_path / "r" / "new-ids.parquet")
        assert ids.columns == ["item", "old_id", "new_id"]
        assert ids.filter(pl.col("old_id").is_null())["item"].to_list() == ["brand-new"]
        model = resid.load(tmp_path / "r")
        assert ids["new_id"][3] == "-".join(map(str, model.ids_.codes[3]))
        assert ids["old_id"][3] == "-".join(map(str, resid.load(run).ids_.codes[3]))
        assert model.catalogue_.item_ids.gather(model.catalogue_.withdrawn).to_list() == [withdrawn]
        assert main(["evaluate", str(tmp_path / "r")]) == 0


class TestFinal:
    def test_what_cannot_be_trained_again_is_refused_first(self, run, data, shop, tmp_path, capsys):
        assert main(["fit", str(data.folder), "--recipe", "popularity", "--out", str(tmp_path / "p"), "--final"]) == 2
        assert "'popularity' cannot be trained on all interactions" in capsys.readouterr().err
        assert not (tmp_path / "p").exists()
        grown = resid.load(run)
        grown.add_items(shop[4])
        with pytest.raises(InputError, match="1 item of the model is not in the Dataset; train the model from before"):
            grown.refit_on_all(data)

    def test_fit_final_keeps_the_measured_model(self, run, data, shop, tmp_path, capsys):
        measured = resid.load(run)
        arguments = ["fit", str(data.folder), "--out", str(run), "--final"]
        sets = [
            part
            for name, value in RESID.items()
            for part in ("--set", f"{name}={value}".replace("(", "").replace(")", "").replace(" ", ""))
        ]
        assert main([*arguments, *sets]) == 0
        assert "no honest figure exists" in capsys.readouterr().out
        final = resid.load(run / "final")
        assert final.checksum != measured.checksum == resid.load(run).checksum
        assert final.blend_ == measured.blend_
        assert (final.ids_.codes == measured.ids_.codes).all()
        assert final.catalogue_.counts.sum() == data.n_interactions
        assert final.measured_["test"]["recall@10"] == evaluate(measured, data).metrics((10,))["seen_kept"]["recall@10"]
        assert main([*arguments, *sets]) == 0  # loads it
        assert "reusing the model that was trained on all" in capsys.readouterr().err
        assert main(["inspect", str(run / "final")]) == 0
        assert "no honest figure exists" in capsys.readouterr().out
        # It knows the Dataset of its run.
        assert main(["recommend", str(run / "final"), "--user", str(data.user_ids[0]), "-k", "2"]) == 0
        assert main(["evaluate", str(run / "final")]) == 2
        assert "was trained on all interactions" in capsys.readouterr().err
        # An update of it trains on all new interactions but a few.
        updated = resid.update(final, known(data, shop[1]), data=data, settings=QUICK)
        assert updated.model.measured_ is not None
        with_new = known(data, shop[1])["user"].n_unique()
        assert updated.training.new_targets >= 0.8 * len(known(data, shop[1])) - with_new
