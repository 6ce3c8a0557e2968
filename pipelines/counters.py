"""Decayed counters over the event stream, driven by the declarations: as of one moment, or as of each query.

Sums of floats depend on their order, so rows are put in a full order before they are summed: the same log gives the
same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.features import Family

LARGEST_EXPONENT = 900
"""2 ** 900 and its sums stay far inside a double's range (2 ** 1023)."""


@dataclass(frozen=True)
class EventSpan:
    """First and last `occurred_at` of the stream, UTC microseconds."""

    first: int
    last: int


def span_of(events: DataFrame) -> EventSpan:
    """The span of `events`; one pass."""
    first, last = events.agg(F.min("occurred_at"), F.max("occurred_at")).first()
    return EventSpan(first or 0, last or 0)


def as_of_moments(events: DataFrame, family: Family, moments: Sequence[int]) -> DataFrame:
    """The family's state as of each of `moments` (UTC microseconds), in one pass.

    One row per moment and key with an event known before it: `as_of`, key columns, `values` array<double>.
    """
    known = events.where((F.col("known_at") < max(moments)) & F.col("kind").isin(*_kinds(family)))
    # Grouped by the same columns, this adds no second shuffle, and the sums run in the sorted order.
    ordered = known.repartition(*family.key).sortWithinPartitions(*family.key, "occurred_at", "kind")
    states = [
        F.struct(
            F.lit(moment).cast("bigint").alias("as_of"),
            F.count_if(F.col("known_at") < moment).alias("events"),
            F.array(*_state(family, moment)).alias("values"),
        )
        for moment in moments
    ]
    by_key = ordered.groupBy(*family.key).agg(F.array(*states).alias("states"))
    rows = by_key.select(*family.key, F.explode("states").alias("state")).where("state.events > 0")
    return rows.select("state.as_of", *family.key, "state.values")


def carried_on(before: DataFrame, events: DataFrame, family: Family, base: int, moment: int) -> DataFrame:
    """The family's state as of `moment`: that `before`, which is as of `base`, decayed, plus events known since.

    Both in UTC microseconds. Columns as of `as_of_moments`; equal to counting all events to rounding.
    """
    since = as_of_moments(events.where(F.col("known_at") >= base), family, [moment])
    fresh = since.select(*family.key, F.col("values").alias("fresh"))
    joined = before.select(*family.key, F.col("values").alias("old")).join(fresh, list(family.key), "full")
    old, new = (F.coalesce(F.col(name), F.array(*[F.lit(0.0)] * family.width)) for name in ("old", "fresh"))
    sums = [
        old[i] * 2.0 ** (-(moment - base) / counter.half_life_us) + new[i] for i, counter in enumerate(family.counters)
    ]
    latests = [F.greatest(old[i], new[i]) for i in range(len(family.counters), family.width)]
    return joined.select(
        F.lit(moment).cast("bigint").alias("as_of"), *family.key, F.array(*sums, *latests).alias("values")
    )


def _state(family: Family, moment: int) -> list[Column]:
    def of_kinds(kinds: Sequence[str]) -> Column:
        return F.col("kind").isin(*kinds) & (F.col("known_at") < moment)

    occurred_at = F.col("occurred_at")
    sums = [
        F.sum(F.when(of_kinds(c.kinds), _weight(occurred_at, F.lit(moment), c.half_life_us)).otherwise(0.0))
        for c in family.counters
    ]
    latests = [
        F.coalesce(F.max(F.when(of_kinds(part.kinds), occurred_at)), F.lit(0)).cast("double") for part in family.latests
    ]
    return [*sums, *latests]


def as_of_queries(
    events: DataFrame, queries: DataFrame, family: Family, key: Sequence[str], ids: Sequence[str], span: EventSpan
) -> DataFrame:
    """The family's counters and latests as of each query.

    queries: columns `ids` (which name a query), `key` (they fill the family's key, in its order) and `requested_at`.
    Gives `ids`, then one column per counter and latest, named as declared. An event counts when
    `known_at < requested_at`. A decayed sum is a running sum of `2 ** ((occurred_at - anchor) / half_life)`, brought
    back by `2 ** (-(requested_at - anchor) / half_life)`; `BadInput` when a key's events span too many half-lives for
    that.
    """
    keys = [f"_key{i}" for i in range(len(family.key))]
    asked = queries.select(
        *ids, *(F.col(column).alias(name) for column, name in zip(key, keys, strict=True)),
        F.col("requested_at").alias("_at"), F.lit(False).alias("_event"),
        F.lit(None).cast("bigint").alias("_occurred_at"), F.lit(None).cast("string").alias("_kind"),
    )  # fmt: skip
    types = dict(queries.dtypes)
    happened = events.where(F.col("kind").isin(*_kinds(family))).select(
        *(F.lit(None).cast(types[name]).alias(name) for name in ids),
        *(F.col(column).alias(name) for column, name in zip(family.key, keys, strict=True)),
        F.col("known_at").alias("_at"), F.lit(True).alias("_event"),
        F.col("occurred_at").alias("_occurred_at"), F.col("kind").alias("_kind"),
    )  # fmt: skip
    anchor = _anchor(events, family, span, keys)
    # false sorts before true: a query comes before the events known at its own microsecond and so does not see them.
    order = ["_at", "_event", "_occurred_at", "_kind"]
    before = Window.partitionBy(*keys).orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = asked.unionByName(happened).withColumn("_anchor", anchor)
    sums = {
        c.name: F.sum(
            F.when(
                F.col("_kind").isin(*c.kinds), _weight(F.col("_occurred_at"), F.col("_anchor"), c.half_life_us)
            ).otherwise(0.0)
        ).over(before)
        for c in family.counters
    }
    latests = {
        part.name: F.max(F.when(F.col("_kind").isin(*part.kinds), F.col("_occurred_at"))).over(before)
        for part in family.latests
    }
    seen = rows.select(
        *ids, "_at", "_event", "_anchor", *(column.alias(name) for name, column in (sums | latests).items())
    )
    answers = seen.where(~F.col("_event"))
    decayed = [
        F.when(F.col(c.name) > 0, F.col(c.name) * _weight(F.col("_anchor"), F.col("_at"), c.half_life_us))
        .otherwise(0.0)
        .alias(c.name)
        for c in family.counters
    ]
    return answers.select(
        *ids, *decayed, *(F.coalesce(F.col(part.name), F.lit(0)).alias(part.name) for part in family.latests)
    )


def _kinds(family: Family) -> list[str]:
    return sorted({kind for part in family.parts for kind in part.kinds})


def _weight(occurred_at: Column, at: Column, half_life_us: int) -> Column:
    return F.pow(F.lit(2.0), (occurred_at - at) / F.lit(float(half_life_us)))


def _anchor(events: DataFrame, family: Family, span: EventSpan, keys: list[str]) -> Column:
    """The log's first moment where the whole log fits, else the key's own first event."""
    shortest = min(counter.half_life_us for counter in family.counters)
    if (span.last - span.first) / shortest <= LARGEST_EXPONENT:
        return F.lit(span.first).cast("bigint")
    spans = events.where(F.col("kind").isin(*_kinds(family))).groupBy(*family.key)
    widest = spans.agg((F.max("occurred_at") - F.min("occurred_at")).alias("us")).agg(F.max("us")).first()[0] or 0
    if widest / shortest > LARGEST_EXPONENT:
        raise BadInput(
            f"events of one {'/'.join(family.key)} of family {family.name} span {widest / DAY:.0f} days, more than "
            f"{LARGEST_EXPONENT} half-lives of {shortest / DAY:g} days: use a longer half-life or a shorter log"
        )
    return F.min("_occurred_at").over(Window.partitionBy(*keys))
