"""`resid generate`: the G-stage alone, from semantic IDs to a generator that recommends, and how good it is."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from resid import Dataset, InputError
from resid.cli.app import AsJson, app, errors, output, print_json, read_changes
from resid.core.artifact import MANIFEST
from resid.core.files import refuse_foreign_folder, refuse_foreign_training
from resid.core.progress import ConsoleProgress
from resid.methods.fit import note_run


@app.command
def generate(
    data: Path,
    ids: Path,
    *,
    out: Path,
    embeddings: Path | None = None,
    model: Literal["onepass", "t5"] = "onepass",
    change: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    as_json: AsJson = False,
) -> None:
    """Train a generator on a Dataset and its semantic IDs, and measure it; a second call continues an interrupted first.

    Parameters
    ----------
    data
        The Dataset's folder.
    ids
        The file of the IDs, as `resid quantize` writes it.
    out
        The run's folder: checkpoints and metrics of every epoch, and the model, for `resid evaluate` and `recommend`.
    embeddings
        The folder with the item embeddings, which the generator then reads beside the codes.
    model
        The one-pass generator, or the paper's T5.
    change
        Any setting of OnePassSettings or T5Settings, as name=value: --set epochs=20 --set dropout=0.3.
    as_json
        Print the result as JSON.
    """
    from resid.encode import ItemEmbeddings  # torch takes a second to import, which other commands need not wait
    from resid.evaluate import intervals, ranking_metrics
    from resid.generate import OnePassGenerator, OnePassSettings, T5Generator, T5Settings
    from resid.quantize import SemanticIds

    refuse_foreign_training(out)
    refuse_foreign_folder(out / "model", MANIFEST)
    dataset, known = Dataset.load(data, verify=True), SemanticIds.load(ids)
    known.require_data(dataset, ids)
    vectors = ItemEmbeddings.load(embeddings, check=True) if embeddings else None
    if vectors and vectors.fingerprint != dataset.fingerprint:
        raise InputError(f"{embeddings}: these are embeddings of another Dataset than {data}; encode it.")
    changes = read_changes(change)
    generator: Any = (
        OnePassGenerator(OnePassSettings().replace(**changes))
        if model == "onepass"
        else T5Generator(T5Settings().replace(**changes))
    )
    generator.fit(
        dataset, known, vectors.vectors if vectors else None, out / "training", progress=ConsoleProgress(errors)
    )
    generator.save(out / "model")
    note_run(out, dataset)
    found = {}
    for name in ("validation", "test"):
        ranks, _ = generator.ranks(getattr(dataset, name))
        found[name] = ranking_metrics(ranks) | {"intervals": intervals(ranks)}
    if as_json:
        facts = {
            "folder": str(out),
            "model": model,
            "epochs": len(generator.history_),
            "best_epoch": generator.best_epoch_,
        }
        settings = generator.settings
        more = {
            "vectors": vectors is not None and settings.read_vectors,
            "items": getattr(settings, "read_items", False),
        }
        reads = ["codes", *(name for name, read in more.items() if read)]
        written = vectors is not None and getattr(settings, "write_vectors", False)
        writes = ["codes", "vectors"] if written else ["codes"]
        facts |= {"reads": reads, "writes": writes}
        print_json(facts | {"ids": known.facts, "settings": settings.to_dict(), **found})
        return
    table = Table("", "R@5", "N@5", "R@10", "N@10", title="Whole catalogue, seen items kept", title_justify="left")
    for name, values in found.items():
        table.add_row(name, *(f"{values[metric]:.4f}" for metric in ("recall@5", "ndcg@5", "recall@10", "ndcg@10")))
    output.print(table)
    text = f"Wrote {out}. Next: resid recommend {shlex.quote(str(out))} --history ..."
    output.print(text, highlight=False, markup=False, soft_wrap=True)
