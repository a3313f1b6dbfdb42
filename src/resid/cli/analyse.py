"""`resid analyse`: the paper's analyses, a figure with the numbers behind it each."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, errors, names, output, print_json
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder
from resid.core.errors import nearest
from resid.core.files import refuse_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from resid import Recipe
    from resid.analyse import Finding
    from resid.core.progress import Progress

Listed = Annotated[str, Parameter(show_default=False)]
Rest = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]

analyse = App(
    name="analyse",
    help="Draw an analysis of the paper, with the numbers behind it.\n\nExample: ``resid analyse overlap runs/mine --out figures``",
    result_action="return_value",
)


@analyse.default
def list_analyses(name: str | None = None, *given: Rest, as_json: AsJson = False) -> None:
    """List the analyses.

    Parameters
    ----------
    name
        An analysis; without one, they are listed.
    given
        What the analysis would read.
    as_json
        Print them as JSON.
    """
    known = {each: analyse[each].help.splitlines()[0] for each in analyse if not each.startswith("-")}
    if name is not None:
        raise InputError(
            f"there is no analysis '{name}'{nearest(name, known)}; available analyses: {', '.join(known)}."
        )
    if as_json:
        print_json(known)
        return
    table = Table("analysis", "what it shows")
    for each, text in known.items():
        table.add_row(each, text)
    output.print(table)
    output.print("See resid analyse NAME --help", highlight=False)


@Parameter(name="*")
@dataclass(frozen=True)
class CodesTraining(Training):
    """What to fit and where; a generator of codes reads codes alone, except for what --set says."""

    recipe: str = "resid-codes"

    def codes_recipe(self) -> "Recipe":
        """Return the recipe with the changes, its generator reduced to codes."""
        from resid import Recipe
        from resid.analyse.trained import codes_only

        return codes_only(Recipe.read(self.recipe), self.changes())


CODES = CodesTraining()


@analyse.command
def embeddings(
    data: Path,
    *,
    out: Path,
    epochs_of_encoder: str = "1,2,4,8,16",
    training: CodesTraining = CODES,
    as_json: AsJson = False,
) -> None:
    """Metric 1 and 2 of FAMAE after some epochs against R@10; IDs and generator are rebuilt for each.

    Example: ``resid analyse embeddings data/mine --out figures``

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        Receives embeddings.png, .svg and .csv, and the fitted stages in runs/; an interrupted analysis continues.
    epochs_of_encoder
        Numbers of epochs of FAMAE, a point each.
    as_json
        Print the main number as JSON.
    """
    from resid import Dataset
    from resid.analyse import analyse_embeddings

    counts = _numbers("--epochs-of-encoder", epochs_of_encoder)
    _run(
        lambda: analyse_embeddings(
            Dataset.load(data), training.codes_recipe(), out, epochs=counts, runtime=training.runtime()
        ),
        out,
        as_json,
    )


@analyse.command
def branching(
    data: Path,
    *,
    out: Path,
    first: Listed = "",
    second: Listed = "",
    training: CodesTraining = CODES,
    as_json: AsJson = False,
) -> None:
    """R@10 as a heat map over the branching (b1, b2) of the tree; quantizer and generator are rebuilt for each.

    Example: ``resid analyse branching data/mine --first 8,16,32 --second 10,20,40 --out figures``

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        Receives branching.png, .svg and .csv, and the fitted stages in runs/; an interrupted analysis continues.
    first
        Values of b1; by default half, once and twice the automatic value.
    second
        Values of b2, likewise.
    as_json
        Print the main number as JSON.
    """
    from resid import Dataset
    from resid.analyse import analyse_branching

    sizes = {"first": _numbers("--first", first), "second": _numbers("--second", second)}
    _run(
        lambda: analyse_branching(
            Dataset.load(data), training.codes_recipe(), out, **sizes, runtime=training.runtime()
        ),
        out,
        as_json,
    )


@analyse.command
def scaling(
    data: Path,
    *,
    out: Path,
    recipes: str = "resid,tiger,sasrec",
    widths: str = "32,64,128,256",
    layers: str = "2",
    training: Training = DEFAULTS,
    as_json: AsJson = False,
) -> None:
    """NDCG@10 against the number of parameters outside of embedding tables, for several sizes of the networks.

    Example: ``resid analyse scaling data/mine --recipes resid-codes,sasrec --widths 32,64 --out figures``

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        Receives scaling.png, .svg and .csv, and the fitted stages in runs/; an interrupted analysis continues.
    recipes
        Of Transformers, separated by commas; --recipe is not used.
    widths
        Of the generator or the sequential model.
    layers
        Numbers of layers; every width with every one of them.
    as_json
        Print the main number as JSON.
    """
    from resid import Dataset, Recipe
    from resid.analyse import analyse_scaling

    sizes = {"widths": _numbers("--widths", widths), "layers": _numbers("--layers", layers)}
    chosen = [Recipe.read(name) for name in names(recipes)]
    _run(
        lambda: analyse_scaling(
            Dataset.load(data), chosen, out, **sizes, changes=training.changes(), runtime=training.runtime()
        ),
        out,
        as_json,
    )


@analyse.command
def tsne(
    run: Path,
    *others: Path,
    out: Path,
    data: Path | None = None,
    field: str | None = None,
    items: int = 5_000,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """t-SNE of item embeddings by category and by co-occurrence community, with silhouette and neighbor purity.

    Example: ``resid analyse tsne runs/resid runs/bert4rec runs/tiger --out figures``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them: runs with an encoder, or of sequential models, of one Dataset.
    out
        Receives tsne.png, .svg and .csv.
    data
        The Dataset's folder; by default that of the first run.
    field
        The category that colors items; by default the one with the fewest values.
    items
        Maximum number of items.
    seed
        Of t-SNE, Louvain and the sample.
    as_json
        Print the main number as JSON.
    """
    from resid.analyse import analyse_tsne

    _run(
        lambda: analyse_tsne((run, *others), data, field=field, items=items, seed=seed, progress=_progress()),
        out,
        as_json,
    )


@analyse.command
def density(
    run: Path,
    *others: Path,
    out: Path,
    data: Path | None = None,
    fields: Listed = "",
    projection: Literal["umap", "tsne"] = "umap",
    items: int = 20_000,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """UMAP of the density of item-ID embeddings, with the embeddings of categories as points.

    Example: ``resid analyse density runs/resid runs/bert4rec-fields --out figures``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them: runs with an encoder, or of sequential models, of one Dataset.
    out
        Receives density.png, .svg and .csv.
    data
        The Dataset's folder; by default that of the first run.
    fields
        The categories, separated by commas; by default all whose names begin with "cat".
    projection
        UMAP compiles for some seconds; t-SNE does not.
    items
        Maximum number of items.
    seed
        Of the projection and the sample.
    as_json
        Print the main number as JSON.
    """
    from resid.analyse import analyse_density

    shown = names(fields)
    _run(
        lambda: analyse_density(
            (run, *others), data, fields=shown, projection=projection, items=items, seed=seed, progress=_progress()
        ),
        out,
        as_json,
    )


@analyse.command
def attention(
    run: Path,
    *others: Path,
    out: Path,
    data: Path | None = None,
    split: Literal["validation", "test"] = "validation",
    windows: int = 2_000,
    min_history: int = 10,
    as_json: AsJson = False,
) -> None:
    """Attention of the target position to the history, last-position against BERT-style masking of FAMAE.

    A run with BERT-style masking: ``resid encode data/mine --set encoder.attention=bidirectional --set encoder.masking=random --out runs/random``

    Example: ``resid analyse attention runs/last runs/random --out figures``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them: runs with FAMAE.
    out
        Receives attention.png, .svg and .csv.
    data
        The Dataset's folder; by default that of each run.
    split
        Of the windows.
    windows
        Maximum number of windows.
    min_history
        Windows with shorter histories are left out.
    as_json
        Print the main number as JSON.
    """
    from resid.analyse import analyse_attention

    _run(
        lambda: analyse_attention((run, *others), data, split=split, windows=windows, min_history=min_history),
        out,
        as_json,
    )


@analyse.command
def overlap(run: Path, *others: Path, out: Path, data: Path | None = None, as_json: AsJson = False) -> None:
    """Overlap of the codes of targets and histories, and cosine of items with the same second code.

    Example: ``resid analyse overlap runs/resid runs/resid-q2 --out figures``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them: runs, or saved models, with semantic IDs.
    out
        Receives overlap.png, .svg and .csv.
    data
        The Dataset's folder; by default that of each run.
    as_json
        Print the main number as JSON.
    """
    from resid.analyse import analyse_overlap

    _run(lambda: analyse_overlap((run, *others), data), out, as_json)


@analyse.command
def quantizers(
    run: Path, *others: Path, out: Path, data: Path | None = None, passes: int = 5, as_json: AsJson = False
) -> None:
    """Time of GAOQ, RQ-VAE and LETTER on the embeddings of runs.

    Example: ``resid analyse quantizers runs/resid --out figures``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them: runs with an encoder, or of sequential models.
    out
        Receives quantizers.png, .svg and .csv.
    data
        The Dataset's folder; by default that of each run.
    passes
        Passes of RQ-VAE and LETTER over the vectors that are measured; the time of all is computed from them.
    as_json
        Print the main number as JSON.
    """
    from resid.analyse import analyse_quantizers

    _run(lambda: analyse_quantizers((run, *others), data, passes=passes, progress=_progress()), out, as_json)


@analyse.command
def diagnostics(
    run: Path,
    *others: Path,
    out: Path,
    data: Path | None = None,
    split: Literal["test", "validation"] = "test",
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Whether a diagnostic of the IDs predicts R@10: a scatter and rank correlations over evaluated runs.

    Example: ``resid analyse diagnostics runs/resid-codes runs/resid-q1 runs/resid-q2 runs/resid-e2 --out figures``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them: evaluated runs with semantic IDs; runs are compared with those that have the same generator and settings.
    out
        Receives diagnostics.png, .svg, .csv and .json.
    data
        The Dataset's folder; by default that of each run.
    split
        Whose evaluation is read.
    seed
        Of bootstrap and permutations.
    as_json
        Print the main number as JSON.
    """
    from resid.analyse import analyse_diagnostics

    runs = (run, *others)
    command = shlex.join(["resid", *sys.argv[1:]]) if sys.argv[1:2] == ["analyse"] else "resid analyse diagnostics"
    _run(
        lambda: analyse_diagnostics(runs, data, split=split, command=command, seed=seed, progress=_progress()),
        out,
        as_json,
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Read positive integers separated by commas."""
    try:
        found = tuple(int(part) for part in names(text))
    except ValueError:
        found = (0,)
    if any(number < 1 for number in found):
        raise InputError(f"{option}: '{text}' must be positive integers separated by commas, for example 16,32.")
    return found


def _progress() -> "Progress":
    from resid import ConsoleProgress

    return ConsoleProgress(errors)


def _run(analysis: "Callable[[], Finding]", out: Path, as_json: bool) -> None:
    """Run an analysis, write its files, and print its main number."""
    refuse_dataset_folder(out)
    refuse_file(out)
    found = analysis()
    files = found.save(out)
    if as_json:
        print_json({"analysis": found.name, "sentence": found.sentence, "files": [str(file) for file in files]})
        return
    output.print(found.sentence, highlight=False, markup=False, soft_wrap=True)
    output.print(f"Wrote {', '.join(map(str, files))}", highlight=False, markup=False, soft_wrap=True)
