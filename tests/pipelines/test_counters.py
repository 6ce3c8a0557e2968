"""The event stream and the decayed counters over it: the same stream as the contract's, exact over very long logs."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.events import EVENT_SCHEMA, event_stream
from contracts.features import FAMILIES
from contracts.tables import IMPRESSIONS
from pipelines.counters import as_of_moments, as_of_queries, span_of
from pipelines.events import event_frame
from tests.pipelines.small_log import START, random_log, save, table

pytestmark = pytest.mark.spark


def test_sparks_event_stream_is_the_contracts(spark: SparkSession, tmp_path: Path) -> None:
    log = random_log(np.random.default_rng(11))
    stray = table(
        IMPRESSIONS, request_id=[1], user_id=[1], post_id=[10**9], author_id=[2], position=[9], shown_at=[START + DAY],
        viewed_ms=[500], policy=["logging"], known_at=[START + DAY],
    )  # fmt: skip
    log["impressions"] = pa.concat_tables([log["impressions"], stray])
    assert log["posts"].num_rows > len(set(log["posts"]["post_id"].to_pylist())), "the log needs edited posts"
    expected = event_stream(log["posts"], log["impressions"], log["actions"])
    found = event_frame(spark, save(tmp_path, log).lake).toArrow().cast(EVENT_SCHEMA)

    def rows(events: pa.Table) -> list[tuple]:
        return sorted(tuple(row.values()) for row in events.to_pylist())

    assert rows(found) == rows(expected)
    assert 10**9 not in found["post_id"].to_pylist()


def _clicks(spark: SparkSession, days: list[tuple[int, int]]) -> object:
    """Click events (post_id, day) of one user."""
    rows = [("click", 1, 2, post, 0, day * DAY, day * DAY) for post, day in days]
    return spark.createDataFrame(
        rows, "kind string, user_id long, author_id long, post_id long, topic int, occurred_at long, known_at long"
    )


def _asked(spark: SparkSession, events: object, queries: list[tuple[int, int]]) -> dict[int, float]:
    """clicks_2d of (post_id, day), by position."""
    rows = [(i, post, day * DAY) for i, (post, day) in enumerate(queries)]
    asked = spark.createDataFrame(rows, "id long, post_id long, requested_at long")
    values = as_of_queries(events, asked, FAMILIES["post"], ("post_id",), ["id"], span_of(events))  # type: ignore[arg-type]
    return {row["id"]: row["clicks_2d"] for row in values.collect()}


def test_counters_stay_exact_when_the_log_is_thousands_of_half_lives_long(spark: SparkSession) -> None:
    events = _clicks(spark, [(1, 0), (1, 2), (2, 9000), (2, 9004)])
    values = _asked(spark, events, [(1, 4), (2, 9004), (2, 9006), (1, 9006), (3, 5)])
    expected = {0: 0.25 + 0.5, 1: 0.25, 2: 0.125 + 0.5, 3: 0.0, 4: 0.0}
    assert values == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_a_key_whose_own_events_span_too_many_half_lives_is_refused_and_not_made_infinite(spark: SparkSession) -> None:
    events = _clicks(spark, [(1, 0), (1, 4000)])
    with pytest.raises(BadInput, match="post_id of family post span 4000 days, more than 900 half-lives of 2 days"):
        _asked(spark, events, [(1, 4001)])


def _busy(count: int) -> list[tuple]:
    """Events of two keys, one of them with nine tenths of all, and with moments and delays that share no factor."""
    return [
        (("click", "like", "view", "share")[i % 4], 1, 2 if i % 10 else 3, i, 0, at := START + 7_919_000_017 * i % (9 * DAY), at + 1 + i)
        for i in range(count)
    ]  # fmt: skip


def test_states_are_the_same_to_the_bit_in_whatever_order_and_parts_the_events_come(spark: SparkSession) -> None:
    columns = "kind string, user_id long, author_id long, post_id long, topic int, occurred_at long, known_at long"
    rows, moments = _busy(997), [START + 6 * DAY, START + 10 * DAY]
    for name in ("author", "tie"):
        found = []
        for order, parts in ((rows, 1), (rows[::-1], 3), (rows[500:] + rows[:500], 7)):
            events = spark.createDataFrame(order, columns).repartition(parts)
            states = as_of_moments(events, FAMILIES[name], moments).toArrow()
            found.append(sorted(tuple(map(str, row.values())) for row in states.to_pylist()))
        assert found[0] == found[1] == found[2] and len(found[0]) == 4


def test_states_as_of_several_moments_are_the_events_weights_added_up_exactly(spark: SparkSession) -> None:
    columns = "kind string, user_id long, author_id long, post_id long, topic int, occurred_at long, known_at long"
    rows, moments = _busy(997), [START + 10 * DAY, START + 3 * DAY, START + 6 * DAY]
    events = spark.createDataFrame(rows, columns)
    family = FAMILIES["tie"]
    states = {
        (row["as_of"], row["author_id"]): row["values"] for row in as_of_moments(events, family, moments).collect()
    }
    assert len(states) == 6
    for (as_of, author), values in states.items():
        known = [(kind, at) for kind, _, to, _, _, at, known_at in rows if to == author and known_at < as_of]
        expected = [
            math.fsum(2.0 ** (-(as_of - at) / c.half_life_us) for kind, at in known if kind in c.kinds)
            for c in family.counters
        ] + [max((at for kind, at in known if kind in part.kinds), default=0) for part in family.latests]
        assert values == pytest.approx(expected, rel=1e-14, abs=1e-14)
