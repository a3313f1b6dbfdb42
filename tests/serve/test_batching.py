"""Batches: bounded in users, in waiting users and in time; nothing is lost."""

import threading

import pytest

from resid.core.errors import InputError
from resid.serve.batching import Batcher, Options, QueueFull


class Model:
    """Answers every history with its own items, when it is let to."""

    def __init__(self):
        self.go, self.busy, self.batches = threading.Event(), threading.Event(), []

    def recommend(self, histories, k=1, users=None, **options):
        self.busy.set()
        assert self.go.wait(30)
        if options["deny"]:
            raise InputError("refused.")
        self.batches.append(len(histories))
        return [history[:k] for history in histories], [0.0] * len(histories)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batcher():
    batcher = Batcher(batch_size=4, batch_wait=0.001, max_queue=6)
    yield batcher
    batcher.stop()


def test_what_waits_is_ranked_together(model, batcher):
    first = batcher.submit(model, [["a"]], Options())
    assert model.busy.wait(30)
    rest = [batcher.submit(model, [[name]], Options()) for name in "bcdef"]
    assert batcher.waiting == 5
    model.go.set()
    assert [future.result(30)[0] for future in (first, *rest)] == [[[name]] for name in "abcdef"]
    assert model.batches == [1, 4, 1]


def test_other_options_are_other_batches(model, batcher):
    batcher.submit(model, [["a"]], Options())
    assert model.busy.wait(30)
    refused = batcher.submit(model, [["b"]], Options(deny=("x",)))
    fine = batcher.submit(model, [["c"], ["d"]], Options())
    model.go.set()
    assert fine.result(30)[0] == [["c"], ["d"]]
    with pytest.raises(InputError, match="refused"):
        refused.result(30)


def test_full(model, batcher):
    running = batcher.submit(model, [["a"]], Options())
    assert model.busy.wait(30)
    waiting = batcher.submit(model, [["b"]] * 5, Options())
    assert batcher.ready
    with pytest.raises(QueueFull):
        batcher.submit(model, [["c"]] * 2, Options())
    last = batcher.submit(model, [["d"]], Options())
    assert not batcher.ready
    last.cancel()
    model.go.set()
    assert len(waiting.result(30)[0]) == 5  # more than a batch
    assert running.done()
    batcher.stop()
    assert model.batches == [1, 5]  # what was cancelled is not ranked


def test_what_waits_is_finished_before_it_stops(model):
    batcher = Batcher(batch_size=1, batch_wait=0, max_queue=10)
    futures = [batcher.submit(model, [[name]], Options()) for name in "abc"]
    stopping = threading.Thread(target=batcher.stop)
    stopping.start()
    model.go.set()
    stopping.join(30)
    assert [future.result(0)[0] for future in futures] == [[["a"]], [["b"]], [["c"]]]
    with pytest.raises(QueueFull):
        batcher.submit(model, [["d"]], Options())
