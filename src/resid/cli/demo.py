"""`resid demo`: all stages on a synthetic shop, from tables to recommendations and a report."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from resid.cli.app import errors, output
from resid.cli.recommend import recommendations_table
from resid.cli.serve import run_service
from resid.cli.show import print_info, steps_table
from resid.core.files import refuse_file, refuse_foreign_folder, refuse_ours

if TYPE_CHECKING:
    from resid import Dataset, Recommender

_SHOP = {"users": 6_000, "items": 2_000, "interactions": 60_000}
_SMALL = {  # learns the shop in seconds
    "encoder.width": 64,
    "encoder.ffn_width": 128,
    "encoder.epochs": 8,
    "encoder.learning_rate": 3e-3,
    "encoder.patience": 0,
    "generator.width": 64,
    "generator.ffn_width": 256,
    "generator.layers": 2,
    "generator.epochs": 8,
    "generator.batch_size": 128,
    "generator.learning_rate": 3e-3,
}
_NAMES = {"cooccurrence": "co-occurrence", "run": "ReSID"}  # of runs in the table of results
_USERS = 2  # shown
_SHOWN = 5  # items of a history


def demo(*, out: Path = Path("demo-shop"), serve: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Run ReSID on a synthetic shop: Dataset, embeddings, semantic IDs, recommendations, report; no download.

    Example: ``resid demo``

    Parameters
    ----------
    out
        The folder to write: the Dataset to data/, the runs to run/, popularity/ and cooccurrence/, the report to report.html.
    serve
        At the end, serve the model and co-occurrence, with a page to try them in a browser.
    """
    from resid import ConsoleProgress, Dataset, Runtime, fit  # here, as these imports take a second
    from resid.data.dataset import MANIFEST
    from resid.data.synthetic import synthetic_shop
    from resid.evaluate import evaluate
    from resid.report import write_report
    from resid.runs import write_evaluation

    refuse_file(out)
    refuse_ours(out)
    refuse_foreign_folder(out / "data", MANIFEST)
    progress = ConsoleProgress(errors)
    sizes = ", ".join(f"{count:,} {what}" for what, count in _SHOP.items())
    errors.print(f"A synthetic shop: {sizes}.", highlight=False)
    shop = synthetic_shop(**_SHOP, seed=0)
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"], progress=progress)
    data.save(out / "data")
    output.print(steps_table(data))
    print_info(data)
    errors.print(
        "\nFAMAE learns item embeddings, GAOQ quantizes them to semantic IDs, and the joint generator recommends items.",
        highlight=False,
    )
    model = fit(data, "resid", out / "run", changes=_SMALL, runtime=Runtime(progress=progress))
    models = {name: fit(data, name, out / name) for name in ("popularity", "cooccurrence")} | {"run": model}
    table = Table(
        "", "R@5", "R@10", "N@10", title="Test set: how often the next item is in the top K", title_justify="left"
    )
    for name, some in models.items():
        evaluation = evaluate(some, data)
        metrics = evaluation.metrics()
        write_evaluation(out / name, "test", metrics, evaluation.table())
        shown = (f"{metrics['seen_kept'][metric]:.4f}" for metric in ("recall@5", "recall@10", "ndcg@10"))
        table.add_row(_NAMES.get(name, name), *shown)
    output.print(table)
    for user in range(_USERS):
        _show(model, data, user)
    write_report([out / name for name in reversed(models)], out / "report.html", progress=progress)
    history = ",".join(str(data.item_ids[int(item)]) for item in data.test.window(0)[0][-3:])
    run = shlex.quote(str(out / "run"))
    for line in (
        f"\nWrote {out}. Open {out / 'report.html'} in a browser: data, training, IDs to explore, results, example users.",
        "Try next:",
        f"  resid recommend {run} --history {history} -k 5",
        f"  resid evaluate {run}",
        f"  resid inspect {run}",
        f"  resid serve {run}           # a page to try it in a browser",
        "  resid prepare --help        # your own tables",
    ):
        output.print(line, highlight=False, markup=False, soft_wrap=True)
    if serve:
        run_service([out / "run", out / "cooccurrence"], data=out / "data")


def _show(model: "Recommender", data: "Dataset", user: int) -> None:
    """Print the end of a user's history, the next item, and the recommended items."""
    history, target = data.test.window(user)
    titles = data.item_table["title"]
    name = escape(str(data.user_ids[user]))
    output.print(f"\nLast items of user {name}, oldest first:", highlight=False, soft_wrap=True)
    for item in history[-_SHOWN:]:
        output.print(f"  {escape(titles[int(item)])}", highlight=False)
    output.print(f"  [bold]{escape(titles[target])}[/bold]  ← the next item", highlight=False)
    items, scores = model.recommend(data.item_ids.gather(history.astype(int)).to_list(), _SHOWN)
    output.print(recommendations_table(model, items, scores))
