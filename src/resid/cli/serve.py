"""`resid serve`: models over HTTP, with a page to try them."""

import os
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import Parameter

from resid import InputError
from resid.cli.app import errors
from resid.serve.settings import ServeSettings

_DEFAULTS = ServeSettings()


def serve(
    model: Path,
    other: Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    data: Path | None = None,
    settings: Annotated[ServeSettings, Parameter(name="*")] = _DEFAULTS,
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
    settings
        Limits of requests, and how they are batched.
    """
    run_service([folder for folder in (model, other) if folder], host, port, api_key_file, data, settings)


def run_service(
    folders: list[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    data: Path | None = None,
    settings: ServeSettings | None = None,
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

    def started(address: str) -> None:
        errors.print(f"Serving on {address}; stop with Ctrl-C.", highlight=False, markup=False, soft_wrap=True)

    serve(
        folders,
        host=host,
        port=port,
        settings=settings,
        keys=read_keys(api_key_file, os.environ),
        data=Dataset.load(data) if data else None,
        started=started,
    )
