"""The campaigns know every command."""

from resid.cli.app import _COMMANDS, app
from tests.faults.commands import COMMANDS, ELSEWHERE, SEVERAL, WRITE_NOTHING


def test_every_command_is_in_the_campaigns():
    """A new command is stopped and left without space, or it is said to write nothing."""
    ways = [f"items {name}" for name in app["items"] if not name.startswith("-")]
    known = {*(name for name in _COMMANDS if name != "items"), *ways}
    campaigns = {name.removesuffix(" to CSV") for name in COMMANDS}
    assert campaigns | WRITE_NOTHING | ELSEWHERE == known
    assert len(campaigns) + len(WRITE_NOTHING) + len(ELSEWHERE) == len(known)
    assert campaigns >= SEVERAL
    for name, pair in COMMANDS.items():
        assert all(command.startswith(name.removesuffix(" to CSV")) for command in pair)
