"""The stream that serving writes, read by Spark: the same lake as the drain, at once, bit by bit, and through Kafka's shape."""

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from contracts.clock import DAY, MINUTE, SECOND
from contracts.features import FEATURE_NAMES
from contracts.tables import TABLES
from contracts.workspace import Workspace
from pipelines.sources.stream.decoded import served as wire
from tests.pipelines.small_log import START, random_log, save

pytestmark = [pytest.mark.spark, pytest.mark.redis]
END = START + 12 * DAY


def test_the_shapes_of_entries_are_those_that_serving_writes() -> None:
    from serving.api.accept import FOREVER, NO_ID
    from serving.feed.side_effects import FeedRecord
    from serving.live_events import LiveEvent
    from serving.store.packing import Document

    for ours, theirs in ((wire.LiveEvent, LiveEvent), (wire.FeedRecord, FeedRecord), (wire.Document, Document)):
        assert [(one.name, one.type, one.default) for one in msgspec.structs.fields(ours)] == [
            (one.name, one.type, one.default) for one in msgspec.structs.fields(theirs)
        ]
    assert (wire.FOREVER, wire.NO_ID) == (FOREVER, NO_ID)


def fill(client: redis.Redis, workspace: Workspace, first: int = 0, feeds: int = 12) -> None:
    """Feeds of six posts and what followed: looks, likes, new and deleted posts, blocks and their ends, and what cannot be."""
    from contracts.served import FOREVER, NO_ID, Document, FeedRecord, LiveEvent
    from serving.store.packing import pack
    from serving.store.redis import EVENTS, FEED_LOG
    from serving.versions import log_identity

    log = log_identity(workspace.dataset())

    def send(event: LiveEvent, of: str = log) -> None:
        client.xadd(EVENTS, {"log": of, "known_at": event.at, "event": pack(event)})

    for number in range(first, first + feeds):
        # Some feeds end a day, and are looked at on the next.
        served_at = END + number * DAY // 3 - SECOND
        request, user, posts = 10_000 + number, 1 + number % 5, [1 + (number + i) % 40 for i in range(6)]
        features = np.arange(6 * len(FEATURE_NAMES), dtype="<f8").reshape(6, -1) + number
        record = FeedRecord(request, user, served_at, "full", {"log": log if number % 4 else "another"}, "v1", posts, [2] * 6,
                            [0.1 * (i + 1) for i in range(6)], [0.0] * 6, features.tobytes(), [*posts, 77], [])  # fmt: skip
        client.xadd(FEED_LOG, {"feed": pack(record)})
        for i, post in enumerate(posts[:4]):
            send(LiveEvent("dwell", user, served_at + (i + 1) * SECOND, post, 2, 0, request, 1.5 * i))
            send(LiveEvent("view", user, served_at + (i + 1) * SECOND // 2, post, 2, 0, request, 400.0 * i))
        send(LiveEvent("like", user, served_at + MINUTE, posts[0], 2, 0, request))
        send(LiveEvent("share", user, served_at + MINUTE, posts[1], 2))
        send(LiveEvent("like", user, served_at, posts[0], 2, 0, request), of="another")
        document = Document(900 + number, user, ((5, 2),) if number % 2 else (), served_at, served_at, FOREVER, 3, 1, 0, NO_ID,
                            (1, 2) if number % 3 == 0 else (), "hello", np.float32([0.5, 2]).tobytes() if number % 2 else b"")  # fmt: skip
        send(LiveEvent("post", user, served_at + 5, 900 + number, user, document=pack(document)))
        if number % 2:
            ended = msgspec.structs.replace(document, deleted_at=served_at + 9)
            send(LiveEvent("delete_post", user, served_at + 9, 900 + number, user, document=pack(ended)))
        send(LiveEvent("block", user, served_at + 7, target_id=9, block_kind="block"))
        if number % 3 == 0:
            send(LiveEvent("unblock", user, served_at + 8, target_id=9, block_kind="block", since=(served_at + 7,)))
    for event in (LiveEvent("dwell", 1, END + 5, 1, 2, 0, 10_001, float("nan")), LiveEvent("click", 1, END + 5, 1, 2, 0, 2**63),
                  LiveEvent("view", 1, END + 5, 1, 2, 0, 10_001, 1e12), LiveEvent("post", 1, END + 5, 9, 1, document=b"none")):  # fmt: skip
        send(event)


@pytest.fixture
def two_workspaces(tmp_path: Path, rng: np.random.Generator) -> tuple[Workspace, Workspace]:
    """The same log twice."""
    first = save(tmp_path / "drained", random_log(rng))
    shutil.copytree(first.root, tmp_path / "spark")
    return first, Workspace(tmp_path / "spark")


def contents(workspace: Workspace) -> dict[str, str]:
    return {
        name: workspace.lake.manifest(spec).content_hash for name, spec in TABLES.items() if workspace.lake.exists(spec)
    }


def test_spark_brings_the_rows_and_the_end_that_the_drain_brings_once_and_again(
    two_workspaces: tuple[Workspace, Workspace], redis_client: redis.Redis, redis_url: str, spark: object
) -> None:
    from pipelines.sources.stream.served import bring_served
    from serving.feedback import drain

    drained, ours = two_workspaces
    fill(redis_client, drained)
    expected = drain(drained, redis_url)
    assert expected["put_aside"] == 4 and expected["impressions"] == 54 and expected["blocks"] and expected["posts"]
    assert bring_served(ours, spark, redis_url) == expected
    assert contents(ours) == contents(drained)
    assert ours.dataset() == drained.dataset() and ours.dataset().end > END
    before = ours.dataset()
    assert bring_served(ours, spark, redis_url) == expected
    assert contents(ours) == contents(drained) and ours.dataset() == before
    lines = (ours.root / "lake" / "quarantine" / "served.jsonl").read_text().splitlines()
    assert len(lines) == 4 and all(msgspec.json.decode(line)["reason"] for line in lines)


@pytest.mark.slow
def test_a_stream_that_is_followed_ends_with_the_lake_of_a_drain_after_all_of_it_also_when_stopped_between(
    two_workspaces: tuple[Workspace, Workspace], redis_client: redis.Redis, redis_url: str, spark: object
) -> None:
    from pipelines.sources.stream.served import follow_served
    from serving.feedback import drain

    drained, ours = two_workspaces
    for part in range(2):
        fill(redis_client, drained, first=6 * part, feeds=6)
        query = follow_served(ours, spark, redis_url)
        query.processAllAvailable()
        query.stop()
    drain(drained, redis_url)
    assert contents(ours) == contents(drained)
    assert replace(ours.dataset(), end=0) == replace(drained.dataset(), end=0)
    assert ours.dataset().end > END


def test_messages_of_kafka_are_entries_of_the_same_stream(spark: object) -> None:
    from pyspark.sql import functions as F

    from pipelines.sources.stream.entries import EVENTS, FEEDS, of_kafka

    kafka = ("topic string, partition int, offset bigint, timestamp timestamp, value binary, "
             "headers array<struct<key: string, value: binary>>")  # fmt: skip
    at = "2024-03-01 08:00:00.123"
    rows = [
        ("done", 1, 5, at, b"e", [("log", b"L"), ("known_at", b"7")]),
        ("shown", 0, 2, at, b"f", None),
        ("other", 0, 0, at, b"x", None),
    ]
    messages = spark.createDataFrame(
        [(topic, part, offset, value, headers) for topic, part, offset, _, value, headers in rows],
        kafka.replace("timestamp timestamp, ", ""),
    ).withColumn("timestamp", F.to_timestamp(F.lit(at)))
    found = {row["stream"]: row for row in of_kafka(messages, {EVENTS: "done", FEEDS: "shown"}, partitions=3).collect()}
    assert set(found) == {EVENTS, FEEDS}
    assert found[EVENTS]["fields"] == {"event": b"e", "log": b"L", "known_at": b"7"}
    assert found[FEEDS]["fields"] == {"feed": b"f"}
    assert found[EVENTS]["entry_id"] == "1709280000123-16" and found[FEEDS]["entry_id"] == "1709280000123-6"


def test_a_redis_that_does_not_answer_is_a_sentence(two_workspaces: tuple[Workspace, Workspace], spark: object) -> None:
    from contracts.errors import BadInput
    from pipelines.sources.stream.served import bring_served

    with pytest.raises(BadInput, match="the stream at Redis cannot be read"):
        bring_served(two_workspaces[0], spark, "redis://127.0.0.1:1/0")
