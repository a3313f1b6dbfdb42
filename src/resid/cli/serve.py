"""`resid serve`: models over HTTP, with a page to try them."""

import os
from pathlib import Path
from typing import NoReturn

from resid import InputError
from resid.cli.app import errors


def serve(
    model: Path,
    other: Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    data: Path | None = None,
    reload_every: float = 0.0,
    max_k: int = 100,
    max_users: int = 256,
    max_history: int = 1_000,
    max_body: int = 2**20,
    max_connections: int = 1_000,
    timeout: float = 10.0,
    max_queue: int = 2_048,
    batch_size: int = 256,
    batch_wait: float = 0.002,
) -> NoReturn:
    """Serve recommendations over HTTP, and a page to try them in a browser.

    Concurrent requests are ranked in batches. SIGTERM finishes the running requests. The extra `serve` installs what it needs.

    Example: ``resid serve runs/mine --port 8000``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    other
        Another one, which the page compares with the first.
    host
        The address to listen on. Addresses other than localhost need API keys.
    port
        0 is a free one.
    api_key_file
        A text file with one API key per line; "KEY admin" may also reload models. Clients send it as the header X-API-Key. The
        environment variables RESID_API_KEY and RESID_ADMIN_KEY add one key each.
    data
        The Dataset's folder, so that requests can name its users instead of sending histories.
    reload_every
        Seconds between looks for a new model in the folder; with 0, a new one is taken up on POST /reload only.
    max_k
        Items per user.
    max_users
        Users per request.
    max_history
        Items of a history.
    max_body
        Bytes of a request.
    max_connections
        Connections at a time.
    timeout
        Seconds for receiving a request, and for an answer of the model.
    max_queue
        Users that wait for the model; more are answered with 503.
    batch_size
        Users that the model ranks at a time.
    batch_wait
        Seconds that a request waits for others to join its batch.
    """
    settings = {name: value for name, value in locals().items() if name not in _OWN}
    run_service([folder for folder in (model, other) if folder], host, port, api_key_file, data, **settings)


_OWN = {"model", "other", "host", "port", "api_key_file", "data"}


def run_service(
    folders: list[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    data: Path | None = None,
    **settings: float,
) -> NoReturn:
    """Serve models until the process is stopped, and say where."""
    try:
        from resid.serve.server import serve  # here, as these imports take a second
    except ModuleNotFoundError as error:
        if str(error.name).startswith("resid"):
            raise
        raise InputError(f"'{error.name}' is not installed; run pip install 'resid[serve]'.") from error
    from resid import Dataset
    from resid.serve.keys import read_keys
    from resid.serve.settings import ServeSettings

    def started(address: str) -> None:
        errors.print(f"Serving on {address}; stop with Ctrl-C.", highlight=False, markup=False, soft_wrap=True)

    serve(
        folders,
        host=host,
        port=port,
        settings=ServeSettings(**settings),  # type: ignore[arg-type]
        keys=read_keys(api_key_file, os.environ),
        data=Dataset.load(data) if data else None,
        started=started,
    )
