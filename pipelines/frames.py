"""Lake tables as Spark frames, by the lake's manifest and with the contract's schema."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from contracts.lake import Lake
from contracts.tables import TableSpec

_PLACES = 1 << 20


def frame(
    spark: SparkSession,
    lake: Lake,
    spec: TableSpec,
    columns: Sequence[str] | None = None,
    start: int | None = None,
    end: int | None = None,
) -> DataFrame:
    """Rows of the days that overlap [start, end) (UTC microseconds); whole days, so filter where the edge matters.

    `BadInput` when the table was never written.
    """
    schema = from_arrow_schema(spec.schema)
    files = lake.files(spec, start, end)
    rows = spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
    return rows.select(*(columns if columns is not None else spec.schema.names))


def drawn(share: float, columns: Sequence[str], seed: int) -> Column:
    """Whether a row is among about `share` of all, by a hash of `columns`: equal ones are drawn together, in any order."""
    return F.pmod(F.xxhash64(*columns, F.lit(seed)), F.lit(_PLACES)) < int(_PLACES * share)


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """`rows`, computed once and held while the block runs."""
    held = rows.persist()
    try:
        yield held
    finally:
        held.unpersist()
