"""The report of runs: one self-contained HTML page, and what it shares with the commands that print."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.report.content import report_content
    from resid.report.page import render_page, write_report

__all__ = ["render_page", "report_content", "write_report"]

__getattr__, __dir__ = lazy_names(__name__, {"content": "report_content", "page": "render_page write_report"})
