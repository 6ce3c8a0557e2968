"""Decayed counters over the event stream, driven by the declarations: as of one moment, or as of each query.

Sums of floats depend on their order, and yet the same log must give the same bytes. As of a moment, each weight is
therefore cut into two parts of set precision whose sums a double holds without rounding, in any order: Demmel and Nguyen
2013, "Fast Reproducible Floating-Point Summation". As of queries, running sums follow a full order of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.features import Counter, Family, Latest

LARGEST_EXPONENT = 900
"""2 ** 900 and its sums stay far inside a double's range (2 ** 1023)."""

_HIGH, _LOW = 1.5 * 2.0**26, 0.75
"""Added and taken off again, they round to multiples of 2 ** -26 and of 2 ** -53: sums of weights up to 1 are exact for
the first 2 ** 27 events of a key and kind, after which they are right but may hang on the order by a last digit."""


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

    One row per moment and key with an event known before it: `as_of`, key columns, `values` array<double>. An event is
    weighed once, as of the first moment that it is known at; later moments have it by decay.
    """
    ends = sorted(moments)
    known = events.where((F.col("known_at") < ends[-1]) & F.col("kind").isin(*_kinds(family)))
    # A number of its own for each kind of each span between moments, so that what follows compares whole numbers.
    rows = known.select(*family.key, "occurred_at", (_span(ends) * len(_kinds(family)) + _code(family)).alias("slot"))
    if len(family.key) > 1:
        # Keys of two columns come back too seldom within a task for adding up before the shuffle to pay.
        rows = rows.repartition(*family.key)
    summed = _exact_sums(rows, family, ends)
    by_key = (summed if len(family.key) > 1 else summed.repartition(*family.key)).groupBy(*family.key)
    spans = by_key.agg(*(column for i in range(len(ends)) for column in _of_span(family, i)))
    return _each_moment(spans, family, ends)


def _span(ends: Sequence[int]) -> Column:
    """Number of the span in which an event became known: 0 before the first of `ends`."""
    return sum(((F.col("known_at") >= end).cast("int") for end in ends[:-1]), start=F.lit(0))


def _code(family: Family) -> Column:
    kinds = _kinds(family)
    code = F.lit(len(kinds) - 1)
    for i in reversed(range(len(kinds) - 1)):
        code = F.when(F.col("kind") == kinds[i], F.lit(i)).otherwise(code)
    return code


def _exact_sums(rows: DataFrame, family: Family, ends: Sequence[int]) -> DataFrame:
    """Per key and slot: `high<i>` and `low<i>`, which add up to the decayed sum by the i-th half-life, and `latest`."""
    halves = _half_lives(family)
    width = len(_kinds(family))
    end = F.lit(ends[-1])
    for i in reversed(range(len(ends) - 1)):
        end = F.when(F.col("slot") < (i + 1) * width, F.lit(ends[i])).otherwise(end)
    weighed = rows.select(
        *family.key, "slot", "occurred_at",
        *(_weight(F.col("occurred_at"), end, us).alias(f"weight{i}") for i, us in enumerate(halves)),
    )  # fmt: skip
    high = [_rounded(F.col(f"weight{i}"), _HIGH) for i in range(len(halves))]
    low = [_rounded(F.col(f"weight{i}") - high[i], _LOW) for i in range(len(halves))]
    sums = [
        F.sum(column).alias(f"{name}{i}")
        for name, side in (("high", high), ("low", low))
        for i, column in enumerate(side)
    ]
    return weighed.groupBy(*family.key, "slot").agg(*sums, F.max("occurred_at").alias("latest"))


def _rounded(value: Column, magic: float) -> Column:
    return (value + F.lit(magic)) - F.lit(magic)


def _of_span(family: Family, span: int) -> list[Column]:
    """What a span adds for one key: `any<span>`, `sum<span>_<counter>` and `latest<span>_<latest>`."""
    kinds, halves = _kinds(family), _half_lives(family)

    def of(part: Counter | Latest) -> Column:
        return F.col("slot").isin(*(span * len(kinds) + kinds.index(kind) for kind in part.kinds))

    def total(side: str, counter: Counter) -> Column:
        return F.sum(F.when(of(counter), F.col(f"{side}{halves.index(counter.half_life_us)}")).otherwise(0.0))

    return [
        F.max(F.col("slot").between(span * len(kinds), (span + 1) * len(kinds) - 1)).alias(f"any{span}"),
        *((total("high", c) + total("low", c)).alias(f"sum{span}_{i}") for i, c in enumerate(family.counters)),
        *(F.max(F.when(of(part), F.col("latest")).otherwise(0)).alias(f"latest{span}_{i}") for i, part in enumerate(family.latests)),
    ]  # fmt: skip


def _each_moment(spans: DataFrame, family: Family, ends: Sequence[int]) -> DataFrame:
    """One row per moment that a key has events before, of what each span added."""
    any_of, sums, latests = (
        F.col("any0"),
        *(
            [F.col(f"{name}0_{i}") for i in range(len(parts))]
            for name, parts in (("sum", family.counters), ("latest", family.latests))
        ),
    )
    states = []
    for i, end in enumerate(ends):
        if i:
            kept = [2.0 ** (-(end - ends[i - 1]) / counter.half_life_us) for counter in family.counters]
            any_of = any_of | F.col(f"any{i}")
            sums = [old * share + F.col(f"sum{i}_{j}") for j, (old, share) in enumerate(zip(sums, kept, strict=True))]
            latests = [F.greatest(old, F.col(f"latest{i}_{j}")) for j, old in enumerate(latests)]
        values = F.array(*sums, *(latest.cast("double") for latest in latests))
        states.append(F.struct(F.lit(end).cast("bigint").alias("as_of"), any_of.alias("known"), values.alias("values")))
    rows = spans.select(*family.key, F.explode(F.array(*states)).alias("state")).where("state.known")
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


def _half_lives(family: Family) -> list[int]:
    return sorted({counter.half_life_us for counter in family.counters})


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
