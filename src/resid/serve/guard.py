"""The door of the service: API keys, hosts, the size of bodies and the time to receive them, and security headers."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resid.serve.keys import Key, find_key

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ADMIN_PATHS = frozenset({"/reload"})
_OPEN = ("/health/", "/page/")  # the page has no data of its own
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Middleware that refuses requests before anything of them is parsed.

    Parameters
    ----------
    app
        What answers the requests that are let through.
    keys
        The valid keys; without any, only requests to a loopback name are answered.
    max_body
        Bytes of a body.
    timeout
        Seconds to receive a body.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[Key], max_body: int, timeout: float) -> None:
        self._app, self._keys, self._max_body, self._timeout = app, keys, max_body, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on with its whole body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        headers = dict(reversed(scope["headers"]))  # the first of each name
        body = b""
        refusal = self._refuse_sender(scope["path"], headers) or self._refuse_length(headers)
        if refusal is None:
            try:
                async with asyncio.timeout(self._timeout):
                    received = await self._read(receive)
            except TimeoutError:
                refusal = 408, f"the body did not arrive within {self._timeout:g} seconds."
            else:
                if received is None:
                    return  # the client is gone
                body = received
                refusal = self._too_large() if len(body) > self._max_body else None
        if refusal is not None:
            status, sentence = refusal
            # What is left of the body is not read, so the connection cannot be used again.
            response = JSONResponse({"detail": sentence}, status, {"connection": "close"})
            await response(scope, receive, secured)
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, secured)

    def _refuse_sender(self, path: str, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """Return status and sentence if the sender may not ask for this."""
        if not self._keys:
            # A page of another site must not reach a service on this machine, by a name of its own or by a form.
            host = headers.get(b"host", b"").decode("latin-1")
            if _hostname(f"//{host}") not in LOOPBACK:
                return 421, "this service answers to localhost only; start it with API keys to use another name."
            if headers.get(b"origin", b"http://" + host.encode("latin-1")).decode("latin-1") != f"http://{host}":
                return 403, "requests from the pages of other sites are refused."
            return None
        if path == "/" or path.startswith(_OPEN):
            return None
        key = find_key(self._keys, headers.get(b"x-api-key", b""))
        if key is None:
            return 401, "the header X-API-Key is missing or has no valid key."
        if path in ADMIN_PATHS and not key.admin:
            return 403, "this needs the key of an admin."
        return None

    def _refuse_length(self, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        length = headers.get(b"content-length", b"0")
        return self._too_large() if length.isdigit() and int(length[:20]) > self._max_body else None

    def _too_large(self) -> tuple[int, str]:
        return 413, f"the body must have at most {self._max_body:,} bytes."

    async def _read(self, receive: Receive) -> bytes | None:
        """Return a body, or what came of it when it became too large; None if the client has disconnected."""
        parts: list[bytes] = []
        size = 0
        while size <= self._max_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if not message.get("more_body", False):
                break
        return b"".join(parts)


@lru_cache(64)
def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # a bracket without another
        return None
