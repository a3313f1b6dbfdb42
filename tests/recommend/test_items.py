"""New items: every model that can take them ranks them at once, IDs never move, and the rest of the model stays as it was."""

import json
import signal

import numpy as np
import polars as pl
import pytest
import torch

import resid
from resid import Dataset, InputError
from resid.cli import main
from resid.core.locks import exclusive
from resid.data import synthetic_shop
from resid.data.batches import PADDING
from resid.data.cold_items import newest_items
from resid.data.new_items import read_new_items
from resid.encode import FAMAE, FamaeSettings, TextEncoder, TextSettings
from resid.evaluate import evaluate
from resid.generate import JointGenerator, JointSettings, OnePassGenerator, OnePassSettings, T5Generator, T5Settings
from resid.generate.base import reduce_vectors
from resid.generate.blend import Blend
from resid.generate.new_items import same_map
from resid.nn import with_item_ids
from resid.quantize import GAOQ, LETTER, RQVAE, HierarchicalKMeans, RQKMeans
from resid.recommend import Recommender
from resid.runs import change_model

SMALL = {"width": 16, "ffn_width": 32, "layers": 1, "heads": 2, "epochs": 2, "batch_size": 128}
NEW = ["new0", "new1", "new2", "new3"]


@pytest.fixture(scope="module")
def shop():
    return synthetic_shop(users=150, items=70, interactions=1_500, seed=4, tags=3)


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories", "tags:tags"])


@pytest.fixture(scope="module")
def new(shop, data):
    """Three copies of an item of the shop, and one with values that training never saw."""
    row = shop.item_table.filter(pl.col("item") == data.item_ids[5])
    copies = pl.concat([row.with_columns(item=pl.lit(item)) for item in NEW])
    more = [row["tags"].to_list()[0]] * 3 + [[*row["tags"].to_list()[0], "unheard-of", "t1", "t2", "t3", "t4"]]
    return copies.with_columns(store=pl.Series([row["store"][0], None, row["store"][0], "Zeta"]), tags=pl.Series(more))


@pytest.fixture(scope="module")
def famae(data):
    return FAMAE(FamaeSettings(**SMALL)).fit(data)


@pytest.fixture(scope="module")
def text(data, tmp_path_factory):
    """Text vectors from a file, which has those of the new items as well."""
    path = tmp_path_factory.mktemp("text") / "vectors.parquet"
    items = [*data.item_ids.to_list(), *NEW]
    vectors = np.random.default_rng(0).normal(size=(len(items), 12)).astype(np.float32)
    pl.DataFrame({"item": items, "vector": vectors}).write_parquet(path)
    return TextEncoder(TextSettings(vectors=str(path))).fit(data)


def joined(data, encoder, quantizer, generator, name="encoder"):
    """Return a generator with the parts of its IDs, as a method makes it."""
    embeddings = encoder.embed(data)
    more = {"collaborative": embeddings.vectors} if quantizer.further_inputs else {}
    quantizer = quantizer.fit(embeddings.vectors, **more)
    inputs = [embeddings if generator.settings.uses_embeddings else None]
    inputs += [encoder] if generator.settings.uses_encoder else []
    model = generator.fit(data, quantizer.semantic_ids_, *inputs)
    model.parts_ = {name: encoder, "quantizer": quantizer}
    return model


def gaoq():
    return GAOQ((4, 3), spare=0.5, random_state=0)


KINDS = {
    "resid": lambda data, famae, text: joined(data, famae, gaoq(), JointGenerator(JointSettings(**SMALL))),
    "resid-codes": lambda data, famae, text: joined(data, famae, gaoq(), OnePassGenerator(OnePassSettings(**SMALL))),
    "q2": lambda data, famae, text: joined(
        data,
        famae,
        HierarchicalKMeans((4, 3), spare=0.5, random_state=0),
        OnePassGenerator(OnePassSettings(**SMALL, input_embeddings=False, output_embeddings=False)),
    ),
    "tiger": lambda data, famae, text: joined(
        data, text, RQVAE(2, 6, epochs=10, random_state=0), T5Generator(T5Settings(**SMALL, head_width=8))
    ),
    "letter": lambda data, famae, text: joined(
        data,
        text,
        LETTER(2, 6, hidden_layer_sizes=(16,), latent_dim=12, n_groups=2, epochs=4, evaluate_every=2, random_state=0),
        T5Generator(T5Settings(**SMALL, head_width=8)),
        "text_encoder",
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def model(request, data, famae, text):
    with torch.random.fork_rng(devices=[]):
        return KINDS[request.param](data, famae, text)


def copied(model):
    return Recommender.from_artifact(model.to_artifact())


@pytest.fixture(scope="module")
def codes_model(data, famae, text):
    return KINDS["resid-codes"](data, famae, text)


@pytest.fixture
def saved(codes_model, tmp_path):
    codes_model.save(tmp_path / "model")
    return tmp_path / "model"


class TestAdd:
    def test_new_items_are_recommended_and_nothing_else_changes(self, model, data, new, caplog, tmp_path):
        histories = [data.item_ids[row : row + 4].to_list() for row in (0, 9, 30)]
        before, scores = model.recommend(histories, data.n_items)
        published = model.semantic_ids
        changed = copied(model)
        report = changed.add_items(new)
        assert "field 'store': 1 of 4 values were not seen in training" in caplog.text
        assert changed.semantic_ids.head(data.n_items).equals(published)
        assert changed.semantic_ids["item"].to_list() == [*data.item_ids, *NEW]
        shared = isinstance(model.parts_["quantizer"], LETTER)
        assert changed.ids_.unique or shared
        assert changed.ids_.level_sizes == model.ids_.level_sizes
        for options in ({}, {"exact": True}):
            items, values = changed.recommend(histories, data.n_items + 4, **options)
            for row in range(3):
                assert set(NEW) < set(items[row])
                old = ~np.isin(items[row].astype(str), NEW)
                by_item = dict(zip(before[row], scores[row], strict=True))
                found = dict(zip(items[row][old], values[row][old], strict=True))
                assert [found[item] for item in by_item] == pytest.approx(list(by_item.values()), abs=2e-5)
        only, _ = changed.recommend(histories, 4, allow=NEW)
        assert all(set(row) == set(NEW) for row in only)
        assert changed.recommend([NEW], 3, exclude_seen=True)[0].shape == (1, 3)
        # The report.
        assert report.table["item"].to_list() == NEW
        assert report.table["unseen"].to_list() == [[], [], [], ["store=Zeta", *report.table["unseen"][3][1:]]]
        assert "tags=unheard-of" in report.table["unseen"][3]
        codes = changed.semantic_ids.tail(4).drop("item").rows()
        assert report.table["id"].to_list() == ["-".join(map(str, row)) for row in codes]
        assert report.table["leaf"].to_list() == ["-".join(map(str, row[:-1])) for row in codes]
        assert all(set(row) <= set(data.item_ids) and len(row) == 3 for row in report.table["nearest"])
        assert "new3 with the ID" in str(report)
        assert (report.room is None) == shared
        # And what is saved.
        changed.save(tmp_path / "model")
        loaded = resid.load(tmp_path / "model")
        for ours, theirs in zip(changed.recommend(histories), loaded.recommend(histories), strict=True):
            assert ours.tolist() == theirs.tolist()
        assert loaded.lineage_ == changed.lineage_
        assert loaded.lineage_[0]["action"] == "add"
        assert (loaded.lineage_[0]["items"], loaded.lineage_[0]["parent"]) == (4, model.checksum)

    def test_ids_are_never_given_twice(self, codes_model, new):
        model, rows = copied(codes_model), new.head(2)
        seen = {row[1:]: row[0] for row in model.semantic_ids.rows()}
        for step in range(3):
            names = [f"a{step}", f"b{step}"]
            model.add_items(rows.with_columns(item=pl.Series(names)))
            model.remove_items(names[:1])
            for item, *codes in model.semantic_ids.rows():
                assert seen.setdefault(tuple(codes), item) == item
        assert len(seen) == len(model.catalogue_) == len(model.parts_["quantizer"].codes_)
        assert model.catalogue_.added == 6
        everything, _ = model.recommend([["a0", "b0"]], len(model.catalogue_) - 3)
        assert {"b0", "b1", "b2"} < set(everything[0])
        assert not {"a0", "a1", "a2"} & set(everything[0])
        assert [each["action"] for each in model.lineage_] == ["add", "remove"] * 3
        assert model.restore_items(["a1"]) == 1
        assert "a1" in model.recommend([["a0"]], 43)[0]

    @pytest.mark.parametrize("kind", ["resid", "resid-codes"])
    def test_the_codes_of_a_new_item_score_as_its_leaf_on_average(self, kind, data, famae, text, new):
        model = KINDS[kind](data, famae, text)
        model.add_items(new.head(1))
        if kind == "resid":
            model.blend_ = model.added_blend_ = Blend({"codes": 1.0})
        same = (model.ids_.codes[:-1, :-1] == model.ids_.codes[-1, :-1]).all(axis=1)
        items, scores = model.top(np.array([[int(np.argmin(same))]]), len(model.catalogue_), exact=True)
        by_item = np.empty(len(model.catalogue_))
        by_item[items[0]] = scores[0]
        assert by_item[-1] == pytest.approx(by_item[:-1][same].mean(), abs=1e-4)

    def test_blend_of_new_items(self, data, famae, text, new):
        """They have a bias that is chosen on validation users, and count in histories as the items that stand in for them."""
        model = KINDS["resid"](data, famae, text)
        assert model.added_blend_ is not None
        assert model.added_blend_.seen_bias == model.blend_.seen_bias
        fitted, before = model.added_blend_, model.top(np.array([[3, 5]]), data.n_items, exact=True)
        model.added_blend_ = Blend(fitted.weights, fitted.seen_bias, 1_000.0)
        assert np.array_equal(model.top(np.array([[3, 5]]), data.n_items, exact=True)[1], before[1])
        model.add_items(new)
        items, scores = model.top(np.array([[3, 5]]), data.n_items, exact=True)
        beams = model.top(np.array([[3, 5]]), data.n_items, beam_size=len(model.catalogue_))
        assert set(items[0]) == set(beams[0][0])
        assert scores == pytest.approx(beams[1], rel=1e-4)
        assert set(items[0, :4]) == set(range(data.n_items, data.n_items + 4))
        assert copied(model).added_blend_ == model.added_blend_
        parts = model.contributions(np.array([[3, 5]]), items)
        assert sum(parts.values()) == pytest.approx(scores, rel=1e-4)
        assert parts["added"][0].tolist() == [1_000.0] * 4 + [0.0] * (data.n_items - 4)
        nearest = model._stand_ins[[data.n_items]].indices
        rows = model._cooccurrence.similarity_
        assert rows[[data.n_items]].toarray() == pytest.approx(rows[nearest].toarray().mean(axis=0, keepdims=True))

    def test_items_as_if_added_score_as_added_ones(self, shop, data, famae, text):
        """Where the bias is chosen, the newest items have the scores of added items with the same fields, also in histories."""
        model, hidden = KINDS["resid"](data, famae, text), newest_items(data, 0.1)
        windows = [data.test.window(user)[0][-6:] for user in range(data.n_users)]
        recent = model.recent(
            np.stack([np.r_[[PADDING] * 25, each] for each in windows if len(each) == 6]).astype(np.int64)
        )
        assert torch.from_numpy(hidden)[recent.clamp_min(0)].any()
        before = [parameter.clone() for parameter in model.model_.parameters()]
        with torch.inference_mode(), model._as_added(data, hidden) as scored:
            ours = scored.of(recent, model.model_.encode_histories(recent)[:, 0], None)
        assert all(torch.equal(a, b) for a, b in zip(before, model.model_.parameters(), strict=True))

        listed = pl.DataFrame({"item": data.item_ids.filter(pl.Series(hidden))})
        table = listed.join(shop.item_table, on="item", how="left", maintain_order="left")
        model.add_items(table.with_columns(pl.concat_str(pl.lit("new "), "item").alias("item")))
        places = torch.arange(data.n_items)
        places[torch.from_numpy(hidden)] = data.n_items + torch.arange(len(table))
        recent = torch.where(recent == PADDING, PADDING, places[recent.clamp_min(0)])
        with torch.inference_mode():
            theirs = model._item_scores.of(recent, model.model_.encode_histories(recent)[:, 0], None)
        known = torch.from_numpy(data.training_counts > 0)  # others have the scores of similar items
        for name in ("item", "encoder"):
            torch.testing.assert_close(ours[name][:, known], theirs[name][:, places][:, known], rtol=1e-4, atol=1e-4)

    def test_evaluation_with_new_and_withdrawn_items(self, codes_model, data, new):
        model = copied(codes_model)
        before = evaluate(model, data, k=10)
        model.add_items(new)
        after = evaluate(model, data, k=10)
        assert (after.kept >= before.kept).all()  # nothing but new items can come between
        model.remove_items(NEW)
        assert np.array_equal(evaluate(model, data, k=10).kept, before.kept)

    def test_other_columns_that_are_missing(self, codes_model, new, caplog):
        model = copied(codes_model)
        model.add_items(new.drop("title"))
        assert "has no column title; it is missing for the new items" in caplog.text
        assert model.catalogue_.items["title"].tail(4).to_list() == [None] * 4
        assert codes_model.catalogue_.vocabulary("store").equals(model.catalogue_.vocabulary("store"))

    def test_a_file(self, codes_model, new, tmp_path):
        new.head(1).write_ndjson(tmp_path / "new.jsonl")
        model = copied(codes_model)
        assert model.add_items(tmp_path / "new.jsonl").table["item"].to_list() == ["new0"]


@pytest.mark.parametrize("kind", ["sasrec", "hgn", "bert4rec"])
def test_sequential_models_with_fields(kind, data, new):
    options = {"recommender.epochs": 1, "recommender.width": 16}
    model = resid.fit(data, f"{kind}-fields", changes=options)
    history = [data.item_ids[:3].to_list()]
    before, scores = model.recommend(history, data.n_items)
    report = model.add_items(new)
    assert report.table["id"].to_list() == [None] * 4
    assert report.table["nearest"][0].len() == 3
    items, values = model.recommend(history, data.n_items + 4)
    old = ~np.isin(items[0].astype(str), NEW)
    assert items[0][old].tolist() == before[0].tolist()
    assert values[0][old] == pytest.approx(scores[0], abs=1e-5)
    place = items[0].tolist().index
    first, same, other = (values[0][place(item)] for item in ("new0", "new2", "new3"))
    assert first == pytest.approx(same, rel=1e-5)  # by their fields
    assert first != pytest.approx(other, rel=1e-5)
    assert model.recommend([NEW], 5)[0].shape == (1, 5)


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: t.with_columns(item=pl.lit("KNOWN")).head(1), "1 item is in the model already, first '.*'; leave"),
            (lambda t: t.drop("store"), "there is no field 'store', it has"),
            (lambda t: t.drop("item"), r"there is no column 'item', .* pass its name with item_column='.*' \(--item-column"),
            (lambda t: t.with_columns(store=pl.lit(1.5)), "column 'store' has numbers, not text"),
            (lambda t: t.with_columns(item=pl.lit(float("nan"))), "item"),
            (lambda t: t.with_columns(item=pl.lit("twice")), "duplicate item"),
            (lambda t: t.with_columns(item=pl.lit(None, pl.String)), "missing value"),
            (lambda t: t.with_columns(item=pl.int_range(4)), "item ids are integers here but text in the model; convert"),
            (lambda t: t.head(0), "the table is empty"),
            (lambda t: pl.concat([t.with_columns(item=pl.lit(f"n{n}-") + pl.col("item")) for n in range(20)]), "no room for 80 new items: row [0-9]+: all [0-9]+ IDs are taken"),
            (lambda t: 5, "a int is not a table"),
        ],
    )  # fmt: skip
    def test_bad_tables(self, codes_model, data, new, change, message):
        table = change(new)
        if isinstance(table, pl.DataFrame) and "item" in table.columns and table["item"].dtype == pl.String:
            table = table.with_columns(pl.col("item").replace("KNOWN", data.item_ids[0]))
        model = copied(codes_model)
        with pytest.raises(InputError, match=message):
            model.add_items(table)
        assert len(model.catalogue_) == data.n_items
        assert not model.lineage_

    def test_models_that_cannot(self, codes_model, data, new, saved):
        codes_model.save(saved, parts=False)
        with pytest.raises(InputError, match="saved without its encoder and quantizer"):
            resid.load(saved).add_items(new)
        for recipe, message in (
            ("popularity", "a Popularity knows items by their interactions alone and cannot take new items"),
            ("cooccurrence", "a CoOccurrence knows items by their interactions alone"),
        ):
            with pytest.raises(InputError, match=message):
                resid.fit(data, recipe).add_items(new)
        with pytest.raises(InputError, match="this SASRec reads no item fields and cannot take new items"):
            resid.fit(data, "sasrec", changes={"recommender.epochs": 1}).add_items(new)

    def test_scarce_room_is_a_warning(self, data, famae, new, caplog):
        model = joined(data, famae, GAOQ((2,), random_state=0), OnePassGenerator(OnePassSettings(**SMALL)))
        free = model.room().free
        assert 0 < free < 0.1 * data.n_items  # leaves differ in size by one
        report = model.add_items(new.head(min(free, 4)))
        assert report.room.free == free - len(report)
        assert "fit again with a larger quantizer.spare before they run out" in caplog.text


class TestQuantizers:
    VECTORS = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)

    @pytest.mark.parametrize("kind", [GAOQ, HierarchicalKMeans])
    @pytest.mark.parametrize("spare", [0.1, 0.5])
    def test_spare(self, kind, spare):
        plain, roomy = (kind((4, 3), spare=each, random_state=0) for each in (0.0, spare))
        with pytest.warns(UserWarning, match="orthogonal") if kind is GAOQ else torch.no_grad():
            plain.fit(self.VECTORS)
            roomy.fit(self.VECTORS)
        assert roomy.room().free >= spare * 90
        assert roomy.room().taken == 90
        assert np.array_equal(roomy.codes_[:, 0], plain.codes_[:, 0])
        assert roomy.semantic_ids_.unique
        ids = roomy.extend(np.repeat(self.VECTORS[:1], roomy.room().free, axis=0), distinct=True)
        assert roomy.room().free == 0
        assert len(np.unique(roomy.codes_, axis=0)) == len(roomy.codes_) == 90 + len(ids)
        with pytest.raises(ValueError, match=r"row 0: all .* IDs are taken"):
            roomy.extend(self.VECTORS[:1], distinct=True)

    def test_spare_is_a_number(self):
        with pytest.raises(ValueError, match="spare=-1 is invalid"):
            HierarchicalKMeans((4, 3), spare=-1).fit(self.VECTORS)
        k_ary = HierarchicalKMeans(5, spare=0.5, random_state=0).fit(self.VECTORS)
        assert k_ary.room().free >= 45
        assert "spare" not in GAOQ.settings_class().identity()  # stages of earlier versions are reused
        assert GAOQ.settings_class(spare=0.5).identity()["spare"] == 0.5

    def test_a_full_leaf_leads_to_the_nearest_one_with_room(self):
        """The vectorized search gives the codes of a search that visits leaf after leaf, nearest child first."""
        quantizer = HierarchicalKMeans((4, 3), spare=0.3, random_state=0).fit(self.VECTORS)
        rows = np.random.default_rng(1).normal(size=(25, 6)).astype(np.float32)
        used = {}
        for leaf, code in zip(quantizer._leaves.tolist(), quantizer.codes_[:, -1].tolist(), strict=True):
            used.setdefault(leaf, set()).add(code)
        (roots, _), (centers, counts) = ((c.numpy(), n) for c, n in quantizer._tree)
        expected = []
        for row in rows:
            first = ((roots[0] - row) ** 2).sum(axis=1).argsort(kind="stable")
            path = (n * 3 + c for n in first for c in ((centers[n, : counts[n]] - row) ** 2).sum(axis=1).argsort())
            leaf = next(leaf for leaf in path if len(used[leaf]) < quantizer.level_sizes_[-1])
            expected.append(min(set(range(quantizer.level_sizes_[-1])) - used[leaf]))
            used[leaf].add(expected[-1])
        assert quantizer.extend(rows, distinct=True)[:, -1].tolist() == expected

    @pytest.mark.parametrize("quantizer", [RQKMeans(2, 4, random_state=0), RQVAE(2, 4, epochs=2, random_state=0)])
    def test_residual_quantizers_stay_within_their_levels(self, quantizer):
        quantizer.fit(self.VECTORS)
        before = quantizer.semantic_ids_
        ids = quantizer.extend(np.repeat(self.VECTORS[:1], before.level_sizes[-1] + 2, axis=0), distinct=True)
        after = quantizer.semantic_ids_
        assert after.level_sizes == before.level_sizes
        assert np.array_equal(after.codes[:90], before.codes)
        assert np.array_equal(after.codes[90:], ids)
        assert len({tuple(row) for row in ids[:, :2]}) > 1  # the codes of the row itself are full
        assert len(set(ids[:, 0])) == 1  # and another last code is near

    def test_the_map_of_reduced_vectors_is_found(self):
        for width in (3, 20):
            reduced = reduce_vectors(self.VECTORS, width)
            assert same_map(self.VECTORS[:60], reduced[:60], self.VECTORS[60:]) == pytest.approx(reduced[60:], abs=1e-4)


class TestCommands:
    def test_the_life_of_a_model(self, saved, new, tmp_path, capsys):
        new.write_parquet(tmp_path / "new.parquet")
        today = str(tmp_path / "today")
        assert main(["items", "add", str(saved), str(tmp_path / "new.parquet"), "--out", today, "--json"]) == 0
        added = json.loads(capsys.readouterr().out)
        assert [row["item"] for row in added["items"]] == NEW
        assert added["room"]["free"] == sum(row["free"] for row in added["room"]["branches"])
        assert main(["items", "remove", today, "--items", "new0,new1", "--out", today]) == 0
        assert "2 items were withdrawn; " in capsys.readouterr().out
        (tmp_path / "back.txt").write_text("new1\n")
        assert main(["items", "restore", today, "--file", str(tmp_path / "back.txt"), "--out", today, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["withdrawn"] == 1
        assert main(["items", "list", today, "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert (listed["added"], listed["withdrawn_items"]) == (4, ["new0"])
        assert [each["action"] for each in listed["lineage"]] == ["add", "remove", "restore"]
        for command in (["items", "list", today], ["inspect", today]):
            assert main(command) == 0
            assert "2 items withdrawn, by resid" in capsys.readouterr().out
        assert not resid.load(saved).lineage_
        assert main(["items", "add", today, str(tmp_path / "new.parquet"), "--out", today]) == 2
        assert "4 items are in the model already, first 'new0'; restore withdrawn items" in capsys.readouterr().err
        assert main(["items", "remove", today, "--out", today]) == 2
        assert "give either --items B01,B02 or --file FILE" in capsys.readouterr().err

    def test_one_process_at_a_time(self, saved, new):
        lock = saved.parent / f".{saved.name}.lock"
        busy = pytest.raises(InputError, match="another run is using this folder")
        with exclusive(saved, file=lock), busy, change_model(saved, saved):
            pytest.fail("two processes change one model")
        with change_model(saved, saved) as model:
            model.add_items(new)
        assert len(resid.load(saved).lineage_) == 1

    def test_an_error_or_a_kill_leaves_the_old_model(self, saved, new, forks):
        with pytest.raises(InputError, match="the model has no item"), change_model(saved, saved) as model:
            model.remove_items(
                [model.catalogue_.item_ids[0]] * model.remove_items([model.catalogue_.item_ids[1]]) + ["gone"]
            )
        assert not resid.load(saved).lineage_
        program = (
            "import os, signal, sys\nfrom resid.core import files\nfrom resid.runs import change_model\n"
            "files._write_out = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"  # when all is written but not in place
            "with change_model(sys.argv[1], sys.argv[1]) as model:\n    model.remove_items(sys.argv[2:])\n"
        )
        item = resid.load(saved).catalogue_.item_ids[0]
        assert forks.run([saved, item], program=program).code == -signal.SIGKILL
        assert not resid.load(saved).lineage_
        with change_model(saved, saved) as model:
            model.remove_items([item])
        assert len(resid.load(saved).catalogue_.withdrawn) == 1
        assert sorted(path.name for path in saved.parent.iterdir()) == [f".{saved.name}.lock", saved.name]

    def test_a_run(self, data, new, tmp_path):
        data.save(tmp_path / "data")
        changes = {"recommender.epochs": 1, "recommender.width": 16}
        run = tmp_path / "run"
        resid.fit(Dataset.load(tmp_path / "data"), "sasrec-fields", run, changes=changes)
        (run / "evaluation").mkdir()
        with change_model(run, run) as model:
            model.add_items(new)
        assert resid.load(run).catalogue_.added == 4
        assert not (run / "evaluation").exists()  # it described another model
        for folder in (tmp_path / "data", tmp_path / "elsewhere"):
            if folder.name == "elsewhere":
                resid.fit(Dataset.load(tmp_path / "data"), "popularity", folder)
            with pytest.raises(InputError, match=r"is a Dataset|is another run"), change_model(run, folder):
                pass


def test_new_tags_and_paths_are_read_as_those_of_the_dataset(data, new):
    found = read_new_items(new, data.catalogue)
    assert found.items.schema == data.catalogue.items.schema
    assert len(found.catalogue) == data.n_items + 4
    codes = found.append_codes(with_item_ids(np.arange(data.n_items), data.fields))
    assert codes.shape[0] == data.n_items + 4
    assert np.array_equal(codes[-4:, 0, 0], data.n_items + np.arange(4))
    known = codes[data.catalogue.find([data.item_ids[5]])[0], 1:]
    assert np.array_equal(codes[-4, 1:], known)
    assert codes[-3, 1, 0] == 0  # a missing store
    assert codes[-1, 1, 0] == 0  # and one that training never saw
