"""The Dataset as a folder: round trip, fingerprint, damage, and no half-written folders."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from resid import Dataset, InputError


@pytest.fixture
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


class TestRoundTrip:
    def test_everything_comes_back(self, data, tmp_path):
        data.save(tmp_path / "data")
        loaded = Dataset.load(tmp_path / "data", verify=True)
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
        self.refused(tmp_path / "none", "not a Dataset")

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
        Dataset.load(folder)
        self.refused(folder, "sequence.npy: missing or damaged", verify=True)

    def test_manifest(self, folder):
        text = (folder / "dataset.json").read_text()
        (folder / "dataset.json").write_text(text[:100])
        self.refused(folder, "dataset.json: damaged")
        (folder / "dataset.json").write_text(json.dumps(json.loads(text) | {"format": 99}))
        self.refused(folder, "format 99 is not known here")


class TestNothingHalfWritten:
    def test_a_foreign_folder_is_refused_and_left_alone(self, data, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years")
        with pytest.raises(InputError, match="exists and is not a folder that resid wrote"):
            data.save(tmp_path / "mine")
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
        with pytest.raises(InputError, match="exists and is not a folder"):
            data.save(tmp_path / "mine" / "thesis.txt")

    def test_an_error_leaves_the_old_dataset(self, data, log, tmp_path, monkeypatch):
        data.save(tmp_path / "data")

        def fail(path):
            raise KeyboardInterrupt

        monkeypatch.setattr("resid.data.dataset.sha256_of_file", fail)
        with pytest.raises(KeyboardInterrupt):
            Dataset.from_tables(log).save(tmp_path / "data")
        monkeypatch.undo()
        assert os.listdir(tmp_path) == ["data"]
        assert Dataset.load(tmp_path / "data", verify=True).fingerprint == data.fingerprint

    def test_what_a_killed_process_left_is_removed(self, data, tmp_path):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        (tmp_path / f".data.partial-{dead.pid}").mkdir()
        alive = tmp_path / f".data.partial-{os.getppid()}"
        alive.mkdir()
        data.save(tmp_path / "data")
        assert sorted(os.listdir(tmp_path)) == [alive.name, "data"]

    def test_full_disk(self, data, tmp_path):
        """On a real file system of 8 kB, in a mount namespace of its own."""
        unshare = ["unshare", "--map-root-user", "--mount", "true"]
        if shutil.which("unshare") is None or subprocess.run(unshare, capture_output=True).returncode:
            pytest.skip("needs the right to mount a small file system")
        data.save(tmp_path / "whole")
        (tmp_path / "small").mkdir()
        script = f"""
import os, resid
data = resid.Dataset.load({str(tmp_path / "whole")!r})
try:
    data.save({str(tmp_path / "small" / "data")!r})
except resid.InputError as error:
    print(error, os.listdir({str(tmp_path / "small")!r}))
"""
        mount = f"mount -t tmpfs -o size=8k tmpfs {tmp_path / 'small'} && exec {sys.executable} -"
        answer = subprocess.run(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", mount], input=script, capture_output=True, text=True
        )
        assert "small/data: the disk is full, so nothing was written" in answer.stdout, answer.stderr
        assert answer.stdout.strip().endswith("[]")
