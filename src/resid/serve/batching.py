"""Batching: requests of concurrent clients are ranked together by one thread that runs the model.

The queue is bounded in users and the wait in seconds. A request that arrives while the model is busy joins the next batch, so
that the batches grow with the load. When the model becomes free, it waits for the clients that it has just answered, as many as
were ranked and waited before, so that a single client never waits. The results of a batch are handed to the event loop in one call.
"""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from resid.recommend import Recommender

Ranking = tuple[NDArray[Any], NDArray[Any]]  # item ids and scores, shape (users, k)


@dataclass(frozen=True)
class Options:
    """What must be equal for histories to be ranked in one batch: the arguments of `Recommender.recommend`."""

    k: int = 10
    exclude_seen: bool = False
    allow: tuple[Any, ...] | None = None
    deny: tuple[Any, ...] | None = None
    where: str | None = None  # as JSON, which can be compared

    def arguments(self) -> dict[str, Any]:
        """Return the arguments by name."""
        return vars(self) | {"where": None if self.where is None else json.loads(self.where)}


@dataclass(frozen=True, eq=False)
class _Job:
    model: Recommender
    histories: Sequence[Sequence[Any]]
    users: Sequence[Any] | None
    options: Options
    future: "asyncio.Future[Ranking]"

    @property
    def key(self) -> tuple[Any, ...]:
        return id(self.model), self.options, self.users is None


class QueueFull(Exception):  # noqa: N818 - named as queue.Full
    """So many users wait for the model that a request is refused."""


class Batcher:
    """Runs models in one thread, for all requests that wait; it is created and asked in a running event loop.

    Parameters
    ----------
    batch_size
        Users that are ranked at a time; a request with more users is a batch of its own.
    batch_wait
        Seconds that the model waits for requests to join a batch, if more than one client was there before.
    max_queue
        Users that wait at most.
    observe
        Called with the number of users of every batch.
    """

    def __init__(
        self, batch_size: int, batch_wait: float, max_queue: int, observe: Callable[[int], None] | None = None
    ) -> None:
        self._batch_size, self._batch_wait, self._max_queue = batch_size, batch_wait, max_queue
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._users = 0  # of all waiting requests
        self._ranked = 0  # requests of the last batch, until the first of them are answered
        self._expected = 0  # these, whose clients may ask again, and those that waited when it was ranked
        self._free = time.monotonic()  # since when
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="resid-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of users that wait."""
        return self._users

    @property
    def ready(self) -> bool:
        """Whether a request would be accepted."""
        return self._thread.is_alive() and not self._stopped and self._users < self._max_queue

    def submit(
        self,
        model: Recommender,
        histories: Sequence[Sequence[Any]],
        options: Options,
        users: Sequence[Any] | None = None,
    ) -> "asyncio.Future[Ranking]":
        """Queue histories, and return the future of what `Recommender.recommend` returns for them.

        Raises
        ------
        QueueFull
            If too many users wait already, or the batcher is stopped.
        """
        job = _Job(model, histories, users, options, self._loop.create_future())
        with self._changed:
            # A request larger than the queue is taken if nothing else waits.
            if self._stopped or (self._waiting and self._users + len(histories) > self._max_queue):
                raise QueueFull
            self._waiting.append(job)
            self._users += len(histories)
            self._changed.notify()
        return job.future

    def stop(self) -> None:
        """Rank what waits, take nothing more, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._take():
            groups: dict[tuple[Any, ...], list[_Job]] = {}
            for job in jobs:
                if not job.future.cancelled():  # its client may have run out of time
                    groups.setdefault(job.key, []).append(job)
            for group in groups.values():
                self._rank(group)

    def _take(self) -> list[_Job]:
        """Wait for requests, and return those of the next batch; an empty list when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            while (
                self._waiting
                and len(self._waiting) < self._expected
                and self._users < self._batch_size
                and not self._stopped
            ):
                left = self._free + self._batch_wait - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            jobs: list[_Job] = []
            room = self._batch_size
            while self._waiting and (not jobs or len(self._waiting[0].histories) <= room):
                jobs.append(self._waiting.popleft())
                room -= len(jobs[-1].histories)
                self._users -= len(jobs[-1].histories)
            self._ranked = len(jobs)
            return jobs

    def _rank(self, jobs: list[_Job]) -> None:
        """Rank the histories of requests with the same model and options, and hand out the results."""
        first = jobs[0]
        histories = [history for job in jobs for history in job.histories]
        users = None if first.users is None else [user for job in jobs for user in job.users or ()]
        try:
            items, scores = first.model.recommend(histories, users=users, **first.options.arguments())
        except Exception as error:  # the service answers it, and goes on
            self._deliver(_fail, jobs, error)
            return
        if self._observe is not None:
            self._observe(len(histories))
        self._deliver(_hand_out, jobs, items, scores)

    def _deliver(self, hand_out: Callable[..., None], *results: Any) -> None:
        with self._changed:
            if self._ranked:  # before the first clients have their answers, and ask again
                self._expected, self._ranked = self._ranked + len(self._waiting), 0
            self._free = time.monotonic()
        self._loop.call_soon_threadsafe(hand_out, *results)


def _hand_out(jobs: list[_Job], items: NDArray[Any], scores: NDArray[Any]) -> None:
    """Give every request its rows of the batch; in the event loop."""
    begin = 0
    for job in jobs:
        end = begin + len(job.histories)
        if not job.future.done():
            job.future.set_result((items[begin:end], scores[begin:end]))
        begin = end


def _fail(jobs: list[_Job], error: Exception) -> None:
    """Give every request the error of the batch; in the event loop."""
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)
