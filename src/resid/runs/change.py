"""Changing a saved model: load it, change its items, and write it to the same or to another folder, atomically."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from resid.core.errors import InputError, as_path
from resid.core.files import MANIFEST, refuse_foreign_folder, refuse_ours
from resid.core.locks import exclusive
from resid.recommend import Recommender
from resid.runs.run import evaluation_folder, load, model_folder, read_run


@contextmanager
def change_model(folder: str | Path, out: str | Path) -> Iterator[Recommender]:
    """Yield the model of a folder; if the block succeeds, the changed model is written.

    If the process is killed, `out` has the old or the new model, complete. No other process can change the model in `out` at the
    same time.

    Parameters
    ----------
    folder
        A run's folder, or one that `Recommender.save` wrote.
    out
        Where to write: the same folder, whose model is replaced, or another one. The evaluation results of a run whose model is
        replaced are removed, as they describe another model.

    Raises
    ------
    InputError
        If there is no model, `out` is something else or another run, or another process is changing it.
    """
    folder, out = as_path(folder), as_path(out)
    in_run = read_run(out) is not None
    if in_run and out.resolve() != folder.resolve():
        raise InputError(f"{out} is another run; choose a folder of its own for the changed model.")
    if not in_run:
        refuse_ours(out, "a model")
        refuse_foreign_folder(out, MANIFEST)
    with ExitStack() as stack:
        # The folder of a model is replaced as a whole, so the lock is beside it; that of a run also keeps 'resid fit' away.
        place = out.resolve()
        stack.enter_context(exclusive(out, file=None if in_run else place.with_name(f".{place.name}.lock")))
        model = load(folder)  # not before the lock: another process may just have replaced it
        yield model
        model.save(model_folder(out) if in_run else out)
        if in_run:
            shutil.rmtree(evaluation_folder(out), ignore_errors=True)
