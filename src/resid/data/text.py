"""Text files as streams of UTF-8 bytes: decompressed and decoded, with one sentence for whatever is wrong with them.

CSV, TSV and JSON lines are all read through `open_text`.
"""

import codecs
import contextlib
import io
from collections.abc import Iterator
from gzip import BadGzipFile
from pathlib import Path
from typing import BinaryIO

from isal import igzip
from isal.igzip_lib import IsalError

from resid.core.errors import InputError, first_line, shown

UTF8 = "utf-8"
_HEAD = 1024  # bytes that are inspected for the encoding
_MARKS = (  # byte-order marks; that of UTF-32 starts with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def checked_encoding(encoding: str | None) -> str:
    """Return the normalized name of an encoding, UTF-8 for None."""
    try:
        " ".encode(encoding or UTF8)  # unlike a lookup, fails for codecs that are not of text
        name = codecs.lookup(encoding or UTF8).name
    except (LookupError, ValueError, TypeError) as error:
        raise InputError(
            f"encoding: {shown(encoding)} is not a text encoding; use a name such as 'utf-16', 'latin-1' or 'cp1252'."
        ) from error
    return UTF8 if name in ("utf-8", "utf-8-sig", "ascii") else name


def is_plain(path: Path, encoding: str) -> bool:
    """Return whether a file is UTF-8 as it is, neither compressed nor in another encoding."""
    return path.suffix.lower() != ".gz" and encoding == UTF8


@contextlib.contextmanager
def open_text(path: Path, encoding: str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yield the content of a text file as a stream of UTF-8 bytes, and the file itself, whose position shows progress.

    Parameters
    ----------
    path
        The file; `.gz` files are decompressed. A byte-order mark is skipped.
    encoding
        A name that `checked_encoding` returned. A file that cannot be in this encoding may be UTF-8, as one option applies to
        all files.

    Raises
    ------
    InputError
        If the file cannot be opened or decompressed, or is in another encoding. Single bytes that are not UTF-8 are left
        to the parser, which knows the row.
    """
    try:
        with path.open("rb") as raw:
            stream: BinaryIO = raw
            if path.suffix.lower() == ".gz":
                if raw.peek(2)[:2] not in (b"\x1f\x8b", b""):
                    raise InputError(f"{path}: not a gzip file; rename it, or download it again.")
                stream = igzip.open(raw, "rb")
            if encoding != UTF8:
                stream = io.BufferedReader(io.BytesIO(_as_utf8(stream.read(), encoding)))
            head: bytes = stream.peek(_HEAD)[:_HEAD]  # type: ignore[attr-defined]
            _refuse_other_encoding(path, head)
            if head.startswith(codecs.BOM_UTF8):
                stream.read(len(codecs.BOM_UTF8))
            yield stream, raw
    except UnicodeError as error:
        raise InputError(f"{path}: the file is not valid {encoding}; pass another encoding (--encoding).") from error
    except (BadGzipFile, EOFError, IsalError) as error:
        raise InputError(
            f"{path}: the gzip file is truncated or damaged ({first_line(error)}); download or write it again."
        ) from error
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read ({error.strerror or first_line(error)}).") from error


def _as_utf8(content: bytes, encoding: str) -> bytes:
    """Return text in an encoding as UTF-8, also if it was UTF-8 already; raise a `UnicodeError` if it is neither."""
    wide = encoding.startswith(("utf-16", "utf-32"))
    if (
        not wide or 0 in content
    ):  # in UTF-16, line ends and separators have a NUL byte; UTF-8 may be decodable by chance
        with contextlib.suppress(UnicodeError):
            return content.decode(encoding).encode()
    content.decode(UTF8)
    return content


def not_utf8(path: Path, row: str) -> InputError:
    """Return the error for a row with bytes that are not UTF-8."""
    return InputError(
        f"{path}, {row}: not valid UTF-8; pass the encoding of the file with encoding (--encoding), for example "
        "--encoding latin-1, or save the file as UTF-8."
    )


def _refuse_other_encoding(path: Path, head: bytes) -> None:
    """Raise an `InputError` if a file starts like UTF-16 or UTF-32, whose text would be read with NUL characters."""
    found = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if found is None and head.count(0) * 4 > len(head):  # Latin text in UTF-16 has a NUL byte per character
        found = "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
    if found:
        raise InputError(
            f"{path}: the encoding seems to be {found.upper()}, not UTF-8; pass encoding='{found}' (--encoding {found})."
        )
