"""The model that is being served, and its swap: a new one is loaded beside it, checked, and takes its place atomically."""

import ctypes
import gc
import hashlib
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from resid.core.errors import InputError
from resid.core.files import MANIFEST
from resid.recommend import Recommender
from resid.runs import load, model_folder
from resid.serve.views import View


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded model.

    Attributes
    ----------
    name : str
        The name that requests choose it by.
    model : Recommender
    view : View
        Its catalogue and IDs, as requests ask for them.
    version : str
        The beginning of the checksum of its manifest.
    loaded : datetime
    """

    name: str
    model: Recommender
    view: View
    version: str
    loaded: datetime


class Holder:
    """Holds the model of a folder.

    Requests read `current` once and use that model to their end, so a swap loses none and mixes no two models.

    Parameters
    ----------
    name
        The name that requests choose the model by.
    folder
        A run's folder, or a saved model.

    Attributes
    ----------
    current : Served
    problem : str or None
        Why the content of the folder was refused; None if it is being served.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.problem: str | None = None
        self._lock = threading.Lock()
        self._stamp, self.current = self._load()

    def refresh(self, *, always: bool = False) -> bool:
        """Load the folder if it has changed, or `always`; return whether another model is served now.

        Raises
        ------
        InputError
            If the folder has no complete, unaltered model; the old one stays.
        """
        with self._lock:
            try:
                # After a problem it is read again, even if the manifest is that of the model which is being served.
                if not always and self.problem is None and self._find_stamp() == self._stamp:
                    return False
                stamp, loaded = self._load()
            except InputError as error:
                self.problem = str(error)
                raise
            changed = loaded.version != self.current.version
            self._stamp, self.problem = stamp, None
            if changed:
                self.current = loaded
            del loaded
        _return_memory()
        return changed

    def _load(self) -> tuple[tuple[int, ...], Served]:
        stamp = self._find_stamp()
        model = load(self.folder)
        manifest = (model_folder(self.folder) / MANIFEST).read_bytes()
        if stamp != self._find_stamp():
            raise InputError(f"{self.folder}: the model was replaced while it was read; reload it again.")
        best = model.catalogue_.by_popularity[:1]
        model.recommend(
            [model.catalogue_.item_ids.gather(best).to_list()], k=1
        )  # it works, and what it caches is there
        version = hashlib.sha256(manifest).hexdigest()[:12]
        return stamp, Served(self.name, model, View(model), version, datetime.now(UTC))

    def _find_stamp(self) -> tuple[int, ...]:
        """Return what changes when the folder gets another model; nothing if there is none."""
        try:
            found = (model_folder(self.folder) / MANIFEST).stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _return_memory() -> None:
    """Give the memory of an old model back to the system, so that swaps do not add up."""
    gc.collect()
    # glibc keeps the memory for its threads; other C libraries have no such function.
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def hold_models(folders: Sequence[Path]) -> dict[str, Holder]:
    """Load the models of folders; each is named after its folder, and numbered if another has that name."""
    holders: dict[str, Holder] = {}
    for folder in folders:
        base = folder.resolve().name
        name = next(name for name in (base, *(f"{base}-{n}" for n in range(2, 10))) if name not in holders)
        holders[name] = Holder(name, folder)
    return holders
