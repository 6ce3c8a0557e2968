"""Holds a lake against the declared expectations, names the days that break them, and keeps those days out."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.errors import BadInput
from contracts.files import canonical_json, write_atomically
from contracts.lake import Lake, files_of
from contracts.progress import say, stage
from contracts.settings import Settings
from contracts.tables import TABLES, TableSpec
from contracts.workspace import Workspace
from pipelines.expectations.declared import EXPECTATIONS, Reference
from pipelines.frames import frame
from pipelines.spark import machine_faults

EVENT_TABLES = ("requests", "impressions", "actions", "sessions")
"""Kept out together: impressions without the actions of their day would read as negatives."""


class ExpectationSettings(Settings):
    """When a day counts as broken."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    limit: float = Field(
        0.01, alias="FEEDLOOP_BROKEN_SHARE", ge=0, le=1,
        description="FEEDLOOP_BROKEN_SHARE: share of a day's rows that may break one expectation before the day is kept out",
    )  # fmt: skip


@dataclass(frozen=True)
class Breach:
    """Rows of one day of a table that break one expectation."""

    table: str
    day: str
    expectation: str
    rows: int
    of_rows: int

    def as_dict(self) -> dict:
        """For JSON."""
        return dict(self.__dict__)


def breaches_of(lake: Lake, spark: SparkSession) -> list[Breach]:
    """Every expectation that some row breaks, by table and day. Tables that were never written are passed over."""
    found: list[Breach] = []
    for spec in TABLES.values():
        if lake.exists(spec) and lake.manifest(spec).rows:
            found += _of_table(lake, spec, spark)
    return found


def keep_out_broken_days(
    workspace: Workspace, spark: SparkSession, settings: ExpectationSettings | None = None
) -> dict:
    """Moves each broken day of the lake's tables to `lake/quarantine/days/`, and reports all breaches and those days.

    A day is broken when more than the limit's share of its rows break one expectation. Of the event tables the whole day
    is kept out, of the others their own. The report is also written to `lake/quarantine/expectations.json`. `BadInput`, and
    nothing changed, when a table would have no day left.
    """
    with machine_faults(), stage("check expectations"):
        breaches = breaches_of(workspace.lake, spark)
    return keep_out(workspace, breaches, settings or ExpectationSettings())


def keep_out(workspace: Workspace, breaches: list[Breach], settings: ExpectationSettings) -> dict:
    """As `keep_out_broken_days`, for breaches that were found already."""
    lake = workspace.lake
    out = _days_out(lake, [one for one in breaches if one.rows > settings.limit * one.of_rows])
    for name, days in out.items():
        if not set(lake.manifest(TABLES[name]).days) - set(days):
            first = next(
                one for one in breaches if one.table == name or (name in EVENT_TABLES and one.table in EVENT_TABLES)
            )
            raise BadInput(
                f"every day of table {name} is broken: {first.table} of {first.day}: {first.expectation} does not hold for "
                f"{first.rows} of {first.of_rows} rows"
            )
    for name, days in out.items():
        _move_out(workspace, TABLES[name], days)
        say(f"  kept out of {name}: {', '.join(days)}")
    report = {"limit": settings.limit, "kept_out": _kept_out(lake), "breaches": [one.as_dict() for one in breaches]}
    write_atomically(lake.root / "quarantine" / "expectations.json", canonical_json(report))
    return report


def _aside(lake: Lake, table: str) -> list[Path]:
    """The files of a table's days that are kept out."""
    return sorted((lake.root / "quarantine" / "days" / table).glob("dt=*/*.parquet"))


def _kept_out(lake: Lake) -> dict[str, list[str]]:
    """Table -> its days that are kept out, now or since earlier."""
    days = {name: sorted({path.parent.name.removeprefix("dt=") for path in _aside(lake, name)}) for name in TABLES}
    return {name: some for name, some in days.items() if some}


def _of_table(lake: Lake, spec: TableSpec, spark: SparkSession) -> Iterable[Breach]:
    expected = EXPECTATIONS[spec.name]
    rows = frame(spark, lake, spec).withColumn("_day", F.date_format(F.timestamp_micros(spec.day_column), "yyyy-MM-dd"))
    broken: dict[str, Column] = {f"{rule.column} {rule.words}": F.expr(rule.broken) for rule in expected.rules}
    for number, reference in enumerate(expected.references):
        if not lake.exists(TABLES[reference.table]):
            continue
        mark = f"_there_{number}"
        rows = _marked(rows, lake, spark, reference, mark)
        broken[f"{reference.column} {reference.words}"] = F.col(reference.column).isNotNull() & F.col(mark).isNull()
    counts = [F.count_if(F.coalesce(one, F.lit(False))).alias(f"_b{i}") for i, one in enumerate(broken.values())]
    by_day = {row["_day"]: row for row in rows.groupBy("_day").agg(F.count("*").alias("_rows"), *counts).collect()}
    found = [
        Breach(spec.name, day, words, row[f"_b{i}"], row["_rows"])
        for day, row in sorted(by_day.items())
        for i, words in enumerate(broken)
        if row[f"_b{i}"]
    ]
    return found + _repeated(rows, spec, expected.unique, {day: row["_rows"] for day, row in by_day.items()})


def _marked(rows: DataFrame, lake: Lake, spark: SparkSession, reference: Reference, mark: str) -> DataFrame:
    """`rows` with a column that is null where the referred row is not there."""
    key = f"{mark}_key"
    there = frame(spark, lake, TABLES[reference.table], (reference.other,))
    if aside := _aside(lake, reference.table):
        # What refers to a day that is kept out is not itself broken: else one bad day would take all others with it.
        there = there.unionByName(spark.read.parquet(*map(str, aside)).select(reference.other))
    there = there.distinct().select(F.col(reference.other).alias(key), F.lit(True).alias(mark))
    return rows.join(there, rows[reference.column] == F.col(key), "left").drop(key)


def _repeated(rows: DataFrame, spec: TableSpec, key: tuple[str, ...], rows_of_day: dict[str, int]) -> list[Breach]:
    """Rows, from the second on, of a key that must be alone in its table; they count for the day of the last one."""
    many = rows.groupBy(*key).agg(F.count("*").alias("_n"), F.max("_day").alias("_day")).where("_n > 1")
    words = f"{', '.join(key)} is there once"
    days = many.groupBy("_day").agg(F.sum(F.col("_n") - 1).alias("_more")).collect()
    return [Breach(spec.name, row["_day"], words, row["_more"], rows_of_day[row["_day"]])
            for row in sorted(days, key=lambda row: row["_day"])]  # fmt: skip


def _days_out(lake: Lake, breaches: list[Breach]) -> dict[str, list[str]]:
    """Table -> days to keep out; a day of one event table takes that day of all."""
    out: dict[str, set[str]] = {}
    for one in breaches:
        for name in EVENT_TABLES if one.table in EVENT_TABLES else (one.table,):
            if lake.exists(TABLES[name]) and one.day in lake.manifest(TABLES[name]).days:
                out.setdefault(name, set()).add(one.day)
    return {name: sorted(out[name]) for name in TABLES if name in out}


def _move_out(workspace: Workspace, spec: TableSpec, days: list[str]) -> None:
    """The files go to the quarantine first, so that a run that is killed between the two has lost nothing."""
    manifest = workspace.lake.manifest(spec)
    for name in [one["file"] for day in days for one in files_of(manifest.days[day])]:
        source = workspace.lake.root / spec.name / name
        target = workspace.lake.root / "quarantine" / "days" / spec.name / name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target.with_suffix(".tmp"))
            target.with_suffix(".tmp").replace(target)
    workspace.lake.drop_days(spec, days)
