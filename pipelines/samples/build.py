"""Samples in one plan: impressions, facts, counters per family and key, labels; then one write."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.features import FAMILIES, FEATURE_VERSION, FEATURES, Family, Feature
from contracts.lake import content_hashes
from contracts.progress import say, stage
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, USERS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from pipelines.counters import EventSpan, as_of_queries, span_of
from pipelines.events import event_frame
from pipelines.frames import kept
from pipelines.samples.bias import thinned, with_examination
from pipelines.samples.card import write_card
from pipelines.samples.facts import with_facts
from pipelines.samples.impressions import WINDOWS, sampled_impressions
from pipelines.samples.labels import with_labels
from pipelines.samples.settings import SampleSettings

SOURCES = (USERS, FRIENDSHIPS, POSTS, REQUESTS, IMPRESSIONS, ACTIONS)


def build_samples(workspace: Workspace, spark: SparkSession, settings: SampleSettings | None = None) -> dict:
    """Writes the sample table for the train, validation and test windows of the log and reports what is in it.

    Every feature is as of the impression's request: nothing known at or after that moment moves it. The plan is Spark's
    throughout; only the finished rows come to the driver, through Arrow, to be written in one atomic step.

    Raises `BadInput` when a table is missing or no impression falls into a window.
    """
    dataset = workspace.dataset()
    lake = workspace.lake
    settings = settings or SampleSettings()
    with (
        stage("samples"),
        kept(event_frame(spark, lake)) as events,
        kept(sampled_impressions(spark, lake, dataset)) as rows,
    ):
        if rows.isEmpty():
            raise BadInput(
                f"no impression of the log falls into a train, validation or test window: {dataset.split().as_dict()}"
            )
        samples = with_labels(spark, lake, dataset, with_facts(spark, lake, rows))
        samples = with_counters(samples, events, rows)
        table = samples.select(
            *(name for name in SAMPLES.schema.names if name not in ("examination", "keep_share"))
        ).toArrow()
        table, examination = with_examination(table)
        table = thinned(table, settings)
        parents = content_hashes(lake, SOURCES) | {"feature_version": FEATURE_VERSION}
        workspace.samples.write(SAMPLES, table, parents=parents)
    report = _report(table) | {"examination": examination.as_dict() if examination else None}
    report["card"] = write_card(workspace, table, examination)
    say(
        f"  {report['rows']} samples: " + ", ".join(f"{name} {part['rows']}" for name, part in report["splits"].items())
    )
    return report


@dataclass(frozen=True)
class CounterGroup:
    """The features that one family gives under one key: one pass over its events."""

    family: Family
    key: tuple[str, ...]
    features: tuple[Feature, ...]


def counter_groups() -> list[CounterGroup]:
    """The declared counter and latest features, grouped by family and key."""
    grouped: dict[tuple[str, tuple[str, ...]], list[Feature]] = {}
    for feature in FEATURES:
        source = feature.counter or feature.latest
        if source is not None:
            grouped.setdefault((source[0], feature.key), []).append(feature)
    return [CounterGroup(FAMILIES[family], key, tuple(features)) for (family, key), features in grouped.items()]


def with_counters(samples: DataFrame, events: DataFrame, rows: DataFrame) -> DataFrame:
    """`samples` plus every counter and latest feature, asked at the keys and moments of `rows`."""
    span = span_of(events)
    keyed = rows.select(
        "request_id",
        "position",
        "requested_at",
        "user_id",
        "author_id",
        "post_id",
        F.col("post")["topic"].alias("topic"),
    )
    for group in counter_groups():
        samples = _joined(samples, events, keyed, group, span)
    return samples


def _joined(samples: DataFrame, events: DataFrame, keyed: DataFrame, group: CounterGroup, span: EventSpan) -> DataFrame:
    # The viewer's own counters are the same for all of a request's impressions.
    per_request = group.key == ("user_id",)
    ids = ["request_id"] if per_request else ["request_id", "position"]
    queries = keyed.select(*ids, *group.key, "requested_at")
    if per_request:
        queries = queries.distinct()
    values = as_of_queries(events, queries, group.family, group.key, ids, span)
    joined = samples.join(values, ids)
    return joined.select(*samples.columns, *(_feature(feature).alias(feature.name) for feature in group.features))


def _feature(feature: Feature) -> Column:
    if feature.counter is not None:
        return F.col(feature.counter[1])
    assert feature.latest is not None
    at = F.col(feature.latest[1])
    days = (F.col("requested_at") - at) / F.lit(float(DAY))
    return F.when(at > 0, F.least(days, F.lit(feature.default))).otherwise(F.lit(feature.default))


def _report(table: pa.Table) -> dict:
    """Rows, requests, share of viewed rows and positive rate per task, per window."""
    splits = {}
    for window in WINDOWS:
        part = table.filter(pc.equal(table["split"], window))
        rates = {task: pc.mean(part[f"label_{task}"]).as_py() for task in TASK_NAMES}
        splits[window] = {
            "rows": part.num_rows,
            "requests": pc.count_distinct(part["request_id"]).as_py(),
            "viewed_share": pc.mean(part["viewed"]).as_py(),
            "positive_rate": {task: rate for task, rate in rates.items() if rate is not None},
        }
    return {"rows": table.num_rows, "splits": splits, "feature_version": FEATURE_VERSION}
