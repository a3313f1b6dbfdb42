"""Contract tests of recommenders: a test class inherits them and builds the model."""

import json
import logging
import os
import shutil
import signal
from collections import Counter

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError, Recommender
from resid.data import PADDING
from resid.data.splits import Split
from resid.evaluate import NOT_FOUND, evaluate, ranking_metrics, ranks_of
from resid.train.loop import _Training


def walks() -> Dataset:
    """Return a Dataset whose users walk through the same cycle of twelve items, each from another start."""
    rows = [(f"u{user}", f"i{(user + step) % 12}", step) for user in range(120) for step in range(6 + user % 7)]
    items = pl.DataFrame({"item": [f"i{n}" for n in range(12)], "store": ["a", "b"] * 6})
    log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    return Dataset.from_tables(log, items, ["store"])


def interrupt_after(count, monkeypatch):
    """Send SIGINT to the process in the given training step, as Ctrl-C does; return the list of steps."""
    steps, step = [], _Training._step

    def counted(self, batch):
        steps.append(1)
        if len(steps) == count:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(_Training, "_step", counted)
    return steps


class RecommenderContract:
    @classmethod
    def make(cls, data: Dataset) -> Recommender:
        """Return a fitted recommender; deterministic."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def data(cls):
        return walks()

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, data):
        return cls.make(data)

    def asking(self, data, window):
        """Return further arguments of `recommend` for a window, such as the user of a model with user embeddings."""
        return {}

    HISTORIES = (["i3", "i4"], ["i5", "i6", "i7"], ["i11"])

    def test_items_and_scores(self, model):
        items, scores = model.recommend(self.HISTORIES, 5)
        assert items.shape == scores.shape == (3, 5)
        assert scores.dtype == np.float32
        assert (np.diff(scores, axis=1) <= 0).all()
        for row in items:
            assert len(set(row)) == 5
            assert set(row) <= {f"i{n}" for n in range(12)}
        everything, _ = model.recommend(self.HISTORIES, 12)
        assert all(len(set(row)) == 12 for row in everything)

    def test_single_history(self, model, caplog):
        one, scores = model.recommend(["i3", "i4"], 4)
        many, _ = model.recommend([["i3", "i4"]], 4)
        assert one.shape == scores.shape == (4,)
        assert one.tolist() == many[0].tolist()
        assert model.recommend([], 4)[0].shape == (0, 4)
        assert "a user without a history is [[]]" in caplog.text

    def test_users_do_not_depend_on_each_other(self, model):
        random = np.random.default_rng(0)
        histories = [[f"i{n}" for n in random.integers(0, 12, random.integers(1, 9))] for _ in range(300)]
        items, scores = model.recommend(histories, 3)
        for user in (0, 100, 299):
            alone, values = model.recommend(histories[user], 3)
            assert values == pytest.approx(scores[user], abs=1e-5)
            assert alone.tolist() == items[user].tolist()

    def test_long_history_is_cut_to_its_last_items(self, model):
        longest = model.catalogue_.max_history
        history = [f"i{n % 12}" for n in range(longest + 9)]
        items, _ = model.recommend(history, 5)
        assert items.tolist() == model.recommend(history[-longest:], 5)[0].tolist()
        indices = np.array([model.catalogue_.find(history)])
        assert model.top(indices, 5)[0].tolist() == model.top(indices[:, -longest:], 5)[0].tolist()

    def test_exclude_seen_covers_the_whole_history(self, model):
        history = ["i5", "i6"] + ["i1", "i2", "i3"] * 30
        items, _ = model.recommend([history, ["i1"]], 12, exclude_seen=True)
        assert not set(items[0]) & {"i1", "i2", "i3", "i5", "i6"}
        assert sum(item is not None for item in items[0]) == 7
        assert model.recommend(history, 12, exclude_seen=True)[0].tolist() == items[0].tolist()

    def test_exclude_seen_allow_and_deny(self, model, caplog):
        everything, _ = model.recommend(self.HISTORIES, 12)
        fresh, scores = model.recommend(self.HISTORIES, 12, exclude_seen=True)
        for row, seen, values in zip(range(3), self.HISTORIES, scores, strict=True):
            left = [item for item in everything[row] if item not in seen]
            assert fresh[row].tolist() == left + [None] * len(seen)
            assert np.isneginf(values[len(left) :]).all()
        few, _ = model.recommend(self.HISTORIES, 4, allow=["i0", "i2", "i9"])
        assert "3 users get fewer than 4 items: no other items are left" in caplog.text
        some, _ = model.recommend(self.HISTORIES, 12, deny=["i1", "i2"])
        for row in range(3):
            assert few[row].tolist() == [i for i in everything[row] if i in ("i0", "i2", "i9")] + [None]
            assert some[row].tolist() == [i for i in everything[row] if i not in ("i1", "i2")] + [None] * 2
        for wrong in ("i1", 5):
            with pytest.raises(InputError, match=f"'deny' is a list of item ids, not {wrong!r}; pass"):
                model.recommend(self.HISTORIES, deny=wrong)
        with pytest.raises(InputError, match="'allow' and 'deny' exclude every item of the catalogue"):
            model.recommend(self.HISTORIES, allow=["i0"], deny=["i0"])

    def test_users(self, model):
        items, _ = model.recommend(self.HISTORIES, 5)
        nobody, _ = model.recommend(self.HISTORIES, 5, users=["new", "newer", "newest"])
        assert nobody.tolist() == items.tolist()
        for users in ("u1", ["u1"], 5, [["u1"], ["u2"], ["u3"]]):
            with pytest.raises(InputError, match="'users' must be a list with one user id for each of the 3 histories"):
                model.recommend(self.HISTORIES, 5, users=users)

    def test_unknown_items(self, model, data, caplog):
        caplog.set_level(logging.WARNING)
        items, scores = model.recommend([["i3", "new", "i4"], ["new"], []], 5)
        assert "Skipped 2 unknown item ids (e.g. 'new')" in caplog.text
        assert "2 histories have no known item and get the most popular items" in caplog.text
        assert "catalogue are strings" not in caplog.text
        model.recommend([3], 5)
        assert "Skipped 1 unknown item id (e.g. 3); the ids of the catalogue are strings" in caplog.text
        assert items[0].tolist() == model.recommend(["i3", "i4"], 5)[0].tolist()
        counts = Counter(
            data.item_ids[int(item)] for user in range(data.n_users) for item in data.history_at(user)[:-2]
        )
        popular = sorted(data.item_ids, key=lambda item: (-counts[item], data.item_ids.to_list().index(item)))[:5]
        assert items[1].tolist() == items[2].tolist() == popular
        assert (scores[1] < 0).all()
        denied, _ = model.recommend([[]], 5, deny=["gone", popular[0]])
        assert "Skipped 1 unknown item id of 'deny' (e.g. 'gone')" in caplog.text
        assert denied[0, :4].tolist() == popular[1:]

    @pytest.mark.parametrize(
        ("histories", "k", "message"),
        [
            (["i1"], 0, "k must be an integer from 1 to 12, the size of the catalogue, not 0"),
            (["i1"], 13, "k must be an integer from 1 to 12, the size of the catalogue, not 13"),
            ("i1", 3, r"a history is a list of item ids, not the string 'i1'; pass \['i1'\]"),
            ([["i1"], "i2"], 3, "some of these are lists and some are not"),
            ([["i1", ["i2"]]], 3, r"\['i2'\] is not an id; ids are strings or integers"),
            (["i1"], 2.5, r"k must be an integer from 1 to 12, .* not 2\.5"),
            (None, 3, "histories must be lists of item ids, or one such list, not a NoneType"),
            ({"i1"}, 3, "histories must be lists of item ids, or one such list, not a set"),
            (
                pl.DataFrame({"item": ["i1"]}),
                3,
                "histories must be lists of item ids, or one such list, not a DataFrame",
            ),
        ],
    )
    def test_invalid_arguments(self, model, histories, k, message):
        with pytest.raises(InputError, match=message):
            model.recommend(histories, k)

    def test_ranks_match_recommendations(self, model, data):
        kept, dropped = model.ranks(data.test, 5)
        for window in (0, 7, 119):
            history, target = data.test.window(window)
            ids = data.item_ids.gather(history.astype(np.int64)).to_list()
            for ranks, exclude in ((kept, False), (dropped, True)):
                items = model.recommend(ids, 5, exclude_seen=exclude, **self.asking(data, window))[0].tolist()
                wanted = data.item_ids[target]
                assert ranks[window] == (items.index(wanted) if wanted in items else NOT_FOUND)
        for ranking, ranks in zip(model.rankings(data.test, 5), (kept, dropped), strict=True):
            assert ranking.ranks.tolist() == ranks_of(ranking.items, data.test.targets).tolist() == ranks.tolist()
            assert (ranking.scores[:, 1:] <= ranking.scores[:, :-1]).all()
        found = evaluate(model, data, k=5)
        assert found.metrics((5,))["seen_kept"]["recall@5"] == ranking_metrics(kept, (5,))["recall@5"]
        table = found.table()
        assert table.columns == ["user", "target", "rank", "rank_seen_dropped"]
        assert table["rank"].drop_nulls().to_list() == [rank + 1 for rank in kept if rank < 5]
        with pytest.raises(InputError, match="ranks are known up to 5, so there are no metrics at 10"):
            found.metrics((5, 10))
        for wrong in (5, ()):
            with pytest.raises(InputError, match=r"cutoffs must be a tuple of integers, for example \(5, 10\)"):
                found.metrics(wrong)
        for wrong in ((0,), (5.0,), (13,)):
            with pytest.raises(InputError, match="a cutoff must be an integer from 1 to 12, the size of the catalogue"):
                found.metrics(wrong)
        for wrong in ("5", 0, 13):
            with pytest.raises(InputError, match="a cutoff must be an integer from 1 to 12, the size of the catalogue"):
                evaluate(model, data, k=wrong)

    def test_ranks_after_a_long_history(self, model, data):
        """Items older than `max_history` are dropped from the ranking, as `recommend` excludes them."""
        history = ["i5", "i6"] + ["i1", "i2", "i3"] * 30
        ids = data.item_ids.to_list()
        for target in ("i0", "i8", "i5"):
            sequence = np.array([ids.index(item) for item in [*history, target]], dtype=np.int32)
            end, first = np.array([len(history)]), np.array([0])
            windows = Split("test", sequence, end - model.catalogue_.max_history, end, first, first, len(ids))
            kept, dropped = model.ranks(windows, 12)
            for rank, exclude in ((kept[0], False), (dropped[0], True)):
                items = model.recommend(history, 12, exclude_seen=exclude, **self.asking(data, 0))[0].tolist()
                assert rank == (items.index(target) if target in items else NOT_FOUND)

    def test_withdrawn_items(self, model, data, tmp_path):
        changed = Recommender.from_artifact(model.to_artifact())
        assert changed.remove_items(["i1", "i2", "i1"]) == 2
        assert changed.remove_items({"i1"}) == 0
        changed.save(tmp_path / "changed")
        loaded = resid.load(tmp_path / "changed")
        assert [each["action"] for each in loaded.lineage_] == ["remove"]
        assert loaded.lineage_[0]["parent"] == model.checksum != loaded.checksum
        expected, _ = model.recommend(self.HISTORIES, 10, deny=["i1", "i2"])
        for each in (changed, loaded):
            assert each.recommend(self.HISTORIES, 10)[0].tolist() == expected.tolist()
            everything, _ = each.recommend([*self.HISTORIES, [], ["i1", "i2"]], 12, exclude_seen=True)
            assert not {"i1", "i2"} & set(everything.ravel())
            assert (
                each.recommend(["i1", "i2"], 1)[0].tolist()
                == model.recommend(["i1", "i2"], 1, deny=["i1", "i2"])[0].tolist()
            )
        kept, _ = changed.ranks(data.test, 12)
        gone = np.isin(data.test.targets, changed.catalogue_.find(["i1", "i2"]))
        assert (kept[gone] == NOT_FOUND).all()
        assert (kept[~gone] < 10).all()
        with pytest.raises(InputError, match="all items that 'allow' and 'deny' leave are withdrawn"):
            changed.recommend(self.HISTORIES, 1, allow=["i1"])
        with pytest.raises(InputError, match="the model has no item 'gone'; check the ids"):
            changed.remove_items(["i3", "gone"])
        with pytest.raises(InputError, match="expected a list of item ids, not 'i1'"):
            changed.remove_items("i1")
        with pytest.raises(InputError, match="this would withdraw every item"):
            changed.remove_items(data.item_ids)
        assert changed.restore_items(["i1", "i2", "i3"]) == 2
        for ours, theirs in zip(
            changed.recommend(self.HISTORIES, 12), model.recommend(self.HISTORIES, 12), strict=True
        ):
            assert ours.tolist() == theirs.tolist()

    def test_new_items_are_taken_or_refused_with_the_reason(self, model):
        changed = Recommender.from_artifact(model.to_artifact())
        new = pl.DataFrame({"item": ["new"], "store": ["a"]})
        before = model.recommend(self.HISTORIES, 12)
        try:
            assert len(changed.add_items(new)) == 1
        except InputError as error:
            assert "new items" in str(error)  # noqa: PT017 - some can, and some cannot
            items, scores = changed.recommend(self.HISTORIES, 12)
        else:
            everything, values = changed.recommend([*self.HISTORIES, ["new"]], 13)
            assert all("new" in row for row in everything)
            old = [[item != "new" for item in row] for row in everything[:3]]
            items, scores = (
                np.array([row[keep] for row, keep in zip(part[:3], old, strict=True)]) for part in (everything, values)
            )
        assert items.tolist() == before[0].tolist()
        assert scores == pytest.approx(before[1], abs=1e-5)

    @pytest.mark.parametrize("name", ["exakt", "allowed", "users", "histories"])
    def test_unknown_option(self, model, data, name):
        with pytest.raises(InputError, match=f"has no option '{name}'"):
            evaluate(model, data, **{name: True})
        if name in ("exakt", "allowed"):  # the other names are arguments of `recommend`
            with pytest.raises(InputError, match=f"has no option '{name}'"):
                model.recommend(self.HISTORIES, **{name: True})

    def test_top_refuses_invalid_histories(self, model):
        for wrong in ([[1, PADDING]], [[1, -5]], [[1, 12]], [1, 2], [[]], [[1.0]]):
            with pytest.raises(InputError, match="histories must be item indices from 0 to 11, shape"):
                model.top(np.array(wrong), 3)

    def test_loaded_in_another_process(self, model, forks, tmp_path):
        model.save(tmp_path / "saved")
        shutil.copytree(tmp_path / "saved", tmp_path / "elsewhere" / "copy")
        shutil.rmtree(tmp_path / "saved")
        program = (
            "import sys, json, resid\n"
            "items, scores = resid.load(sys.argv[1]).recommend(json.loads(sys.argv[2]), 5)\n"
            "print(json.dumps([items.tolist(), scores.tobytes().hex()]))"
        )
        printed = forks.output(program, tmp_path / "elsewhere" / "copy", json.dumps(self.HISTORIES))
        items, scores = model.recommend(self.HISTORIES, 5)
        assert json.loads(printed) == [items.tolist(), scores.tobytes().hex()]
        again = type(model).load(tmp_path / "elsewhere" / "copy")
        assert again.settings == model.settings
        assert (list(again.history_), again.best_epoch_) == (list(model.history_), model.best_epoch_)

    def test_another_dataset_is_refused(self, model, data):
        other = Dataset.from_tables(
            pl.DataFrame({"user": ["a"] * 5, "item": list("xyzvw"), "timestamp": range(5)}), k_core=1
        )
        with pytest.raises(InputError, match="the model was fitted to another Dataset"):
            evaluate(model, other)
        with pytest.raises(InputError, match="not fitted yet"):
            type(model)().recommend(["i1"])

    def test_load_as_another_class(self, model, tmp_path):
        from resid.sequential import CoOccurrence, Popularity

        model.save(tmp_path)
        other = Popularity if not isinstance(model, Popularity) else CoOccurrence
        with pytest.raises(InputError, match=f"this is a {type(model).__name__}, not a {other.__name__}"):
            other.load(tmp_path)
        assert isinstance(resid.load(tmp_path), type(model))
