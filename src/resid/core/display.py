"""How objects look in a console and in a notebook: one line, and HTML tables."""

from collections.abc import Iterable, Sequence, Sized
from html import escape
from typing import Any

from resid.core.errors import counted
from resid.core.settings import Settings


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table under a title; numbers are aligned to the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [f"<p>{escape(title)}</p>", f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows:
        lines.append("<tr>" + "".join(_cell(value) for value in row) + "</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _cell(value: Any) -> str:
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return f'<td style="text-align: left">{escape(str(value))}</td>'
    return f'<td style="text-align: right">{f"{value:,}" if isinstance(value, int) else f"{value:.4f}"}</td>'


class ShownModel:
    """Mixin of encoders and recommenders: the number of items and the best epoch in one line, and the settings as HTML."""

    settings: Settings
    catalogue_: Sized  # set when it is fitted
    history_: Sequence[dict[str, Any]]
    best_epoch_: int

    def __repr__(self) -> str:
        if not hasattr(self, "catalogue_"):
            return f"{type(self).__name__}(not fitted)"
        trained = f", best epoch {self.best_epoch_} of {len(self.history_)}" if self.best_epoch_ else ""
        return f"{type(self).__name__}({counted(len(self.catalogue_), 'item')}{trained})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), ("setting", "value"), self.settings.to_dict().items())
