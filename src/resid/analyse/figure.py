"""The look of all figures, and how they are written. No window and no global state: figures are drawn without pyplot."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from resid.core.errors import InputError
from resid.core.files import atomic_file

try:
    import matplotlib
    from cycler import cycler
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise InputError("figures need matplotlib; install it with: pip install 'resid[plots]'") from error

# Of Okabe and Ito, who chose them for readers who do not tell red from green; then three more.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#7F3C8D", "#A5AA99", "#000000")
GREY = "#D0D0D0"
SEQUENTIAL = "viridis"

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "font.size": 9,
    "grid.color": "#E5E5E5",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "savefig.dpi": 130,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "resid",  # the same figure is the same file
}
FORMATS = ("png", "svg")

__all__ = [
    "COLORS",
    "FORMATS",
    "GREY",
    "SEQUENTIAL",
    "Figure",
    "new_figure",
    "new_mosaic",
    "styled",
    "without_axes",
    "write_figure",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function that draws or writes a figure, so that it has the style of all figures."""

    @wraps(draw)
    def within(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return within


def new_figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.4)) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row; `size` is the width and height of a panel in inches."""
    figure = Figure(figsize=(columns * size[0], rows * size[1]))
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def new_mosaic(layout: list[Any], size: tuple[float, float], widths: Sequence[float]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and its panels by name; `layout` has rows with the name of the panel at every place, `widths` are relative."""
    figure = Figure(figsize=(sum(widths) * size[0], len(layout) * size[1]))
    FigureCanvasAgg(figure)
    return figure, figure.subplot_mosaic(layout, width_ratios=widths)


def without_axes(axes: Axes) -> None:
    """Remove the ticks and the grid of a map, whose coordinates mean nothing."""
    axes.grid(False)
    axes.set(xticks=[], yticks=[])


@styled
def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure atomically as PNG or SVG, by the ending of the file's name."""
    kind = path.suffix.removeprefix(".")
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with atomic_file(path) as partial:
        figure.savefig(partial, format=kind, metadata=metadata)
