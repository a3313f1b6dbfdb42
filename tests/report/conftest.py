"""Two evaluated runs on a shop whose texts are hostile, a page about them, and a browser."""

import shutil

import polars as pl
import pytest

from resid import Dataset, fit
from resid.evaluate import evaluate
from resid.report import write_report
from resid.runs import write_evaluation
from tests.conftest import cannot_run

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


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    """Headless Chromium that records its console and its requests."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        cannot_run("needs chromium and chromedriver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
        *("disable-component-update", "disable-sync", f"user-data-dir={tmp_path_factory.mktemp('profile')}"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()
