"""The published data of the paper's authors, on small files of the same layout."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resid import Dataset, InputError
from resid.cli import main
from resid.data.published import compare_with_published, prepare_published

NAME = "Toy"
FOLDERS = {"train": "train", "valid": "validation", "test": "test"}


def windows(histories, times=None, longest=1_000):
    """Return the rows that the authors publish: every target with its history, unseen evaluation targets in train."""
    trained = {item for history in histories.values() for item in history[:-2]}
    rows = {name: [] for name in FOLDERS}
    for user, history in histories.items():
        for place in range(1, len(history)):
            name = {len(history) - 1: "test", len(history) - 2: "valid"}.get(place, "train")
            name = name if history[place] in trained else "train"
            time = place if times is None else times[user][place]
            rows[name].append((user, history[max(0, place - longest) : place], history[place], time))
    return rows


def write(root, rows, items=9, seed=0):
    """Write the rows in random order, in two parts per split, and the item features."""
    rng = np.random.default_rng(seed)
    folder = root / NAME / "leave_one_out" / "dataset"
    schema = {"user_id": pl.Int64, "history": pl.List(pl.Int64), "target": pl.Int64, "timestamp": pl.Int64}
    for name, some in rows.items():
        frame = pl.DataFrame(some, schema=schema, orient="row")[rng.permutation(len(some))]
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, piece in enumerate((frame[: len(some) // 2], frame[len(some) // 2 :])):
            piece.write_parquet(folder / name / f"part-{part}.parquet")
    ids = np.arange(1, items + 1)
    features = {"item_id": ids, "store_id": 1 + ids % 4, "cate1_id": 1 + ids % 2, "cate2_id": 1 + ids % 3,
                "cate3_id": 1 + ids % 5}  # fmt: skip
    (folder / "item_feature").mkdir(exist_ok=True)
    pl.DataFrame(features)[rng.permutation(items)].write_parquet(folder / "item_feature" / "part-0.parquet")
    sizes = {name: {"id_num": int(max(values)) + 1} for name, values in features.items()}
    (folder / "item_feature_explain.json").write_text(json.dumps(sizes))
    return folder


HISTORIES = {7: [1, 2, 3, 4, 5, 1], 3: [2, 3, 1, 4], 12: [4, 3, 2, 9, 1], 5: [1, 2, 3, 1, 8], 20: [3, 4, 2, 7, 6]}


def histories_of(data):
    return {data.user_ids[user]: data.item_ids.gather(data.history_at(user)).to_list() for user in range(data.n_users)}


class TestHistories:
    def test_are_rebuilt(self, tmp_path):
        write(tmp_path, windows(HISTORIES))
        data = prepare_published(NAME, tmp_path)
        assert histories_of(data) == HISTORIES
        assert data.user_ids.to_list() == sorted(HISTORIES)
        assert data.item_ids.to_list() == list(range(1, 10))
        assert data.settings.unseen_targets == "drop"
        assert compare_with_published(data) == {
            "train windows": (15, 15), "validation windows": (2, 2), "test windows": (3, 3)
        }  # fmt: skip
        assert data.notes["duplicate_rows"] == data.notes["skipped_users"] == 0
        assert data.steps[0] == {"step": "read", "users": 5, "items": 9, "interactions": 25}

    def test_fields(self, tmp_path):
        folder = write(tmp_path, windows(HISTORIES))
        data = prepare_published(NAME, tmp_path)
        assert data.field_names == ("store", "cat1", "cat2", "cat3")
        ids = data.item_ids.to_numpy()
        assert np.array_equal(data.fields, np.stack([1 + ids % k for k in (4, 2, 3, 5)], axis=1))
        assert data.settings.missing == "drop"
        path = folder / "item_feature" / "part-0.parquet"
        pl.read_parquet(path).with_columns(store_id=pl.lit(0), cate1_id=pl.lit(1)).write_parquet(path)
        data = prepare_published(NAME, tmp_path)
        assert not data.fields[:, 0].any()
        assert data.settings.missing == "keep"

    @pytest.mark.parametrize("unseen_targets", ["keep", "train", "drop"])
    def test_same_as_from_a_log(self, tmp_path, unseen_targets):
        write(tmp_path, windows(HISTORIES))
        data = prepare_published(NAME, tmp_path, unseen_targets=unseen_targets, max_length=4)
        rows = [(user, item, time) for user, items in HISTORIES.items() for time, item in enumerate(items)]
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        same = Dataset.from_tables(log, k_core=1, unseen_targets=unseen_targets, max_length=4)
        assert np.array_equal(data.sequence, same.sequence)
        for split in FOLDERS.values():
            assert np.array_equal(data.windows(split).targets, same.windows(split).targets)
            assert np.array_equal(data.windows(split).begin, same.windows(split).begin)

    def test_saved(self, tmp_path):
        write(tmp_path, windows(HISTORIES))
        data = prepare_published(NAME, tmp_path)
        data.save(tmp_path / "data")
        loaded = Dataset.load(tmp_path / "data")
        assert loaded.info() == data.info()
        assert compare_with_published(loaded) == compare_with_published(data)

    @pytest.mark.parametrize("longest", [2, 100])
    @given(data=st.data())
    def test_from_any_rows(self, tmp_path_factory, longest, data):
        """With equal timestamps, and with repeated items unless the histories are cut to the most recent items."""
        lists = st.lists(st.integers(1, 9), min_size=3, max_size=9, unique=longest < 100)
        histories = dict(enumerate(data.draw(st.lists(lists, min_size=1, max_size=6))))
        ties = st.lists(st.integers(0, 3), min_size=9, max_size=9).map(sorted)
        times = {user: data.draw(ties) for user in histories}
        folder = tmp_path_factory.mktemp("published")
        write(folder, windows(histories, times, longest), seed=data.draw(st.integers(0, 99)))
        assert histories_of(prepare_published(NAME, folder, unseen_targets="train")) == histories

    def test_equal_timestamps_of_cut_histories(self, tmp_path):
        histories = HISTORIES | {1: [1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 2, 1, 4]}
        write(tmp_path, windows(histories, {user: [0] * len(h) for user, h in histories.items()}, longest=3))
        assert histories_of(prepare_published(NAME, tmp_path)) == histories

    def test_padding_is_ignored(self, tmp_path):
        rows = windows(HISTORIES)
        padded = {name: [(u, [0] * (9 - len(h)) + h, t, s) for u, h, t, s in some] for name, some in rows.items()}
        write(tmp_path, padded)
        assert histories_of(prepare_published(NAME, tmp_path)) == HISTORIES

    def test_ids_and_timestamps_as_text(self, tmp_path):
        folder = write(tmp_path, windows(HISTORIES))
        for path in (path for name in FOLDERS for path in (folder / name).iterdir()):
            pl.read_parquet(path).with_columns(pl.col("user_id", "timestamp").cast(pl.String)).write_parquet(path)
        found = histories_of(prepare_published(NAME, tmp_path))
        assert found == {str(user): history for user, history in HISTORIES.items()}

    def test_short_histories_are_dropped(self, tmp_path):
        rows = windows(HISTORIES)
        rows["test"].append((99, [1], 2, 0))
        write(tmp_path, rows)
        data = prepare_published(NAME, tmp_path)
        assert [step["users"] for step in data.steps] == [6, 5]
        assert 99 not in data.user_ids

    def test_duplicate_rows_are_counted(self, tmp_path):
        """A row that was copied to train but not removed from valid, and a row that occurs twice in train."""
        rows = windows(HISTORIES)
        rows["train"] += [rows["valid"][0], rows["train"][2]]
        write(tmp_path, rows)
        data = prepare_published(NAME, tmp_path)
        assert histories_of(data) == HISTORIES
        assert data.notes["duplicate_rows"] == 2
        assert compare_with_published(data)["train windows"] == (15, 17)


class TestContradictions:
    def refused(self, tmp_path, rows, match, bad_user):
        write(tmp_path, rows)
        with pytest.raises(InputError, match=match) as caught:
            prepare_published(NAME, tmp_path)
        assert "\n" not in str(caught.value)
        assert "--skip-bad-lines" in str(caught.value)
        data = prepare_published(NAME, tmp_path, skip_bad_users=True)
        assert histories_of(data) == {user: items for user, items in HISTORIES.items() if user != bad_user}
        assert data.notes["skipped_users"] == 1

    @pytest.mark.parametrize("name", ["valid", "test"])
    def test_two_rows_of_a_user(self, tmp_path, name):
        rows = windows(HISTORIES)
        user, history, _, time = rows[name][0]
        rows[name].append((user, history, 9, time))
        match = rf"{name}/part-\d\.parquet, row \d: user {user} has another row in .*{name}/part-\d\.parquet, row \d"
        self.refused(tmp_path, rows, match, user)

    def test_history_that_does_not_match(self, tmp_path):
        rows = windows(HISTORIES)
        user, history, target, time = rows["test"][0]
        rows["test"][0] = (user, [*history[:-1], 9], target, time)
        match = rf"test/part-\d\.parquet, row \d: the history does not match the earlier rows of user {user};"
        self.refused(tmp_path, rows, match, user)

    def test_missing_row(self, tmp_path):
        rows = windows(HISTORIES)
        rows["train"] = [row for row in rows["train"] if (row[0], row[3]) != (7, 2)]
        self.refused(tmp_path, rows, "the history does not match the earlier rows of user 7", 7)

    def test_empty_history_after_others(self, tmp_path):
        rows = windows(HISTORIES)
        user, _, target, time = rows["test"][0]
        rows["test"][0] = (user, [], target, time)
        write(tmp_path, rows)
        with pytest.raises(InputError, match=f"test/part-0.parquet, row 1: not the last interaction of user {user}"):
            prepare_published(NAME, tmp_path)

    @pytest.mark.parametrize(("name", "word"), [("valid", "second-last"), ("test", "last")])
    def test_row_in_the_wrong_split(self, tmp_path, name, word):
        rows = windows(HISTORIES)
        row = next(row for row in rows["train"] if row[0] == 7)
        rows["train"].remove(row)
        rows[name] = [other for other in rows[name] if other[0] != 7] + [row]
        if name == "test":  # the last row moves to train, or there would be none
            rows["train"].append((7, HISTORIES[7][:-1], HISTORIES[7][-1], 5))
        else:
            rows["train"].append((7, HISTORIES[7][:-2], HISTORIES[7][-2], 4))
        self.refused(tmp_path, rows, rf"{name}/part-\d\.parquet, row \d: not the {word} interaction of user 7", 7)


class TestBadFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        return write(tmp_path, windows(HISTORIES))

    def refused(self, tmp_path, match):
        with pytest.raises(InputError, match=match) as caught:
            prepare_published(NAME, tmp_path)
        assert "\n" not in str(caught.value)

    def change(self, path, **columns):
        pl.read_parquet(path).with_columns(**columns).write_parquet(path)

    def test_no_such_data_set(self, tmp_path):
        self.refused(tmp_path, "there is no such folder; download it with: hf download PIIR/ReSID-dataset")

    def test_missing_part(self, folder, tmp_path):
        for path in (folder / "valid").iterdir():
            path.unlink()
        self.refused(tmp_path, r"dataset/valid: there are no \.parquet files")

    def test_damaged_part(self, folder, tmp_path):
        path = folder / "train" / "part-1.parquet"
        path.write_text("version https://git-lfs.github.com/spec/v1")
        self.refused(tmp_path, r"train/part-1\.parquet: the file cannot be read .* is it complete\?")

    def test_missing_column(self, folder, tmp_path):
        path = folder / "test" / "part-0.parquet"
        pl.read_parquet(path).drop("target").write_parquet(path)
        self.refused(tmp_path, r"test/part-0\.parquet: there is no column 'target', it has user_id, history, timestamp")

    @pytest.mark.parametrize("column", ["user_id", "history", "target", "timestamp"])
    def test_null(self, folder, tmp_path, column):
        self.change(folder / "train" / "part-0.parquet", **{column: pl.when(pl.int_range(pl.len()) != 1).then(column)})
        self.refused(tmp_path, rf"train/part-0\.parquet, column '{column}': missing value in row 2; download")

    @pytest.mark.parametrize(
        ("column", "value", "problem"),
        [
            ("history", pl.lit("1,2"), "must be a list of item ids, not String"),
            ("history", pl.lit([0.5]), "ids must be integers, not Float64"),
            ("history", pl.lit([1, None]), "missing item in a list"),
            ("target", pl.lit("B01"), "ids must be integers, not String"),
            ("timestamp", pl.lit("today"), "must be a number or a date, not String"),
            ("target", pl.lit(10), "item 10 in row 1 is not in item_feature"),
            ("history", pl.lit([3, 12]), "item 12 in row 1 is not in item_feature"),
            ("target", pl.lit(0), "item 0 in row 1 is not in item_feature"),
        ],
    )
    def test_bad_values(self, folder, tmp_path, column, value, problem):
        self.change(folder / "valid" / "part-0.parquet", **{column: value})
        self.refused(tmp_path, rf"valid/part-0\.parquet, column '{column}': {problem}")

    def test_types_that_differ(self, folder, tmp_path):
        self.change(folder / "valid" / "part-1.parquet", user_id=pl.col("user_id").cast(pl.String))
        self.refused(tmp_path, "dataset: the files have different column types")

    def test_items(self, folder, tmp_path):
        path = folder / "item_feature" / "part-0.parquet"
        items = pl.read_parquet(path)
        for change, problem in (
            (pl.concat([items, items[:1]]), r"part-0\.parquet, column 'item_id': duplicate item"),
            (items.with_columns(cate2_id=-1), r"part-0\.parquet, column 'cate2_id': negative id in row 1"),
            (items.with_columns(store_id=pl.lit("a")), "column 'store_id': ids must be integers, not String"),
            (
                items.with_columns(cate3_id=9),
                r"explain\.json: the ids of 'cate3_id' end at 5, but item_feature contains 9",
            ),
            (items[:0], "item_feature: there are no items"),
        ):
            change.write_parquet(path)
            self.refused(tmp_path, problem)

    def test_explanation(self, folder, tmp_path):
        path = folder / "item_feature_explain.json"
        path.write_text("{")
        self.refused(tmp_path, r"item_feature_explain\.json: not a JSON file")
        for text in ("[1]", '{"item_id": 3}', '{"item_id": {"id_num": 10}}'):  # other layouts are not checked
            path.write_text(text)
            prepare_published(NAME, tmp_path)
        path.unlink()
        prepare_published(NAME, tmp_path)


def test_large_data_is_verified_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("resid.data.rebuild._ROWS_AT_A_TIME", 3)
    rng = np.random.default_rng(0)
    histories = {user: (1 + rng.permutation(9)[: 4 + user % 6]).tolist() for user in range(40)}
    write(tmp_path, windows(histories))
    data = prepare_published(NAME, tmp_path)
    assert histories_of(data) == histories
    assert all(here == there for here, there in compare_with_published(data).values())
    assert (
        list(itertools.accumulate(map(len, (histories[user] for user in sorted(histories)))))
        == data.offsets[1:].tolist()
    )


class TestCommand:
    def test_prepare(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(f"{__name__}.NAME", "Musical_Instruments")
        write(tmp_path, windows(HISTORIES))
        command = ["prepare", "resid-published", "Musical_Instruments", "--raw", str(tmp_path), "--out"]
        assert main([*command, str(tmp_path / "data"), "--max-length", "9"]) == 0
        shown = capsys.readouterr().out
        assert "57,359" in shown
        assert "train windows" in shown
        assert Dataset.load(tmp_path / "data").settings.max_length == 9
        assert main([*command, str(tmp_path / "data"), "--unseen-targets", "keep", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["windows"] == {"train": 10, "validation": 5, "test": 5}
        assert facts["paper"]["users"] == 57_359
        assert facts["published"] == {"train windows": 15, "validation windows": 2, "test windows": 3}

    def test_options_that_do_not_apply(self, tmp_path, capsys):
        command = ["prepare", "resid-published", "--out", str(tmp_path / "data")]
        assert main([*command, "--k-core", "3", "--no-qualify-paths"]) == 2
        assert "the data is already preprocessed; leave --k-core, --no-qualify-paths out." in capsys.readouterr().err
        assert main(command) == 2
        assert "resid-published: name the category" in capsys.readouterr().err

    def test_the_old_option(self, tmp_path, capsys):
        assert main(["prepare", "log.csv", "--add-unseen-targets", "--out", str(tmp_path / "data")]) == 2
        assert "--add-unseen-targets is now called --unseen-targets train." in capsys.readouterr().err
