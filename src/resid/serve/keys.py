"""API keys: reading them from a file or the environment, and comparing them in constant time."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from resid.core.errors import InputError, first_line

API_KEY, ADMIN_KEY = "RESID_API_KEY", "RESID_ADMIN_KEY"  # environment variables
_SHORTEST = 16


@dataclass(frozen=True)
class Key:
    """A key that the header ``X-API-Key`` may have.

    Attributes
    ----------
    value : str
    admin : bool
        Whether it may also reload models.
    """

    value: str = field(repr=False)
    admin: bool = False


def read_keys(file: Path | None, environment: Mapping[str, str]) -> tuple[Key, ...]:
    """Return the keys of a file and of the environment variables ``RESID_API_KEY`` and ``RESID_ADMIN_KEY``.

    Every line of the file is a key; the word ``admin`` after it, separated by a space, makes it an admin's. Empty lines and
    lines that begin with ``#`` are skipped.
    """
    keys = [Key(environment[name], name == ADMIN_KEY) for name in (API_KEY, ADMIN_KEY) if environment.get(name)]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: the API keys cannot be read ({first_line(error)}).") from error
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 2 or words[1:] not in ([], ["admin"]):
                raise InputError(f"{file}: line {number} must be a key, or a key and the word admin.")
            keys.append(Key(words[0], len(words) == 2))
        if not keys:
            raise InputError(f"{file}: there is no API key in this file; write one per line.")
    if any(len(key.value) < _SHORTEST or not key.value.isascii() for key in keys):
        raise InputError(
            f"API keys must have at least {_SHORTEST} ASCII characters; make one with 'openssl rand -hex 32'."
        )
    return tuple(keys)


def find_key(keys: Sequence[Key], given: bytes) -> Key | None:
    """Return the key that was given; the time that it takes does not depend on where keys differ."""
    same = [hmac.compare_digest(key.value.encode(), given) for key in keys]  # all, so that the order does not show
    return next((key for key, equal in zip(keys, same, strict=True) if equal), None)
