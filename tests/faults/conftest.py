"""Prints what the campaigns did."""

from collections import Counter

import pytest

from tests.faults.counts import COUNTS


@pytest.fixture(autouse=True)
def counted(request):
    """Attach to a test what it counted; the properties of a test also come back from processes of pytest-xdist."""
    COUNTS.clear()
    yield
    request.node.user_properties.extend((f"fault: {name}", number) for name, number in COUNTS.items())


def pytest_terminal_summary(terminalreporter):
    total: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", []):
        if report.when == "teardown":
            total.update({name: number for name, number in report.user_properties if name.startswith("fault: ")})
    if total:
        terminalreporter.section("faults")
        for name, number in sorted(total.items()):
            terminalreporter.write_line(f"{number:>8,}  {name.removeprefix('fault: ')}")
