"""Writes a Spark frame as a lake table: executors write the files of its days, the driver puts them in force at once.

The rows never come to the driver. Which row lies in which file is a function of the rows and the settings, never of how
the work was scheduled, so the same rows give the same bytes on one thread and on a cluster.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from contracts.errors import BadInput
from contracts.lake import Lake, TableManifest
from contracts.settings import Settings
from contracts.tables import TableSpec

_DRAWN = 100_000
"""Rows, about, of which the cuts between files are read off."""
_NUMBER = "_file"
_WRITTEN = pa.schema([("number", pa.int32()), ("file", pa.string()), ("rows", pa.int64()), ("hash", pa.string()),
                      ("refused", pa.string())])  # fmt: skip


class WritingSettings(Settings):
    """How large files become."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    file_mb: float = Field(
        128.0, alias="FEEDLOOP_FILE_MB", gt=0,
        description="FEEDLOOP_FILE_MB: size in memory up to which a day of a table is one file; a task holds some three times that",
    )  # fmt: skip

    def rows_per_file(self, spec: TableSpec) -> int:
        """About how many rows of the table that is; a list counts as ten numbers."""
        width = sum(80 if pa.types.is_list(field.type) else 8 for field in spec.schema)
        return max(1, int(self.file_mb * 2**20) // width)


def write_frame(lake: Lake, spec: TableSpec, rows: DataFrame, number: Column, parents: dict[str, str],
                finish: Callable[[pa.Table], pa.Table] | None = None) -> TableManifest:  # fmt: skip
    """Replaces the table by `rows`. `number` says which file a row lies in: one UTC day, and in the table's order.

    `finish` makes the table's rows of those of one file, in the executor. `BadInput` when the disk refuses; then, as when
    the driver is killed, the old table stays in force.
    """
    lake.sweep(spec)
    ordered = rows.withColumn(_NUMBER, number).repartition(_NUMBER).sortWithinPartitions(_NUMBER)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file, table in _tables(batches):
            table = finish(table) if finish else table
            if table.num_rows:
                yield pa.RecordBatch.from_pylist([_write(lake, spec, file, table)], schema=_WRITTEN)

    try:
        written = ordered.mapInArrow(write, "number int, file string, rows long, hash string, refused string").collect()
        for refused in [one["refused"] for one in written if one["refused"]]:
            raise BadInput(refused)
        files = [{key: one[key] for key in ("file", "rows", "hash")} for one in sorted(written)]
        return lake.put_in_force(spec, files, parents)
    except BaseException:
        with contextlib.suppress(OSError):
            lake.sweep(spec)
        raise


def cuts(keys: DataFrame, by: str, most: int, rows_per_file: int) -> list[int]:
    """Values of column `by` that part the distinct rows of `keys` into files of about `rows_per_file`; none for one file.

    `most`: no fewer than those rows are. The cuts are read off the rows that a hash picks, so they hang on the rows alone.
    """
    if most <= rows_per_file:
        return []
    share = max(1, most // _DRAWN)
    drawn = keys.where(F.pmod(F.xxhash64(*keys.columns), F.lit(share)) == 0).distinct()
    value_N = np.sort(drawn.select(by).toArrow()[by].to_numpy())
    files = -(-len(value_N) * share // rows_per_file)
    return np.unique(value_N[np.arange(1, files) * len(value_N) // files]).tolist()


def numbered(value: Column, bounds: Sequence[int], first: int = 0) -> Column:
    """`first` plus how many of the ascending `bounds` are not above `value`."""
    if not bounds:
        return F.lit(first)
    middle = len(bounds) // 2
    below, above = numbered(value, bounds[:middle], first), numbered(value, bounds[middle + 1 :], first + middle + 1)
    return F.when(value < bounds[middle], below).otherwise(above)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each file, from batches in the files' order."""
    held: list[pa.Table] = []
    number = -1
    for batch in batches:
        number_N = batch.column(_NUMBER).to_numpy()
        rows = pa.Table.from_batches([batch]).drop_columns([_NUMBER])
        changed_N = np.r_[True, number_N[1:] != number_N[:-1]][: len(number_N)]
        starts = np.flatnonzero(changed_N)
        for start, end in zip(starts, [*starts[1:], len(number_N)]):
            if held and number_N[start] != number:
                yield number, pa.concat_tables(held)
                held = []
            number = int(number_N[start])
            held.append(rows.slice(start, end - start))
    if held:
        yield number, pa.concat_tables(held)


def _write(lake: Lake, spec: TableSpec, number: int, table: pa.Table) -> dict:
    # What the disk refuses comes back as a sentence: an error would reach the driver as a stack trace, after retries.
    try:
        return {"number": number, **lake.write_file(spec, table)}
    except BadInput as error:
        return {"number": number, "refused": str(error)}
