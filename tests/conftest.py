"""Fixtures that more than one test file uses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import hypothesis
import polars as pl
import pytest

# Before torch is imported, so that processes that share the cores add numbers in the same order.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from resid import Dataset
from resid.data.synthetic import SyntheticShop, synthetic_shop
from tests.forks import Server

hypothesis.settings.register_profile("resid", deadline=None)  # tests share the cores
hypothesis.settings.load_profile("resid")
REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def cannot_run(reason: str) -> NoReturn:
    """Skip a test for want of something that a user's machine may lack; where nothing may be skipped, fail."""
    if os.environ.get("RESID_SKIP_NOTHING"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def real_data() -> Path:
    if not REAL_DATA.is_dir():
        cannot_run(f"needs the real data sets in {REAL_DATA}")
    return REAL_DATA


@pytest.fixture(scope="session")
def spark():
    if shutil.which("java") is None:
        cannot_run("needs a Java runtime for Spark")
    session_class = pytest.importorskip("pyspark.sql").SparkSession
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of the workers
    builder = session_class.builder.master("local[2]").config("spark.ui.enabled", "false")
    # Hardly any code runs often enough to be worth the better compiler or several threads of the garbage collector.
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    session = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shop() -> SyntheticShop:
    return synthetic_shop(users=300, items=80, interactions=3_000, seed=3)


@pytest.fixture
def log() -> pl.DataFrame:
    """Six users who each took the same six items, in another order each."""
    rows = [(f"u{user}", f"i{(user + step) % 6}", 10 * user + step) for user in range(6) for step in range(6)]
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


@pytest.fixture
def items() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "item": [f"i{index}" for index in range(6)],
            "store": ["a", "b", "a", None, "b", "c"],
            "categories": [["x", "y"], ["x", "z"], ["w", "y"], ["w", "y"], ["x", "y", "q"], ["x", ""]],
            "title": [f"Item {index}" for index in range(6)],
        }
    )


@pytest.fixture(scope="session")
def forks():
    """Starts processes that have imported libraries, but nothing of resid."""
    with Server() as started:
        yield started


@pytest.fixture(scope="session")
def server():
    """Starts processes that have imported all of resid."""
    with Server(everything=True) as started:
        yield started


@pytest.fixture
def on_a_small_disk(tmp_path):
    """Run a script beside a real file system of so many bytes, `small/`, in a mount namespace of its own."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        cannot_run("needs the right to mount a small file system")

    def run(script: str, size: str) -> str:
        (tmp_path / "small").mkdir()
        mount = f"cd {tmp_path} && mount -t tmpfs -o size={size} tmpfs small && exec {sys.executable} -"
        answer = subprocess.run([*unshare, "sh", "-c", mount], input=script, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    return run


@pytest.fixture(scope="module")
def prepared(shop, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "data"
    Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"]).save(folder)
    return folder


@pytest.fixture(scope="session")
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
