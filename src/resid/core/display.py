"""How objects look in a console and in a notebook: one line, and HTML tables."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from resid.core.errors import counted


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

    def __repr__(self) -> str:
        catalogue = getattr(self, "catalogue_", None)
        if catalogue is None:
            return f"{type(self).__name__}(not fitted)"
        epochs, best = len(getattr(self, "history_", ())), getattr(self, "best_epoch_", 0)
        trained = f", best epoch {best} of {epochs}" if best else ""
        return f"{type(self).__name__}({counted(len(catalogue), 'item')}{trained})"

    def _repr_html_(self) -> str:
        settings = getattr(self, "settings").to_dict()  # noqa: B009 - declared by the classes that inherit this
        return html_table(repr(self), ("setting", "value"), settings.items())
