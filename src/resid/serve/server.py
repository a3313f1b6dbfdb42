"""Runs the service: checks where it may listen, starts the server, and drains it at the end."""

import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from resid.core.errors import InputError, first_line
from resid.data.dataset import Dataset
from resid.serve.app import create_app
from resid.serve.guard import LOOPBACK
from resid.serve.holder import hold_models
from resid.serve.keys import Key
from resid.serve.observe import log_json
from resid.serve.settings import ServeSettings

_DRAIN = 30  # seconds that running requests have to finish


def serve(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: ServeSettings | None = None,
    keys: Sequence[Key] = (),
    data: Dataset | None = None,
    started: Callable[[str], None] | None = None,
) -> NoReturn:
    """Serve models until the process gets SIGTERM or SIGINT; then finish the running requests and exit with code 0.

    Parameters
    ----------
    folders
        Runs or saved models; with two of them, the page compares them.
    host, port
        Where to listen; port 0 is a free one.
    settings
        Limits and batching.
    keys
        API keys, without which only a loopback host is allowed.
    data
        The Dataset whose users requests can name.
    started
        Called with the address when the port is open.
    """
    if not keys and host not in LOOPBACK:
        raise InputError(
            f"listening on {host} needs API keys; give them with --api-key-file or RESID_API_KEY, or use --host 127.0.0.1."
        )
    settings = settings or ServeSettings()
    opened = _listen(host, port)  # before the models are loaded, which can take a while
    try:
        app = create_app(hold_models(folders), settings, keys, data)
    except BaseException:
        opened.close()
        raise
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=_DRAIN,
    )
    log_json()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)  # the server drains at the first signal, and raises it again when it has finished
    opened.listen(config.backlog)
    if started is not None:
        name = f"[{host}]" if ":" in host else host
        started(f"http://{name}:{opened.getsockname()[1]}")
    uvicorn.Server(config).run(sockets=[opened])
    raise SystemExit(0)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
    except (OSError, OverflowError) as error:
        opened.close()
        raise InputError(
            f"cannot listen on {host}, port {port} ({first_line(error)}); choose another --port."
        ) from error
    return opened
