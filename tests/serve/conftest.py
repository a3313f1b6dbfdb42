"""Models on a shop whose texts are hostile, the application in this process, and services in processes of their own."""

import contextlib
import os
import subprocess
import sys
import threading

import httpx
import polars as pl
import pytest
from starlette.testclient import TestClient

from resid import Dataset, fit
from resid.serve.app import create_app
from resid.serve.holder import hold_models
from tests.report.conftest import HOSTILE

TINY = {"encoder.width": 8, "encoder.epochs": 1, "generator.width": 8, "generator.epochs": 1}
KEY, ADMIN = "k" * 32, "a" * 32


@pytest.fixture(scope="package")
def models(shop, tmp_path_factory):
    """A folder with a Dataset, and the models `resid` and `popularity`."""
    folder = tmp_path_factory.mktemp("serve")
    titles = [f"{index} {HOSTILE[index % len(HOSTILE)]}" for index in range(len(shop.item_table))]
    data = Dataset.from_tables(
        shop.interaction_table, shop.item_table.with_columns(pl.Series("title", titles)), ["store", "categories"]
    )
    data.save(folder / "data")
    fit(data, "resid", changes=TINY).save(folder / "resid")
    fit(data, "popularity").save(folder / "popularity")
    fit(data, "cooccurrence").save(folder / "cooccurrence")
    return folder


@pytest.fixture(scope="package")
def holders(models):
    return hold_models([models / "resid", models / "popularity"])


@pytest.fixture(scope="package")
def model(holders):
    return holders["resid"].current.model


@pytest.fixture(scope="package")
def app(holders, models):
    return create_app(holders, data=Dataset.load(models / "data"))


@pytest.fixture(scope="package")
def client(app):
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


class Service:
    """A running `resid serve`: its address, its process, and the lines of its log."""

    def __init__(self, *arguments, **environment):
        command = [sys.executable, "-m", "resid", "serve", *map(str, arguments), "--port=0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        self.lines = [self.process.stderr.readline()]
        if not self.lines[0].startswith("Serving on "):
            raise AssertionError(self.lines[0] + self.process.stderr.read())
        self.address = self.lines[0].split()[2].rstrip(";")
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self._reader.start()

    def get(self, path, **options):
        return httpx.get(self.address + path, timeout=60, **options)

    def post(self, path, **options):
        return httpx.post(self.address + path, timeout=60, **options)

    def stop(self):
        """End the process by SIGTERM and return its exit code."""
        self.process.terminate()
        code = self.process.wait(60)
        self._reader.join()
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def running(*arguments, **environment):
    service = Service(*arguments, **environment)
    try:
        yield service
    finally:
        service.stop()
