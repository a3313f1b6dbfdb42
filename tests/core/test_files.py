"""Atomic writes: a failing write leaves what was there."""

import os

import pytest

from resid import InputError
from resid.core.artifact import Artifact, write_artifact
from resid.core.files import atomic_file, atomic_folder, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestAtomicFile:
    def test_replaces_the_file(self, tmp_path):
        path = tmp_path / "new" / "file.txt"
        write_text(path, "old")
        write_text(path, "né")
        assert path.read_bytes() == "né".encode()
        assert names(path.parent) == ["file.txt"]
        mask = os.umask(0)
        os.umask(mask)
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask

    @pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
    def test_failing_write_leaves_the_old_file(self, tmp_path, error):
        path = tmp_path / "file.txt"
        write_text(path, "old")

        def write():
            with atomic_file(path) as partial:
                partial.write_text("half of the n")
                raise error

        with pytest.raises(type(error)):
            write()
        assert path.read_text() == "old"
        assert names(tmp_path) == ["file.txt"]

    def test_failing_write_leaves_no_file(self, tmp_path):
        def write():
            with atomic_file(tmp_path / "file.txt") as partial:
                partial.write_text("half of the n")
                raise OSError("the device is gone")

        with pytest.raises(OSError, match="the device is gone"):
            write()
        assert names(tmp_path) == []

    def test_nothing_written(self, tmp_path):
        write_text(tmp_path / "file.txt", "old")

        def write():
            with atomic_file(tmp_path / "file.txt"):
                pass

        with pytest.raises(InputError, match=r"/file\.txt: cannot be written \(no such file or directory\)"):
            write()
        assert (tmp_path / "file.txt").read_text() == "old"

    def test_full_disk(self, on_a_small_disk):
        script = (
            "from pathlib import Path\n"
            "from resid import InputError\n"
            "from resid.core.files import write_text\n"
            "path = Path('small/file.txt')\n"
            "write_text(path, 'old')\n"
            "try:\n"
            "    write_text(path, 'n' * 200_000)\n"
            "except InputError as error:\n"
            "    print(error)\n"
            "print(path.read_text(), [file.name for file in path.parent.iterdir()])\n"
            "write_text(path, 'new')\n"  # the space is free again
            "print(path.read_text())\n"
        )
        message, left, written = on_a_small_disk(script, "64k").splitlines()
        assert (
            message == "small/file.txt: the disk is full; free some space or choose another folder, and run it again."
        )
        assert left == "old ['file.txt']"
        assert written == "new"


class TestAtomicFolder:
    def test_failing_write_leaves_the_old_folder(self, tmp_path):
        def write(text, error=None):
            with atomic_folder(tmp_path / "folder") as partial:
                (partial / "file.txt").write_text(text)
                if error:
                    raise error

        write("old")
        with pytest.raises(RuntimeError):
            write("new", RuntimeError("a bug"))
        assert (tmp_path / "folder" / "file.txt").read_text() == "old"
        assert names(tmp_path) == ["folder"]
        write("new")
        assert (tmp_path / "folder" / "file.txt").read_text() == "new"
        assert names(tmp_path) == ["folder"]

    def test_killed_between_two_renames(self, tmp_path):
        (tmp_path / ".folder.replaced").mkdir()
        (tmp_path / ".folder.replaced" / "file.txt").write_text("old")
        with pytest.raises(RuntimeError), atomic_folder(tmp_path / "folder"):
            raise RuntimeError("a bug")
        assert (tmp_path / "folder" / "file.txt").read_text() == "old"

    def test_full_disk(self, on_a_small_disk):
        """An artifact is written over an old one on a full disk: the old one can still be read."""
        script = (
            "from pathlib import Path\n"
            "import numpy as np\n"
            "from resid import InputError\n"
            "from resid.core.artifact import Artifact, read_artifact, write_artifact\n"
            "def write(n):\n"
            "    part = Artifact('encoder', 'a', 1, arrays={'x': np.ones(n)})\n"
            "    write_artifact('small/model', Artifact('generator', 'b', 1, parts={'encoder': part}))\n"
            "write(20)\n"
            "try:\n"
            "    write(20_000)\n"
            "except InputError as error:\n"
            "    print(error)\n"
            "found = read_artifact('small/model').parts['encoder'].arrays['x']\n"
            "print(len(found), [file.name for file in Path('small').iterdir()])\n"
        )
        message, left = on_a_small_disk(script, "128k").splitlines()
        assert message == "small/model: the disk is full; free some space or choose another folder, and run it again."
        assert left == "20 ['model']"


def test_a_file_is_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"is a file, so the folder .* cannot be created; choose another folder"):
        write_artifact(tmp_path / "file" / "model", Artifact("encoder", "a", 1))


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_is_replaced(in_one_step, tmp_path, monkeypatch):
    """In one step, without a moment in which there is none; on systems that cannot do that, by two renames."""
    if in_one_step:
        monkeypatch.setattr("os.rename", None)  # is not needed
    else:
        monkeypatch.setattr("resid.core.files._exchange", lambda *_: False)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("1")
    with atomic_folder(folder) as partial:
        (partial / "new").write_text("2")
        assert (folder / "old").read_text() == "1"
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [folder]
