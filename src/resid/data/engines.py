"""The two engines that work on tables: Polars in this process, Spark when the log outgrows a machine.

Everything that both can do alike is written once, in Narwhals, in `tables` and `prepare`. What is here is the
rest: how rows are numbered, materialised, brought to the driver and taken back, and how histories leave.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import narwhals as nw
import numpy as np
import polars as pl

from resid.core.files import temporary_folder
from resid.core.errors import InputError, explain_full_disk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql import SparkSession

Frame = nw.LazyFrame[Any]  # over Polars or Spark

ROW = "__row__"  # the column that keeps the order of the file
ISO_DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"


def as_frame(native: Any) -> Frame:
    """Wrap a lazy frame of Polars or Spark."""
    frame: Frame = nw.from_native(native)
    return frame


class Engine(Protocol):
    """What preparation needs of an engine beyond Narwhals."""

    name: str

    def number_rows(self, frame: Frame) -> Frame:
        """Add the column `ROW`: it sorts in file order."""

    def compact(self, frame: Frame) -> Frame:
        """Give the columns `user` and `item` the form that the engine groups and joins fastest."""

    def parse_dates(self, frame: Frame, column: str) -> Frame:
        """Turn ISO 8601 text into dates with times, null where it is neither a date nor a date with a time."""

    def materialize(self, frame: Frame) -> Frame:
        """Compute the frame now, so that what follows does not compute it again."""

    def collect(self, frame: Frame) -> pl.DataFrame:
        """Bring a small frame to the driver."""

    def upload(self, frame: pl.DataFrame) -> Frame:
        """Take a small frame from the driver to where the log is, compacted like the log."""

    def encode(self, frame: Frame, column: str, ids: pl.Series) -> Frame:
        """Replace the ids of a column, all of which are in `ids`, by their positions there, as int32."""

    def point_at(self, rows: pl.DataFrame, word: str) -> str:
        """Say where the offending `rows` of a table stand: their numbers if they have any, else their values."""

    def histories(self, log: Frame, interactions: int) -> Iterator[pl.DataFrame]:
        """Yield the columns `user` and `item` of the encoded log, of that many rows, by user, timestamp and `ROW`."""


def join_positions(engine: Engine, frame: Frame, column: str, ids: pl.Series) -> Frame:
    """Do what `Engine.encode` says with a join, which every engine can."""
    positions = pl.DataFrame({column: ids, "position": np.arange(len(ids), dtype=np.int32)})
    return frame.join(engine.upload(positions), on=column).drop(column).rename({"position": column})


class PolarsEngine:
    """Works in this process, on all its cores."""

    name = "polars"

    def number_rows(self, frame: Frame) -> Frame:
        """Count the rows from 1, unless the reader has already given them their line numbers."""
        if ROW in frame.collect_schema():
            return frame
        return as_frame(frame.to_native().with_row_index(ROW, offset=1))

    def compact(self, frame: Frame) -> Frame:
        """Turn text ids into categories: 4 bytes each, and grouped about five times faster than text."""
        schema = frame.collect_schema()
        text = [column for column in ("user", "item") if schema.get(column) == nw.String]
        return frame.with_columns(nw.col(*text).cast(nw.Categorical)) if text else frame

    def parse_dates(self, frame: Frame, column: str) -> Frame:
        """Complete the text to the one format that Polars then parses."""
        text = pl.col(column).str.replace(" ", "T", literal=True)
        whole = text + pl.when(text.str.contains("T")).then(pl.lit("")).otherwise(pl.lit("T00:00:00"))
        whole = whole.str.replace(r"(T\d\d:\d\d)($|[Z+-])", "${1}:00${2}")
        zoned = whole + pl.when(whole.str.contains(r"(Z|[+-]\d\d:?\d\d)$")).then(pl.lit("")).otherwise(pl.lit("Z"))
        parsed = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", time_unit="us", time_zone="UTC", strict=False)
        dates = pl.when(pl.col(column).str.contains(ISO_DATE)).then(parsed)
        return as_frame(frame.to_native().with_columns(dates.alias(column)))

    def materialize(self, frame: Frame) -> Frame:
        """Collect into memory."""
        return as_frame(frame.to_native().collect().lazy())

    def collect(self, frame: Frame) -> pl.DataFrame:
        """Collect; categories come back as text."""
        collected: pl.DataFrame = frame.to_native().with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
        return collected

    def upload(self, frame: pl.DataFrame) -> Frame:
        """Compact the frame; it is already here."""
        return self.compact(as_frame(frame.lazy()))

    def encode(self, frame: Frame, column: str, ids: pl.Series) -> Frame:
        """Look the positions of categories up by their physical codes, in an array instead of a join."""
        if frame.collect_schema()[column] != nw.Categorical:
            return join_positions(self, frame, column, ids)
        codes = ids.cast(pl.Categorical).to_physical().to_numpy()
        positions = np.zeros(codes.max() + 1, dtype=np.int32)
        positions[codes] = np.arange(len(ids))
        looked_up = pl.lit(pl.Series(positions)).gather(pl.col(column).to_physical())
        return as_frame(frame.to_native().with_columns(looked_up.alias(column)))

    def point_at(self, rows: pl.DataFrame, word: str) -> str:
        """Name the first rows by number."""
        numbers = ", ".join(f"{row:,}" for row in rows[ROW].to_list())
        return f"{word}{'s' if len(rows) > 1 else ''} {numbers}"

    def histories(self, log: Frame, interactions: int) -> Iterator[pl.DataFrame]:
        """Sort and yield the whole log.

        A stable sort by one key after the other takes half the time of one by all three; eagerly, for the lazy
        optimizer makes one of them.
        """
        frame: pl.DataFrame = log.to_native().collect().sort(ROW)
        yield frame.sort("timestamp", maintain_order=True).select("user", "item").sort("user", maintain_order=True)


class SparkEngine:
    """Works where the Spark session works; the driver sees vocabularies and encoded histories only.

    Parameters
    ----------
    session
        The session that owns the frames.
    scratch
        A folder that the workers can write and the driver can read; the histories pass through it. Without it,
        the driver's folder for temporary files is taken, which is right for a local session alone.
    """

    name = "spark"

    _INTERACTIONS_PER_PART = 5_000_000

    def __init__(self, session: "SparkSession", scratch: Path | None = None) -> None:
        self.session = session
        self.scratch = (scratch or Path(tempfile.gettempdir())).resolve()

    def number_rows(self, frame: Frame) -> Frame:
        """Order the rows by file and place in it, so that the order is that of one reader on one machine."""
        from pyspark.sql import functions as f

        name = f.url_decode(f.replace(f.input_file_name(), f.lit("+"), f.lit("%2B")))  # Spark escapes all but the plus
        place = f.struct(name.alias("file"), f.monotonically_increasing_id().alias("place"))
        return as_frame(frame.to_native().withColumn(ROW, place))

    def compact(self, frame: Frame) -> Frame:
        """Leave the ids as they are: a vocabulary of the raw log has no place on the driver."""
        return frame

    def parse_dates(self, frame: Frame, column: str) -> Frame:
        """Complete the text, so that the session's time zone does not count, and let Spark cast it."""
        from pyspark.sql import functions as f

        native: SparkFrame = frame.to_native()
        text = native[column]
        whole = f.when(text.rlike(r"\d[T ]\d"), text).otherwise(f.concat(text, f.lit("T00:00:00")))
        whole = f.regexp_replace(whole, r"([T ]\d\d:\d\d)($|[Z+-])", "$1:00$2")
        zoned = f.when(whole.rlike(r"(Z|[T ].*[+-]\d\d:?\d\d)$"), whole).otherwise(f.concat(whole, f.lit("Z")))
        dates = f.when(text.rlike(ISO_DATE), zoned.try_cast("timestamp"))
        return as_frame(native.withColumn(column, dates))

    def materialize(self, frame: Frame) -> Frame:
        """Checkpoint on the workers, which also cuts the plan that grows with every round of the k-core."""
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
        """Join the positions."""
        return join_positions(self, frame, column, ids)

    def point_at(self, rows: pl.DataFrame, word: str) -> str:
        """Show the first rows themselves, for rows of a Spark frame have no number."""
        columns = [column for column in rows.columns if column != ROW]
        return f"{word}{'s' if len(rows) > 1 else ''} like " + ", ".join(map(str, rows.select(columns).to_dicts()))

    def histories(self, log: Frame, interactions: int) -> Iterator[pl.DataFrame]:
        """Write the encoded log in parts that are ranges of users, then read the parts in their order."""
        parts = 1 + interactions // self._INTERACTIONS_PER_PART
        with explain_full_disk(self.scratch), temporary_folder(self.scratch, "resid-histories") as folder:
            ordered = log.to_native().repartitionByRange(parts, "user").sortWithinPartitions("user", "timestamp", ROW)
            ordered.select("user", "item").write.parquet((folder / "parts").as_uri())
            files = sorted(folder.glob("parts/part-*.parquet"))
            if not files:
                raise InputError(
                    f"{self.scratch}: the Spark workers' histories are not here; give a folder that the workers and "
                    "the driver share as the scratch folder."
                )
            for file in files:
                yield pl.read_parquet(file)
