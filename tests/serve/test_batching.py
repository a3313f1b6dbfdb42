"""Batches: bounded in users, in waiting users and in time; nothing is lost."""

import asyncio
import threading
from contextlib import asynccontextmanager

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


@asynccontextmanager
async def batching():
    batcher = Batcher(batch_size=4, batch_wait=0.001, max_queue=6)
    try:
        yield batcher
    finally:
        await asyncio.to_thread(batcher.stop)


async def is_busy(model):
    """Wait until the model ranks a batch."""
    assert await asyncio.to_thread(model.busy.wait, 30)


async def answers(*futures):
    async with asyncio.timeout(30):
        return [(await future)[0] for future in futures]


def test_what_waits_is_ranked_together(model):
    async def ask():
        async with batching() as batcher:
            first = batcher.submit(model, [["a"]], Options())
            await is_busy(model)
            rest = [batcher.submit(model, [[name]], Options()) for name in "bcdef"]
            assert batcher.waiting == 5
            model.go.set()
            assert await answers(first, *rest) == [[[name]] for name in "abcdef"]

    asyncio.run(ask())
    assert model.batches == [1, 4, 1]


def test_a_single_client_does_not_wait(model):
    model.go.set()

    async def ask():
        batcher = Batcher(batch_size=4, batch_wait=60, max_queue=6)
        for _ in range(3):
            await answers(batcher.submit(model, [["a"]], Options()))
        await asyncio.to_thread(batcher.stop)

    asyncio.run(ask())
    assert model.batches == [1, 1, 1]


def test_waits_for_clients_that_were_just_answered(model):
    async def ask():
        batcher = Batcher(batch_size=4, batch_wait=60, max_queue=6)
        first = batcher.submit(model, [["a"]], Options())
        await is_busy(model)
        second = batcher.submit(model, [["b"]], Options())  # waits, while "a" is ranked
        model.go.set()
        await answers(first)  # and asks again
        await answers(second, batcher.submit(model, [["a"]], Options()))
        await asyncio.to_thread(batcher.stop)

    asyncio.run(ask())
    assert model.batches == [1, 2]


def test_other_options_are_other_batches(model):
    async def ask():
        async with batching() as batcher:
            batcher.submit(model, [["a"]], Options())
            await is_busy(model)
            refused = batcher.submit(model, [["b"]], Options(deny=("x",)))
            fine = batcher.submit(model, [["c"], ["d"]], Options())
            model.go.set()
            assert await answers(fine) == [[["c"], ["d"]]]
            with pytest.raises(InputError, match="refused"):
                await answers(refused)

    asyncio.run(ask())


def test_full(model):
    async def ask():
        async with batching() as batcher:
            running = batcher.submit(model, [["a"]], Options())
            await is_busy(model)
            waiting = batcher.submit(model, [["b"]] * 5, Options())
            assert batcher.ready
            with pytest.raises(QueueFull):
                batcher.submit(model, [["c"]] * 2, Options())
            last = batcher.submit(model, [["d"]], Options())
            assert not batcher.ready
            last.cancel()
            model.go.set()
            assert len((await answers(waiting))[0]) == 5  # more than a batch
            assert running.done()

    asyncio.run(ask())
    assert model.batches == [1, 5]  # what was cancelled is not ranked


def test_what_waits_is_finished_before_it_stops(model):
    async def ask():
        batcher = Batcher(batch_size=1, batch_wait=0, max_queue=10)
        futures = [batcher.submit(model, [[name]], Options()) for name in "abc"]
        stopping = asyncio.create_task(asyncio.to_thread(batcher.stop))
        await is_busy(model)
        model.go.set()
        await stopping
        assert await answers(*futures) == [[["a"]], [["b"]], [["c"]]]
        with pytest.raises(QueueFull):
            batcher.submit(model, [["d"]], Options())

    asyncio.run(ask())
