"""Metrics and logs of the service. Logs are lines of JSON that name routes, never histories, users or items."""

import json
import logging
import time
from datetime import UTC, datetime
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("resid.serve")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_USERS = tuple(2**power for power in range(10))


class Metrics:
    """What Prometheus reads, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "resid_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "resid_request_seconds",
            "Seconds from the request to the end of the answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batch_users = Histogram(
            "resid_batch_users", "Users that the model ranked at a time.", buckets=_USERS, registry=self.registry
        )
        self.waiting = Gauge("resid_waiting_users", "Users that wait for the model.", registry=self.registry)
        self.swaps = Counter(
            "resid_model_loads", "Models taken up or refused.", ["model", "outcome"], registry=self.registry
        )
        self.items = Gauge("resid_model_items", "Items of the catalogue.", ["model", "version"], registry=self.registry)


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; what was passed as ``extra={"facts": …}`` becomes its keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json() -> None:
    """Write the logs of this process as lines of JSON to standard error.

    The warnings of the library are left out, as they quote items of histories; responses count these items instead.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("resid").setLevel(logging.ERROR)
    log.setLevel(logging.INFO)


class Observe:
    """Middleware that counts, times and logs requests by route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._series = cache(  # as routes and statuses are few, and finding them by their labels takes a while
            lambda route, status: (metrics.requests.labels(route, status), metrics.seconds.labels(route))
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record how it was answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, begin = 500, time.perf_counter()

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - begin
            route = getattr(scope.get("route"), "path", "other")
            requests, times = self._series(route, status)
            requests.inc()
            times.observe(seconds)
            facts = {"method": scope["method"], "route": route, "status": status, "ms": round(1e3 * seconds, 2)}
            log.info("request", extra={"facts": facts})
