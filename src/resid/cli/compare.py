"""`resid compare`: several recipes, several seeds, one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, errors, names, output, print_json
from resid.cli.training import refuse_dataset_folder
from resid.core.errors import counted

if TYPE_CHECKING:
    from resid.comparison import Comparison


def compare(
    data: Path,
    *,
    recipes: str,
    out: Path,
    seeds: int = 3,
    protocol: Literal["split", "cold-items"] = "split",
    cold_share: float = 0.1,
    tune: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    trials: int | None = None,
    jobs: int | None = None,
    devices: str = "cpu",
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    as_json: AsJson = False,
) -> None:
    """Fit and evaluate several recipes with several seeds; what is there already is not run again.

    Example: ``resid compare data/mine --recipes resid,tiger,'sasrec*' --seeds 3 --out results/mine``

    Parameters
    ----------
    data
        The Dataset's folder.
    recipes
        Names that `resid recipes` lists or TOML files, separated by commas; * and ? are wildcards. Changes are in brackets:
        'tiger[generator.kind=onepass]'.
    out
        Receives the tables (Markdown, LaTeX), the record (JSON), the runs, and the stages that they share.
    seeds
        Number of seeds: 3 is 0, 1 and 2.
    protocol
        split evaluates the test targets of the Dataset. cold-items hides the items that appeared last from training and
        validation, adds them to the fitted models, and evaluates new and old targets.
    cold_share
        The share of items that cold-items hides.
    tune
        Settings to search on validation users, with their values: --tune "recommender.learning_rate=1e-3,3e-3". Recipes that
        have them are compared with the best ones.
    trials
        Number of trials per recipe; by default all combinations.
    jobs
        How many recipes run at a time; by default one per device.
    devices
        Where they run, separated by commas: cpu, mps, cuda:0,cuda:1.
    precision
        bf16-mixed computes matrix products in bfloat16.
    as_json
        Print the record as JSON.
    """
    from resid.comparison import compare as compare_recipes  # here, as this import takes a while

    refuse_dataset_folder(out)
    found = compare_recipes(
        data,
        recipes,
        out,
        seeds=seeds,
        protocol=protocol,
        cold_share=cold_share,
        tune=tune,
        trials=trials,
        jobs=jobs,
        devices=names(devices),
        precision=precision,
        console=errors,
    )
    if as_json:
        print_json(dict(found.record))
    else:
        _print(found)
    if failed := found.failures:
        count = counted(len(failed), "run")
        raise InputError(
            f"{count} failed ({'; '.join(failed)}); {out / 'table.md'} says why; run the same command again to try again."
        )


def _print(found: "Comparison") -> None:
    """Print the means of both rankings, and what was done."""
    from resid.comparison.tables import COLD_COLUMNS, METRICS, RULES, cold_cells

    cold = "cold_items" in found.record["protocol"]
    for ranking, (title, rule) in RULES.items():
        table = Table(title=f"{title}: {rule}", title_justify="left")
        table.add_column("method", overflow="fold")
        for column in COLD_COLUMNS if cold else METRICS.values():
            table.add_column(column, no_wrap=not cold)
        for row in found.record["rows"]:
            values = row["mean"].get(ranking)
            cells = cold_cells(row, ranking) if cold else [f"{values[m]:.4f}" for m in METRICS if values]
            table.add_row(escape(row["name"]), *(cells or ["failed"]))
        output.print(table)
    text = f"Ran {counted(found.n_run, 'run')}" if found.n_run else "Everything is there already; nothing was run"
    output.print(f"{text}. See {found.folder / 'table.md'}", highlight=False, markup=False, soft_wrap=True)
