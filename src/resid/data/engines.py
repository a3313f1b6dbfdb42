"""Table engines: Polars in this process, or Spark for logs that exceed one machine.

`tables` and `prepare` are written once in Narwhals. This module contains the operations that differ between the engines:
numbering rows, materializing, collecting and uploading frames, and reading out the histories.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import narwhals as nw
import numpy as np
import polars as pl

from resid.core.errors import InputError, explain_disk_errors
from resid.core.files import temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql import SparkSession

Frame = nw.LazyFrame[Any]  # over Polars or Spark

ROW = "__row__"  # column with the row numbers, which preserves the order of the file
ISO_DATE = r"^\d{4}-\d\d?-\d\d?([T ]\d\d?:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"
# The directives of `strptime` in Spark's notation.
_SPARK_DIRECTIVES = {
    **{"%Y": "y", "%y": "yy", "%m": "M", "%d": "d", "%b": "MMM", "%B": "MMMM", "%a": "EEE", "%A": "EEEE", "%j": "D"},
    **{"%H": "H", "%I": "h", "%M": "m", "%S": "s", "%f": "SSSSSS", "%p": "a", "%z": "[XXX][XX][X]", "%%": "%"},
}


def as_frame(native: Any) -> Frame:
    """Wrap a Polars or Spark lazy frame."""
    frame: Frame = nw.from_native(native)
    return frame


class Engine(Protocol):
    """Operations that the preprocessing needs beyond Narwhals."""

    name: str

    def number_rows(self, frame: Frame) -> Frame:
        """Add the column `ROW`, which sorts in file order."""

    def compact(self, frame: Frame) -> Frame:
        """Convert the columns `user` and `item` to the type that the engine groups and joins fastest."""

    def parse_dates(self, frame: Frame, column: str, format_: str | None = None) -> Frame:
        """Parse dates, with or without a time; anything else becomes null.

        The format is that of `strptime`, ISO 8601 by default; without a time zone, dates are in UTC.
        """

    def materialize(self, frame: Frame) -> Frame:
        """Compute the frame now, so that later operations do not recompute it."""

    def collect(self, frame: Frame) -> pl.DataFrame:
        """Collect a small frame on the driver."""

    def upload(self, frame: pl.DataFrame) -> Frame:
        """Send a small frame from the driver to the engine, compacted like the log."""

    def encode(self, frame: Frame, column: str, ids: pl.Series) -> Frame:
        """Replace the ids of a column by their int32 positions in `ids`, which contains all of them."""

    def point_at(self, rows: pl.DataFrame, word: str) -> str:
        """Describe rows in an error message: by their numbers if they have any, otherwise by their values."""

    def histories(self, log: Frame, interactions: int) -> Iterator[pl.DataFrame]:
        """Yield the columns `user`, `item` and `timestamp` of the encoded log, sorted by user, timestamp and `ROW`.

        All rows of a user are in the same part.
        """


def join_positions(engine: Engine, frame: Frame, column: str, ids: pl.Series) -> Frame:
    """Implement `Engine.encode` with a join."""
    positions = pl.DataFrame({column: ids, "position": np.arange(len(ids), dtype=np.int32)})
    return frame.join(engine.upload(positions), on=column).drop(column).rename({"position": column})


class PolarsEngine:
    """Runs in this process on all cores."""

    name = "polars"

    def number_rows(self, frame: Frame) -> Frame:
        """Add row numbers from 1, unless the reader has already numbered the lines."""
        if ROW in frame.collect_schema():
            return frame
        return as_frame(frame.to_native().with_row_index(ROW, offset=1))

    def compact(self, frame: Frame) -> Frame:
        """Convert text ids to categoricals: 4 bytes each, and about five times faster to group than text."""
        schema = frame.collect_schema()
        text = [column for column in ("user", "item") if schema.get(column) == nw.String]
        return frame.with_columns(nw.col(*text).cast(nw.Categorical)) if text else frame

    def parse_dates(self, frame: Frame, column: str, format_: str | None = None) -> Frame:
        """Normalize the text to one format and parse it with Polars."""
        if format_ is not None:
            polars_format = format_.replace(".%f", "%.f")  # Polars' %f counts nanoseconds
            if "%f" in polars_format:
                raise InputError(f"timestamp_format '{format_}': %f must follow a dot, as in '%H:%M:%S.%f'.")
            given = pl.col(column).str.to_datetime(polars_format, time_unit="us", strict=False)
            return as_frame(frame.to_native().with_columns(given.alias(column)))
        text = pl.col(column).str.replace(" ", "T", literal=True)
        complete = text + pl.when(text.str.contains("T")).then(pl.lit("")).otherwise(pl.lit("T00:00:00"))
        complete = complete.str.replace(r"(T\d\d?:\d\d)($|[Z+-])", "${1}:00${2}")
        zoned = complete + pl.when(complete.str.contains(r"(Z|[+-]\d\d:?\d\d)$")).then(pl.lit("")).otherwise(
            pl.lit("Z")
        )
        parsed = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", time_unit="us", time_zone="UTC", strict=False)
        dates = pl.when(pl.col(column).str.contains(ISO_DATE)).then(parsed)
        return as_frame(frame.to_native().with_columns(dates.alias(column)))

    def materialize(self, frame: Frame) -> Frame:
        """Collect into memory."""
        return as_frame(frame.to_native().collect().lazy())

    def collect(self, frame: Frame) -> pl.DataFrame:
        """Collect the frame, with categoricals as text."""
        collected: pl.DataFrame = frame.to_native().with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
        return collected

    def upload(self, frame: pl.DataFrame) -> Frame:
        """Compact the frame, which is already in this process."""
        return self.compact(as_frame(frame.lazy()))

    def encode(self, frame: Frame, column: str, ids: pl.Series) -> Frame:
        """Look up categoricals by their physical codes in an array instead of a join."""
        if frame.collect_schema()[column] != nw.Categorical:
            return join_positions(self, frame, column, ids)
        codes = ids.cast(pl.Categorical).to_physical().to_numpy()
        positions = np.zeros(codes.max() + 1, dtype=np.int32)
        positions[codes] = np.arange(len(ids))
        looked_up = pl.lit(pl.Series(positions)).gather(pl.col(column).to_physical())
        return as_frame(frame.to_native().with_columns(looked_up.alias(column)))

    def point_at(self, rows: pl.DataFrame, word: str) -> str:
        """Name the rows by number."""
        numbers = ", ".join(f"{row:,}" for row in rows[ROW].to_list())
        return f"{word}{'s' if len(rows) > 1 else ''} {numbers}"

    def histories(self, log: Frame, interactions: int) -> Iterator[pl.DataFrame]:
        """Sort and yield the complete log.

        Stable sorts by one key after another take half the time of one sort by all three keys. They are eager because the
        lazy optimizer would merge them.
        """
        frame: pl.DataFrame = log.to_native().collect().sort(ROW).drop(ROW)
        yield frame.sort("timestamp", maintain_order=True).sort("user", maintain_order=True)


def _spark_format(format_: str) -> str:
    """Translate a format of `strptime`; other text is quoted."""
    parts = []
    for part in re.findall(r"%.|[^%]+|%$", format_, re.DOTALL):
        if part.startswith("%") and part not in _SPARK_DIRECTIVES:
            raise InputError(
                f"timestamp_format: '{part}' is not supported by Spark; use {', '.join(_SPARK_DIRECTIVES)}."
            )
        quoted = part.replace("'", "''")
        parts.append(_SPARK_DIRECTIVES.get(part, f"'{quoted}'"))
    return "".join(parts)


class SparkEngine:
    """Runs in a Spark session; the driver only receives vocabularies and encoded histories.

    Parameters
    ----------
    session
        The session that owns the frames.
    scratch
        A folder that the workers can write to and the driver can read from, for the encoded histories. By default the
        driver's folder for temporary files, which works for local sessions only.
    """

    name = "spark"

    _INTERACTIONS_PER_PART = 5_000_000

    def __init__(self, session: "SparkSession", scratch: Path | None = None) -> None:
        self.session = session
        self.scratch = (scratch or Path(tempfile.gettempdir())).resolve()

    def number_rows(self, frame: Frame) -> Frame:
        """Add the file and the position in the file, which sorts in the order of a single reader."""
        from pyspark.sql import functions as f

        name = f.url_decode(f.replace(f.input_file_name(), f.lit("+"), f.lit("%2B")))  # Spark does not escape '+'
        place = f.struct(name.alias("file"), f.monotonically_increasing_id().alias("place"))
        return as_frame(frame.to_native().withColumn(ROW, place))

    def compact(self, frame: Frame) -> Frame:
        """Return the frame unchanged: the vocabulary of the raw log may not fit on the driver."""
        return frame

    def parse_dates(self, frame: Frame, column: str, format_: str | None = None) -> Frame:
        """Add a time zone where there is none, so that the session's does not matter, and let Spark cast the text."""
        from pyspark.sql import functions as f

        native: SparkFrame = frame.to_native()
        text = native[column]
        if format_ is not None:
            zoned = text if "%z" in format_ else f.concat(text, f.lit(" Z"))
            pattern = _spark_format(format_ if "%z" in format_ else f"{format_} %z")
            return as_frame(native.withColumn(column, f.try_to_timestamp(zoned, f.lit(pattern))))
        complete = f.when(text.rlike(r"\d[T ]\d"), text).otherwise(f.concat(text, f.lit("T00:00:00")))
        complete = f.regexp_replace(complete, r"([T ]\d\d?:\d\d)($|[Z+-])", "$1:00$2")
        zoned = f.when(complete.rlike(r"(Z|[T ].*[+-]\d\d:?\d\d)$"), complete).otherwise(f.concat(complete, f.lit("Z")))
        dates = f.when(text.rlike(ISO_DATE), zoned.try_cast("timestamp"))
        return as_frame(native.withColumn(column, dates))

    def materialize(self, frame: Frame) -> Frame:
        """Checkpoint on the workers, which also truncates the plan that grows with every round of the k-core."""
        return as_frame(frame.to_native().localCheckpoint())

    def collect(self, frame: Frame) -> pl.DataFrame:
        """Collect through Arrow."""
        collected = pl.from_arrow(frame.to_native().toArrow())
        return collected if isinstance(collected, pl.DataFrame) else collected.to_frame()

    def upload(self, frame: pl.DataFrame) -> Frame:
        """Send through Arrow."""
        signed = frame.with_columns(pl.col(pl.UInt32).cast(pl.Int64))  # Spark has no unsigned integers
        return as_frame(self.session.createDataFrame(signed.to_arrow()))

    def encode(self, frame: Frame, column: str, ids: pl.Series) -> Frame:
        """Join the ids with their positions."""
        return join_positions(self, frame, column, ids)

    def point_at(self, rows: pl.DataFrame, word: str) -> str:
        """Show the values of the rows, because rows of a Spark frame have no numbers."""
        columns = [column for column in rows.columns if column != ROW]
        return f"{word}{'s' if len(rows) > 1 else ''} like " + ", ".join(map(str, rows.select(columns).to_dicts()))

    def histories(self, log: Frame, interactions: int) -> Iterator[pl.DataFrame]:
        """Write the encoded log in parts by ranges of users, then yield the parts in order."""
        parts = 1 + interactions // self._INTERACTIONS_PER_PART
        with explain_disk_errors(self.scratch), temporary_folder(self.scratch, "resid-histories") as folder:
            ordered = log.to_native().repartitionByRange(parts, "user").sortWithinPartitions("user", "timestamp", ROW)
            ordered.select("user", "item", "timestamp").write.parquet((folder / "parts").as_uri())
            files = sorted(folder.glob("parts/part-*.parquet"))
            if not files:
                raise InputError(
                    f"{self.scratch}: the histories written by the Spark workers are missing; pass a scratch folder that "
                    "the workers and the driver share."
                )
            for file in files:
                yield pl.read_parquet(file)
