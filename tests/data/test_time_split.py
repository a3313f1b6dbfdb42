"""The time split: windows against a slow reference, points in time in every notation, and nothing later in training."""

import json
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resid
from resid import Dataset, InputError
from resid.cli import main
from resid.data import PrepareSettings, synthetic_shop
from resid.sequential import CoOccurrence
from tests.data.test_splits import windows_of

COLUMNS = ["user", "item", "timestamp"]
DAY = 86_400


def table(rows):
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def slow_windows(rows, begin, end, targets, max_length):
    """Return the windows of the three splits, by one interaction after another."""
    found = {"train": [], "validation": [], "test": []}
    for user in sorted({user for user, _, _ in rows}):
        history = sorted((row for row in rows if row[0] == user), key=lambda row: row[2])
        used = set()
        for place, (_, item, time) in enumerate(history):
            name = "train" if time < begin else "validation" if time < end else "test"
            repeated = name != "train" and targets == "first" and name in used
            used.add(name)
            if place and not repeated:
                before = [item for _, item, _ in history[:place]]
                found[name].append((user, before[-(max_length - 1) :], item))
    return found


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 9)), min_size=9, max_size=60),
    st.integers(2, 5),
    st.integers(6, 8),
    st.sampled_from(["first", "all"]),
    st.integers(2, 6),
)
def test_windows_equal_a_slow_reference(rows, begin, end, targets, max_length):
    rows = [row for row in rows if sum(other[0] == row[0] for other in rows) >= 3]
    expected = slow_windows(rows, begin, end, targets, max_length)
    options = {"split": "time", "validate_from": begin, "test_from": end, "targets": targets}
    if not all(expected.values()):
        with pytest.raises(
            InputError, match=r"no user has 3|table is empty|time split leaves no user with a target for"
        ):
            Dataset.from_tables(table(rows), k_core=1, max_length=max_length, **options)
        return
    data = Dataset.from_tables(table(rows), k_core=1, max_length=max_length, **options)
    ids = data.item_ids.to_list()
    for name, windows in expected.items():
        found = [
            (data.user_ids[user], [ids[item] for item in history], ids[target])
            for user, history, target in windows_of(data.windows(name))
        ]
        assert found == windows
    earlier = [item for _, item, time in rows if time < begin]
    assert data.training_counts.tolist() == [earlier.count(item) for item in ids]
    notes = data.notes["time_split"]
    assert notes["interactions"] == {
        "train": len(earlier),
        "validation": sum(begin <= time < end for _, _, time in rows),
        "test": sum(time >= end for _, _, time in rows),
    }
    first = {user: min(time for other, _, time in rows if other == user) for user, _, _ in rows}
    late = {
        "validation": [t for t in first.values() if begin <= t < end],
        "test": [t for t in first.values() if t >= end],
    }
    assert notes["targets_without_history"] == {name: len(times) for name, times in late.items()}
    assert notes["users_without_training"] == sum(map(len, late.values()))


def daily(start=1_577_836_800):
    """Four users, each with one item a day for ten days from 2020-01-01."""
    return [(user, (user + day) % 6, start + day * DAY) for day in range(10) for user in range(4)]


class TestPoints:
    """The same two points in time, 2020-01-07 and 2020-01-09, in every notation."""

    def splits(self, log, begin, end):
        data = Dataset.from_tables(log, k_core=1, split="time", validate_from=begin, test_from=end)
        return data.fingerprint, [len(data.windows(name)) for name in ("train", "validation", "test")]

    @pytest.mark.parametrize(
        ("begin", "end"),
        [
            ("2020-01-07", "2020-01-09T00:00:00Z"),
            (date(2020, 1, 7), datetime(2020, 1, 9)),
            ("2020-01-07T01:00+01:00", datetime(2020, 1, 9, 2, tzinfo=timezone(timedelta(hours=2)))),
            (1_578_355_200, "1578528000"),
            (1_578_355_200_000, "1578528000.0"),
            (0.6, "0.8"),
        ],
    )
    def test_are_the_same(self, begin, end):
        found = self.splits(table(daily()), begin, end)
        assert found[1] == [20, 4, 4]
        assert found == self.splits(table(daily()), "2020-01-07", "2020-01-09")

    @pytest.mark.parametrize("unit", ["ms", "us", "ns", "float", "date", "text", "zoned"])
    def test_do_not_depend_on_the_type_of_timestamps(self, unit):
        seconds = pl.col("timestamp")
        moments = pl.from_epoch(seconds, time_unit="s")
        columns = {
            "ms": seconds * 1_000, "us": seconds * 1_000_000, "ns": seconds * 1_000_000_000, "float": seconds.cast(pl.Float64),
            "date": moments.dt.date(), "text": moments.dt.strftime("%Y-%m-%d %H:%M"),
            "zoned": moments.dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
        }  # fmt: skip
        log = table(daily()).with_columns(timestamp=columns[unit])
        for begin, end in (("2020-01-07", "2020-01-09"), (1_578_355_200, 1_578_528_000), (0.6, 0.8)):
            assert self.splits(log, begin, end) == self.splits(table(daily()), "2020-01-07", "2020-01-09")

    def test_an_interaction_at_a_boundary_is_later_and_baskets_are_not_divided(self):
        rows = [(user, item, time) for user in range(3) for time in (0, 1, 2) for item in (3 * time, 3 * time + 1)]
        data = Dataset.from_tables(table(rows), k_core=1, split="time", validate_from=1, test_from=2, targets="all")
        assert [len(data.windows(name)) for name in ("train", "validation", "test")] == [3, 6, 6]
        assert [time["validate_from"] for time in (data.notes["time_split"],)] == ["1"]
        # Half of the interactions would end within the second basket.
        share = Dataset.from_tables(
            table(rows), k_core=1, split="time", validate_from=0.5, test_from=0.7, targets="all"
        )
        assert share.fingerprint == data.fingerprint

    def test_are_shown_as_dates(self, tmp_path, capsys):
        table(daily()).write_parquet(tmp_path / "log.parquet")
        out = str(tmp_path / "data")
        command = ["prepare", str(tmp_path / "log.parquet"), "--k-core", "1", "--out", out, "--split", "time"]
        assert main([*command, "--validate-from", "0.6", "--test-from", "0.8"]) == 0
        printed = capsys.readouterr().out
        assert "training before 2020-01-07 (24 interactions), validation until before 2020-01-09 (8), test" in printed
        assert main(["info", out]) == 0
        assert "the first item of a user in a period is a target" in capsys.readouterr().out
        assert main(["info", out, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["split"], facts["notes"]["time_split"]["test_from"]) == ("time", "2020-01-09")


class TestRefused:
    def refused(self, match, log=None, **options):
        with pytest.raises(InputError, match=match) as caught:
            Dataset.from_tables(table(daily()) if log is None else log, k_core=1, **options)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("begin", "end", "side"),
        [
            ("2019-01-01", "2020-01-09", r"train \(before 2019-01-01\)"),
            ("2020-01-02", "2020-01-09", r"train \(before 2020-01-02\)"),  # one item each is a history without a target
            ("2020-01-07", "2020-01-07", r"validation \(from 2020-01-07 to before 2020-01-07\)"),
            ("2020-01-09", "2020-01-07", r"validation \(from 2020-01-09 to before 2020-01-07\)"),
            ("2020-01-07", "2021-01-01", r"test \(from 2021-01-01 on\)"),
        ],
    )
    def test_a_side_without_users(self, begin, end, side):
        message = (
            f"leaves no user with a target for {side}: the timestamps go from 2020-01-01 to 2020-01-10; choose other"
        )
        self.refused(message, split="time", validate_from=begin, test_from=end)

    def test_points_that_are_none(self):
        self.refused(
            "invalid value 'soon' for 'test_from': it must be a date such",
            split="time",
            validate_from=0.5,
            test_from="soon",
        )
        self.refused("invalid value 'nan' for 'validate_from'", split="time", validate_from="nan", test_from=0.5)
        ordinal = table(daily()).with_columns(timestamp=pl.col("timestamp") // DAY - 18_262)
        message = (
            r"'validate_from' is the date 2020-01-07, but the timestamps are numbers from 0 to 9, which are not Unix"
        )
        self.refused(message, ordinal, split="time", validate_from="2020-01-07", test_from=8)

    def test_settings_that_do_not_go_together(self):
        self.refused("a time split needs validate_from and test_from", split="time", validate_from=0.8)
        self.refused("belong to a time split; add split='time'", validate_from=0.8, test_from=0.9)
        self.refused("belong to a time split; add split='time'", targets="all")
        options = {"split": "time", "validate_from": 0.6, "test_from": 0.8}
        self.refused("never trains on later interactions", unseen_targets="train", **options)


class TestFolder:
    def test_is_saved_and_loaded(self, shop, tmp_path):
        options = {"split": "time", "validate_from": 0.7, "test_from": 0.85}
        log = shop.interaction_table
        data = Dataset.from_tables(log, shop.item_table, ["store"], targets="all", **options)
        data.save(tmp_path / "data")
        loaded = Dataset.load(tmp_path / "data")
        assert json.loads((tmp_path / "data" / "dataset.json").read_text())["format"] == 4
        assert loaded.fingerprint == data.fingerprint == loaded._compute_fingerprint()
        for name in ("train", "validation", "test"):
            assert windows_of(loaded.windows(name)) == windows_of(data.windows(name))
        others = [
            Dataset.from_tables(log, shop.item_table, ["store"], **options),
            Dataset.from_tables(log, shop.item_table, ["store"]),
            Dataset.from_tables(log, shop.item_table, ["store"], targets="all", **options | {"test_from": 0.9}),
        ]
        assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 4
        (tmp_path / "data" / "boundaries.npy").unlink()
        with pytest.raises(InputError, match=r"boundaries\.npy: missing or damaged"):
            Dataset.load(tmp_path / "data")

    def test_leave_one_out_is_written_as_before(self, shop, tmp_path):
        """Neither the files nor the settings have anything of the time split, so earlier versions can read them."""
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
        data.save(tmp_path / "data")
        manifest = json.loads((tmp_path / "data" / "dataset.json").read_text())
        assert manifest["format"] == 2
        assert not set(manifest["settings"]) & set(PrepareSettings.of_time_split)
        files = {"fields.npy", "items.parquet", "offsets.npy", "sequence.npy", "users.parquet"}
        assert set(manifest["files"]) - {"first_seen.npy"} == files  # which they do not read
        assert PrepareSettings.from_dict(manifest["settings"]) == data.settings
        # The fingerprint of this shop before there were time splits.
        assert data.fingerprint[:16] == "b34c0f4dc27b32bf"


@pytest.fixture(scope="module")
def worlds():
    """Two logs that differ in what happens from the validation on, but not in their users, items or times."""
    log = synthetic_shop(users=80, items=40, interactions=700, seed=3).interaction_table.sort("timestamp")
    later = pl.int_range(pl.len()) >= int(0.7 * len(log))
    other = log.with_columns(pl.when(later).then(pl.col("item").shuffle(seed=1).over(later)).otherwise("item"))
    options = {"k_core": 1, "split": "time", "validate_from": 0.7, "test_from": 0.85}
    first, second = (Dataset.from_tables(each, **options) for each in (log, other))
    assert first.item_ids.equals(second.item_ids)
    assert not np.array_equal(first.sequence, second.sequence)
    return first, second


class TestTraining:
    def test_sees_nothing_later(self, worlds):
        first, second = worlds
        assert windows_of(first.train) == windows_of(second.train)
        assert np.array_equal(first.training_counts, second.training_counts)
        counted = [CoOccurrence().fit(data).arrays() for data in worlds]
        for name, array in counted[0].items():
            assert np.array_equal(array, counted[1][name])

    @pytest.mark.parametrize(
        ("recipe", "section"), [("s3rec", "recommender"), ("resid-codes", "generator")], ids=["s3rec", "resid-codes"]
    )
    def test_gives_the_same_weights(self, worlds, recipe, section):
        """Validation is later than training, so without early stopping it does not matter for the weights."""
        changes = {f"{section}.epochs": 1, f"{section}.width": 16, f"{section}.layers": 1}
        more = {"pretrain_epochs": 1} if section == "recommender" else {"validation_users": 20}
        changes |= {f"{section}.{name}": value for name, value in more.items()}
        if section == "generator":
            changes |= {"encoder.epochs": 1, "encoder.width": 16, "quantizer.branching": [4, 4]}
        models = [resid.fit(data, recipe, changes=changes) for data in worlds]
        weights = [model.model_.state_dict() for model in models]
        assert all(np.array_equal(value.numpy(), weights[1][name].numpy()) for name, value in weights[0].items())

    def test_unseen_targets_can_be_dropped_but_not_trained_on(self):
        rows = [
            *daily(),
            *((user, 9, datetime(2020, 1, 7, 12, tzinfo=UTC).timestamp()) for user in (0, 1)),
            (2, 9, 1_578_614_400),
        ]
        options = {
            "k_core": 1,
            "split": "time",
            "validate_from": 0.6,
            "test_from": "2020-01-08T00:00",
            "targets": "all",
        }
        keep, drop = (Dataset.from_tables(table(rows), unseen_targets=name, **options) for name in ("keep", "drop"))
        assert [len(keep.windows(name)) for name in ("train", "validation", "test")] == [20, 6, 13]
        assert [len(drop.windows(name)) for name in ("train", "validation", "test")] == [20, 4, 12]
        assert keep.notes["unseen_validation_targets"] == 2
        (unseen,) = drop.item_indices([9])
        assert drop.training_counts[unseen] == 0
        assert unseen not in drop.test.targets
