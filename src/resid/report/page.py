"""The page of a report: the template with its style, its scripts and its content in one file that needs no network.

The content is data, never markup: it is embedded as JSON in which no ``<`` occurs, and the scripts write it to the page as text.
A Content-Security-Policy with the checksums of the style and of the script keeps anything else from running or loading.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from resid.core.errors import InputError
from resid.core.files import refuse_file, write_text
from resid.core.progress import Progress
from resid.report.content import report_content

_SCRIPTS = ("dom.js", "charts.js", "tree.js", "sections.js")  # one after another
# Characters that could end the element, and line separators that older parsers of scripts refuse.
_ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def render_page(content: Mapping[str, Any]) -> str:
    """Return the HTML of a report.

    Parameters
    ----------
    content
        What `report_content` returned.
    """
    style = _resource("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_resource, _SCRIPTS)) + "})();\n"
    parts = {
        "TITLE": escape(str(content["title"])),
        "STYLE_HASH": _checksum(style),
        "SCRIPT_HASH": _checksum(script),
        "STYLE": style,
        "SCRIPT": script,
        "CONTENT": json.dumps(content, ensure_ascii=False, allow_nan=False).translate(_ESCAPES),
    }
    pieces = _resource("template.html").split("%")  # text, name, text, …; what is filled in is not searched again
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def check_report_file(path: Path) -> None:
    """Raise an `InputError` unless a report can be written to this file; called before any work is done."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise InputError(f"{path}: name a file that ends with .html.")
    refuse_file(path.parent)


def write_report(
    folders: Sequence[str | Path],
    out: str | Path,
    data: str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a report about runs to one HTML file.

    Parameters
    ----------
    folders
        The folders of the runs, all on the same Dataset.
    out
        The file; its folder is created.
    data
        The Dataset's folder; by default the one that the runs record.
    progress
        Counts runs.

    Returns
    -------
    dict
        The content of the report, see `report_content`.
    """
    out = Path(out)
    check_report_file(out)
    content = report_content(folders, data, progress=progress)
    write_text(out, render_page(content))
    return content


def _resource(name: str) -> str:
    return (files("resid.report") / name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    """Return the checksum of an inline element, as a Content-Security-Policy has it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
