"""`resid download`: download the public files of a category of the Amazon reviews."""

import shlex
from pathlib import Path

from rich.markup import escape

from resid.cli.app import errors, output
from resid.core.errors import counted


def download(
    release: str,
    name: str,
    *,
    raw: Path = Path("downloads"),
    five_core: bool = False,
    mirror: str | None = None,
) -> None:
    """Download the public files of a category of the Amazon reviews; interrupted downloads are resumed.

    Example: ``resid download amazon-2023 Musical_Instruments --raw downloads``

    Parameters
    ----------
    release
        amazon-2023, amazon-2018 or amazon-2014.
    name
        The category as in the file names, for example Musical_Instruments.
    raw
        The target folder.
    five_core
        Download the published 5-core interactions instead of the raw reviews; they are much smaller.
    mirror
        URL of a mirror with the same files.
    """
    from resid import ConsoleProgress  # here, as these imports take a while
    from resid.data.amazon import find_release
    from resid.data.download import download as fetch

    for address in find_release(release).addresses(name, five_core, mirror):
        path = fetch(address, raw, progress=ConsoleProgress(errors))
        output.print(f"{escape(str(path))} ({counted(path.stat().st_size, 'byte')})", highlight=False, soft_wrap=True)
    output.print(
        f"Next: resid prepare {release} {name} --raw {escape(shlex.quote(str(raw)))} --out data/{name}",
        highlight=False,
        soft_wrap=True,
    )
