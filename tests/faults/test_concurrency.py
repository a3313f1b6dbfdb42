"""Threads and processes that recommend from the same model at once, each with other filters, get what they get alone."""

import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import resid
from resid import Dataset
from resid.data import synthetic_shop
from tests.faults.counts import COUNTS

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "0"))
pytestmark = pytest.mark.timeout(600 + 10 * TRIALS)

SMALL = {"width": 16, "ffn_width": 16, "layers": 1, "heads": 2, "epochs": 1}
RECIPES = {
    "resid": {f"{part}.{name}": value for part in ("encoder", "generator") for name, value in SMALL.items()},
    "sasrec-fields": {f"recommender.{name}": value for name, value in SMALL.items()},
    "cooccurrence": {},
}


@pytest.fixture(scope="module", params=RECIPES)
def saved(request, tmp_path_factory):
    """The folder of a model, its item ids, and questions with their answers, one after another."""
    shop = synthetic_shop(users=60, items=30, interactions=600, seed=3)
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"], k_core=3)
    folder = tmp_path_factory.mktemp("models") / request.param
    resid.fit(data, request.param, changes=RECIPES[request.param]).save(folder)
    model = resid.load(folder)
    asked = questions(data.item_ids.to_list(), TRIALS or 40)
    return folder, asked, [ask(model, question) for question in asked]


def questions(items, count):
    """Return random histories with random filters."""
    rng = np.random.default_rng(0)
    asked = []
    for _ in range(count):

        def some(n):
            return rng.choice(items, size=n, replace=False).tolist()

        histories = [some(rng.integers(1, 6)) for _ in range(rng.integers(1, 4))]
        filters = {"exclude_seen": bool(rng.integers(2))}
        if rng.random() < 0.6:
            filters["allow"] = some(rng.integers(1, len(items)))
        if rng.random() < 0.6:
            filters["deny"] = [
                item for item in some(rng.integers(1, len(items) // 2)) if item not in filters.get("allow", ())[:1]
            ]
        asked.append((histories, int(rng.integers(1, 9)), filters))
    return asked


def ask(model, question):
    histories, k, filters = question
    items, scores = model.recommend(histories, k, **filters)
    return items.tolist(), np.asarray(scores).tobytes()


def load_and_ask(folder, asked):
    model = resid.load(folder)
    return [ask(model, question) for question in asked]


def test_filters_hold(saved):
    _, asked, answers = saved
    for (histories, k, filters), (items, _) in zip(asked, answers, strict=True):
        for history, row in zip(histories, items, strict=True):
            found = [item for item in row if item is not None]
            assert len(row) == k
            assert len(set(found)) == len(found)
            assert not set(found) & set(filters.get("deny", ()))
            assert not filters["exclude_seen"] or not set(found) & set(history)
            assert "allow" not in filters or set(found) <= set(filters["allow"])
    assert any(items for items, _ in answers)


def test_threads(saved):
    folder, asked, answers = saved
    model = resid.load(folder)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(asked)), 3))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: ask(model, asked[number]), order))
    assert all(answer == answers[number] for number, answer in zip(order, found, strict=True))
    COUNTS["recommendations in eight threads at once"] += len(order)


def test_processes(saved):
    folder, asked, answers = saved
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(load_and_ask, [folder] * 2, [asked, asked[::-1]]))
    assert found[0] == answers
    assert found[1] == answers[::-1]
    COUNTS["recommendations in two processes at once"] += 2 * len(asked)
