"""Samples in one plan: impressions, labels, facts, counters per family and key; executors write them."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.features import FAMILIES, FEATURE_VERSION, FEATURES, Family, Feature
from contracts.lake import made_of
from contracts.progress import say, stage
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, USERS
from contracts.workspace import Workspace
from pipelines.counters import EventSpan, as_of_queries, span_of
from pipelines.events import event_frame
from pipelines.finishing import finished
from pipelines.frames import drawn, kept
from pipelines.samples.bias import examination_of, features_must_tell
from pipelines.samples.card import write_card
from pipelines.samples.circles import member_sets
from pipelines.samples.facts import with_facts
from pipelines.samples.impressions import KEY, check_keys, sampled_impressions
from pipelines.samples.labels import with_labels
from pipelines.samples.report import LABELS, drawn_rows, report_of
from pipelines.samples.settings import SampleSettings
from pipelines.spark import machine_faults
from pipelines.writing import WritingSettings, cuts, numbered, write_frame

SOURCES = (USERS, FRIENDSHIPS, POSTS, REQUESTS, IMPRESSIONS, ACTIONS)
_FINISHED = ("examination", "keep_share")
_EVIDENCE = ("request_id", "post_id", "user_id", "author_id", "position", "viewed", "policy", "propensity", *LABELS)


def build_samples(workspace: Workspace, spark: SparkSession, settings: SampleSettings | None = None) -> dict:
    """Writes the sample table for the train, validation and test windows of the log and reports what is in it.

    Every feature is as of the impression's request: nothing known at or after that moment moves it. The plan is Spark's
    throughout, and executors write what it gives; what the driver holds is bounded by the settings.

    Raises `BadInput` when a table is missing, no impression falls into a window, or one post stands twice in a request.
    """
    dataset = workspace.dataset()
    lake = workspace.lake
    settings = settings or SampleSettings()
    parents = made_of(lake, SOURCES) | {"feature_version": FEATURE_VERSION}
    with machine_faults(), stage("samples"), ExitStack() as held:
        rows = held.enter_context(kept(with_labels(spark, lake, dataset, sampled_impressions(spark, lake, dataset))))
        counts = _counts(rows)
        if not counts:
            raise BadInput(
                f"no impression of the log falls into a train, validation or test window: {dataset.split().as_dict()}"
            )
        check_keys(rows, spark, lake)
        events = held.enter_context(kept(event_frame(spark, lake)))
        sets = held.enter_context(kept(member_sets(spark, lake)))
        samples = with_counters(with_facts(spark, lake, rows, sets), events, rows)
        samples = samples.select(*(name for name in SAMPLES.schema.names if name not in _FINISHED))
        train = _share_of_viewers(sum(n for (window, _), n in counts.items() if window == "train"), settings)
        evidence = rows.where(train).select(*_EVIDENCE).toArrow()
        if features_must_tell(evidence):
            samples = held.enter_context(kept(samples))
            evidence = samples.where(train).toArrow()
        examination = examination_of(evidence)
        number = numbered(F.col("shown_at"), _bounds(rows, counts))
        curve_K = examination.curve_K if examination and examination.method != "viewed" else None
        finish = partial(finished, curve_K=curve_K, keep_negatives=settings.keep_negatives, seed=settings.seed)
        written = write_frame(workspace.samples, SAMPLES, samples, number, parents, finish)
    report = report_of(workspace.samples) | {"examination": examination.as_dict() if examination else None}
    report["card"] = write_card(
        workspace, drawn_rows(workspace.samples, settings.most_carded), examination, written.rows
    )
    say(
        f"  {report['rows']} samples: " + ", ".join(f"{name} {part['rows']}" for name, part in report["splits"].items())
    )
    return report


def _counts(rows: DataFrame) -> dict[tuple[str, int], int]:
    """Rows by window and by the moment at which their UTC day starts."""
    day = F.col("shown_at") - F.pmod(F.col("shown_at"), F.lit(DAY))
    found = rows.groupBy("split", day.alias("day")).count().collect()
    return {(row["split"], row["day"]): row["count"] for row in found}


def _share_of_viewers(count: int, settings: SampleSettings) -> Column:
    """Which rows the examination is estimated on: those of the training window, or of some of its viewers."""
    train = F.col("split") == "train"
    if count <= settings.most_estimated:
        return train
    return train & drawn(settings.most_estimated / count, ["user_id"], settings.seed)


def _bounds(rows: DataFrame, counts: dict[tuple[str, int], int]) -> list[int]:
    """The moments at which a new file of the samples begins: days, and inside one that is too large for a file."""
    largest = WritingSettings().rows_per_file(SAMPLES)
    by_day: dict[int, int] = {}
    for (_, day), count in counts.items():
        by_day[day] = by_day.get(day, 0) + count
    inner: set[int] = set()
    for day, count in by_day.items():
        if count > largest:
            of_day = rows.where(F.col("shown_at").between(day, day + DAY - 1))
            inner.update(cuts(of_day.select("shown_at", "request_id", "position"), "shown_at", count, largest))
    return sorted(inner | set(by_day))[1:]


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
    keyed = rows.select(*KEY, "requested_at", "user_id", "author_id", F.col("post")["topic"].alias("topic"))
    for group in counter_groups():
        samples = _joined(samples, events, keyed, group, span)
    return samples


def _joined(samples: DataFrame, events: DataFrame, keyed: DataFrame, group: CounterGroup, span: EventSpan) -> DataFrame:
    # The viewer's own counters are the same for all of a request's impressions.
    per_request = group.key == ("user_id",)
    ids = ["request_id"] if per_request else list(KEY)
    queries = keyed.select(*dict.fromkeys((*ids, *group.key, "requested_at")))
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
