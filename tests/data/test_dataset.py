"""The Dataset as a folder: round trip, fingerprint, damage, and no half-written folders."""

import json
import os
import platform
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError


@pytest.fixture
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


class TestRoundTrip:
    def test_everything_comes_back(self, data, tmp_path):
        data.save(tmp_path / "data")
        loaded = Dataset.load(tmp_path / "data")
        assert isinstance(loaded.sequence, np.memmap)
        for name in ("fields", "sequence", "offsets"):
            assert np.array_equal(getattr(loaded, name), getattr(data, name))
        assert loaded.item_table.equals(data.item_table)
        assert loaded.user_ids.equals(data.user_ids)
        assert loaded.settings == data.settings
        assert loaded.info() == data.info()
        assert loaded._compute_fingerprint() == data.fingerprint

    def test_bytes_depend_on_nothing_but_the_data(self, data, tmp_path):
        for name in "ab":
            data.save(tmp_path / name)
        for file in os.listdir(tmp_path / "a"):
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()

    def test_a_dataset_is_replaced(self, data, log, tmp_path):
        data.save(tmp_path / "data")
        Dataset.from_tables(log).save(tmp_path / "data")
        assert Dataset.load(tmp_path / "data").n_users == 6
        assert os.listdir(tmp_path) == ["data"]

    def test_an_empty_folder_is_taken(self, data, tmp_path):
        (tmp_path / "data").mkdir()
        data.save(tmp_path / "data")
        assert Dataset.load(tmp_path / "data").fingerprint == data.fingerprint


class TestFingerprint:
    def test_changes_with_content_and_settings(self, log, items):
        prints = [
            Dataset.from_tables(log, items, ["store"], missing="keep"),
            Dataset.from_tables(log, items, ["store"], missing="keep", max_length=5),
            Dataset.from_tables(log, items, ["store"], missing="keep", keep=[]),
            Dataset.from_tables(log, items, ["title"], missing="keep"),
            Dataset.from_tables(log[::-1].with_columns(timestamp=0), items, ["store"], missing="keep"),
        ]
        assert len({data.fingerprint for data in prints}) == len(prints)

    def test_does_not_change_with_the_order_of_rows(self, log, items):
        first = Dataset.from_tables(log, items, ["store"], missing="keep")
        second = Dataset.from_tables(log.sample(36, shuffle=True, seed=1), items[::-1], ["store"], missing="keep")
        assert first.fingerprint == second.fingerprint


class TestLookups:
    def test_ids_and_indices(self, data):
        ids = data.item_ids.to_list()
        assert data.item_indices([ids[3], "unknown", ids[0]]).tolist() == [3, -1, 0]
        assert data.user_indices([data.user_ids[2], 5]).tolist() == [2, -1]

    def test_histories_are_those_of_user_ids(self):
        """Integer ids are ids, not indices."""
        users, items = [7, 1, 2, 0], [30, 10, 20, 40]
        rows = [(user, items[(place + step) % 4], step) for place, user in enumerate(users) for step in range(4)]
        data = Dataset.from_tables(pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row"), k_core=1)
        assert data.history(7).to_list() == [30, 10, 20, 40]
        assert data.history(1).to_list() == [10, 20, 40, 30]
        assert data.user_ids[1] == 1
        assert data.item_ids.gather(data.history_at(3)).to_list() == [30, 10, 20, 40]
        with pytest.raises(InputError, match="there is no user 3 in the Dataset"):
            data.history(3)
        for index in (4, -1):
            with pytest.raises(InputError, match=f"user index {index} is out of range; there are 4 users"):
                data.history_at(index)

    def test_values_and_codes(self, data):
        stores = data.item_table["store"][:3].to_list()
        assert data.catalogue.field_codes("store", [*stores, None, "unknown"]).tolist() == [*data.fields[:3, 0], 0, -1]

    def test_further_items_are_read_as_its_own(self, data, shop, tmp_path):
        items = shop.item_table
        ids, codes = data.catalogue.encode_items(items)
        assert ids.to_list() == items["item"].to_list()
        own = data.item_indices(ids)
        assert np.array_equal(codes[own >= 0], data.fields[own[own >= 0]])
        other = items.with_columns(item=pl.lit("new") + pl.col("item"), store=pl.lit("elsewhere"))
        other.write_parquet(tmp_path / "new.parquet")
        ids, codes = data.catalogue.encode_items(tmp_path / "new.parquet")
        assert ids[0] == "new" + items["item"][0]
        assert (codes[:, 0] == -1).all()

    def test_unknown_vocabulary(self, data):
        with pytest.raises(InputError, match="there is no field 'shop'; the fields are store, cat1"):
            data.vocabulary("shop")

    def test_repr(self, data):
        assert "store, cat1, cat2, cat3" in repr(data)


class TestDamage:
    @pytest.fixture
    def folder(self, data, tmp_path):
        data.save(tmp_path / "data")
        return tmp_path / "data"

    def refused(self, folder, match, **options):
        with pytest.raises(InputError, match=match):
            Dataset.load(folder, **options)

    def test_no_dataset(self, tmp_path):
        self.refused(tmp_path, "not a Dataset")
        self.refused(tmp_path / "none", "there is no such folder")

    @pytest.mark.parametrize("name", ["sequence.npy", "items.parquet"])
    def test_missing_or_truncated_file(self, folder, name):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-1])
        self.refused(folder, f"{name}: missing or damaged")
        (folder / name).unlink()
        self.refused(folder, f"{name}: missing or damaged")

    def test_altered_file(self, folder):
        whole = bytearray((folder / "sequence.npy").read_bytes())
        whole[-1] ^= 1
        (folder / "sequence.npy").write_bytes(whole)
        self.refused(folder, "sequence.npy: missing or damaged")

    def test_a_loaded_dataset_stays_what_it_was(self, folder, data, log):
        loaded = Dataset.load(folder)
        Dataset.from_tables(log).save(folder)
        assert loaded.item_ids.equals(data.item_ids)
        assert np.array_equal(loaded.sequence, data.sequence)

    def test_a_damaged_header(self, folder):
        whole = (folder / "fields.npy").read_bytes()
        (folder / "fields.npy").write_bytes(b"x" * 100 + whole[100:])
        self.refused(folder, "fields.npy: missing or damaged")

    def test_manifest(self, folder):
        (folder / "dataset.json").rename(folder / "whole.json")
        (folder / "dataset.json").write_text('{"format": 2, "files": {}}')
        self.refused(folder, "dataset.json: damaged")
        (folder / "whole.json").rename(folder / "dataset.json")
        text = (folder / "dataset.json").read_text()
        (folder / "dataset.json").write_text(text[:100])
        self.refused(folder, "dataset.json: damaged")
        for version, advice in (
            (1, "an older version of resid; prepare"),
            (99, "a newer version of resid; update resid"),
        ):
            (folder / "dataset.json").write_text(json.dumps(json.loads(text) | {"format": version}))
            self.refused(folder, f"format {version} of the Dataset was written by {advice}")

    @pytest.mark.parametrize("with_checksum", [True, False])
    def test_altered_manifest(self, folder, data, with_checksum):
        """A manifest without a checksum, as earlier ones are, is verified by the fingerprint."""
        manifest = json.loads((folder / "dataset.json").read_text())
        if not with_checksum:
            del manifest["sha256"]
        (folder / "dataset.json").write_text(json.dumps(manifest))  # other spaces change nothing
        assert Dataset.load(folder).fingerprint == data.fingerprint
        for change in (
            {"settings": manifest["settings"] | {"max_length": 9}},
            {"settings": manifest["settings"] | {"max_lengths": 9}},
            {"field_names": ["shop", *manifest["field_names"][1:]]},
            {"fingerprint": "0" * 64},
        ):
            (folder / "dataset.json").write_text(json.dumps(manifest | change))
            self.refused(folder, r"dataset\.json: altered; prepare the Dataset again")

    def test_files_that_did_not_change_are_read_once(self, folder, data, monkeypatch):
        monkeypatch.setattr("resid.core.checksums._SETTLED", 0)
        Dataset.load(folder)
        monkeypatch.setattr("resid.core.checksums.hashlib.file_digest", lambda *_: pytest.fail("it reads a file again"))
        assert Dataset.load(folder).fingerprint == data.fingerprint


class TestNothingHalfWritten:
    def test_a_foreign_folder_is_refused_and_left_alone(self, data, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years")
        with pytest.raises(InputError, match="the folder exists and was not written by resid"):
            data.save(tmp_path / "mine")
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
        (tmp_path / "mine" / "dataset.json").write_text('{"name": "my thesis data"}')
        with pytest.raises(InputError, match=r"was not written by resid \(it contains dataset.json\)"):
            data.save(tmp_path / "mine")
        with pytest.raises(InputError, match="is a file, so the folder"):
            data.save(tmp_path / "mine" / "thesis.txt" / "data")

    def test_files_of_the_users_among_ours_are_not_removed(self, data, tmp_path):
        data.save(tmp_path / "data")
        (tmp_path / "data" / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match=r"it contains notes\.txt"):
            data.save(tmp_path / "data")

    def test_links_and_the_working_folder(self, data, tmp_path, monkeypatch):
        data.save(tmp_path / "data")
        (tmp_path / "link").symlink_to(tmp_path / "data")
        data.save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        monkeypatch.chdir(tmp_path / "data")
        data.save(".")
        assert sorted(os.listdir(tmp_path)) == ["data", "link"]

    def test_an_error_leaves_the_old_dataset(self, data, log, tmp_path, monkeypatch):
        data.save(tmp_path / "data")

        def fail(path):
            raise KeyboardInterrupt

        monkeypatch.setattr("resid.data.dataset.sha256_of_file", fail)
        with pytest.raises(KeyboardInterrupt):
            Dataset.from_tables(log).save(tmp_path / "data")
        monkeypatch.undo()
        assert os.listdir(tmp_path) == ["data"]
        assert Dataset.load(tmp_path / "data").fingerprint == data.fingerprint

    def test_what_a_killed_process_left_is_removed(self, data, tmp_path):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        (tmp_path / f".data.partial-{platform.node()}-{dead.pid}").mkdir()
        others = [f".data.partial-{platform.node()}-{os.getppid()}", ".data.partial-elsewhere-1", ".data.partial-x"]
        for name in others:
            (tmp_path / name).mkdir()
        data.save(tmp_path / "data")
        assert sorted(os.listdir(tmp_path)) == sorted([*others, "data"])

    def test_killed_while_it_writes(self, data, log, tmp_path):
        """Before the last checksum, and between the two renames: the old Dataset survives, the next save is complete."""
        data.save(tmp_path / "data")
        for victim in ("resid.data.dataset.sha256_of_file", "resid.core.files.shutil.rmtree"):
            module, name = victim.rsplit(".", 1)
            script = (
                f"import os, signal, {module.removesuffix('.shutil')} as m, resid\n"
                f"data = resid.Dataset.load({str(tmp_path / 'data')!r})\n"
                f"{'m.shutil' if 'shutil' in module else 'm'}.{name} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
                f"data.save({str(tmp_path / 'data')!r})"
            )
            killed = subprocess.run([sys.executable, "-c", script])
            assert killed.returncode == -signal.SIGKILL
            assert Dataset.load(tmp_path / "data").fingerprint == data.fingerprint
        os.rename(tmp_path / "data", tmp_path / ".data.replaced")  # killed between the renames
        Dataset.from_tables(log).save(tmp_path / "data")
        assert os.listdir(tmp_path) == ["data"]

    def test_full_disk(self, data, tmp_path, on_a_small_disk):
        data.save(tmp_path / "whole")
        script = """
import os, resid
try:
    resid.Dataset.load("whole").save("small/data")
except resid.InputError as error:
    print(error, os.listdir("small"))
"""
        answer = on_a_small_disk(script, "8k")
        assert "small/data: the disk is full; free some space" in answer
        assert answer.strip().endswith("[]")
