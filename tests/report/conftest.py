"""Two evaluated runs on a shop whose texts are hostile, and a page about them."""

import polars as pl
import pytest

from resid import Dataset, fit
from resid.evaluate import evaluate
from resid.report import write_report
from resid.runs import write_evaluation

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    '<img src="http://127.0.0.1:9/x.png" onerror="window.hacked = 1">',
    "\"quotes\" 'single' &amp; &lt;b&gt; ${7 * 7} %CONTENT% \\u003c",
    "\u202eكتاب عربي\u2028سطر",
    "日本語のタイトル 🎻" + "w" * 120,
)
TINY = {"encoder.width": 16, "encoder.epochs": 2, "generator.width": 16, "generator.epochs": 2}


@pytest.fixture(scope="package")
def runs(shop, tmp_path_factory):
    """A folder with a Dataset and the runs `resid` and `popularity`, both evaluated."""
    folder = tmp_path_factory.mktemp("report")
    titles = [HOSTILE[index % len(HOSTILE)] for index in range(len(shop.item_table))]
    store = pl.lit("<b>'\"&") + pl.col("store")
    items = shop.item_table.with_columns(pl.Series("title", titles), store.alias("store"))
    data = Dataset.from_tables(shop.interaction_table, items, ["store", "categories"])
    data.save(folder / "data")
    for recipe, changes in (("resid", TINY), ("popularity", {})):
        model = fit(data, recipe, folder / recipe, changes=changes)
        evaluation = evaluate(model, data)
        write_evaluation(folder / recipe, "test", evaluation.metrics(), evaluation.table())
    return folder


@pytest.fixture(scope="package")
def page(runs):
    """The report about both runs."""
    write_report([runs / "resid", runs / "popularity"], runs / "report.html")
    return runs / "report.html"
