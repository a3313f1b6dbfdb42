"""`resid download`: fetch the public files of a category of the Amazon reviews."""

import shlex
from pathlib import Path

from rich.markup import escape

from resid.cli.app import app, errors, output
from resid.data.amazon import find_release
from resid.data.download import download as fetch
from resid.core.progress import ConsoleProgress


@app.command
def download(
    release: str,
    name: str,
    *,
    raw: Path = Path("downloads"),
    five_core: bool = False,
    mirror: str | None = None,
) -> None:
    """Fetch the public files of a category of the Amazon reviews; a second call continues the first.

    Parameters
    ----------
    release
        amazon-2023, amazon-2018 or amazon-2014.
    name
        The category as the files call it, for example Musical_Instruments.
    raw
        The folder to put them in.
    five_core
        Fetch the published 5-core interactions instead of the raw reviews; they are far smaller.
    mirror
        Another address under which the same files lie.
    """
    for address in find_release(release).addresses(name, five_core, mirror):
        path = fetch(address, raw, progress=ConsoleProgress(errors))
        output.print(f"{escape(str(path))} ({path.stat().st_size:,} bytes)", highlight=False, soft_wrap=True)
    output.print(
        f"Next: resid prepare {release} {name} --raw {escape(shlex.quote(str(raw)))} --out data/{name}",
        highlight=False,
        soft_wrap=True,
    )
