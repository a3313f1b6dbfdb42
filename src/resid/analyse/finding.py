"""What every analysis returns: a figure, the numbers behind it, and the main number in a sentence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from resid.analyse.figure import FORMATS, Figure, write_figure
from resid.core.files import write_text
from resid.core.tables import write_table


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of an analysis.

    Attributes
    ----------
    name : str
        Of the analysis, and of its files.
    table : DataFrame
        The numbers behind the figure.
    figure : Figure
        Of matplotlib.
    sentence : str
        The main number, in words.
    record : dict or None
        What other programs read, written as JSON.
    """

    name: str
    table: pl.DataFrame
    figure: Figure
    sentence: str
    record: Mapping[str, Any] | None = None

    def save(self, folder: str | Path) -> list[Path]:
        """Write the figure (PNG and SVG), the table (CSV) and the record to a folder; return the files."""
        files = [Path(folder) / f"{self.name}.{ending}" for ending in ("csv", *FORMATS)]
        write_table(files[0], self.table)
        for file in files[1:]:
            write_figure(file, self.figure)
        if self.record is not None:
            files.append(Path(folder) / f"{self.name}.json")
            write_text(files[-1], json.dumps(self.record, indent=1) + "\n")
        return files
