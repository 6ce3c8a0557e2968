"""What was served and done comes back into the lake: exactly once, and with the counters that serving already had."""

import itertools
import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import redis
from fastapi.testclient import TestClient

from contracts.errors import BadInput
from contracts.features import FAMILIES
from contracts.served import FOREVER, NO_ID, Document, LiveEvent
from contracts.tables import ACTIONS, BLOCKS, IMPRESSIONS, POSTS, REQUESTS, TABLES
from serving.api import create_app
from serving.feedback import drain
from serving.publish import publish
from serving.store.packing import pack, unpack_states
from serving.store.redis import EVENTS, ROOT, RedisStore, connect, version_in_force
from serving.versions import log_identity, pointers
from tests.serving.reference import write_states
from tests.serving.test_api import UNHURRIED, small_world
from tests.serving.world import END

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*httpx")]


@pytest.fixture
def served(tmp_path, redis_client, redis_url):
    """(workspace, what a person was shown and did) over a freshly published small world."""
    workspace = small_world().write(tmp_path)
    publish(workspace, redis_url)
    numbers = itertools.count()
    with TestClient(create_app(workspace, redis_url, feed_settings=UNHURRIED)) as api:

        def send(**event):
            event = {"user_id": 1, "event_id": f"event {next(numbers)}", **event}
            assert api.post("/v1/events", json={"events": [event]}).status_code == 202

        feed = api.get("/v1/feed", params={"user_id": 1, "n": 6}).json()
        posts = [item["post_id"] for item in feed["items"]]
        request = feed["request_id"]
        send(kind="dwell", post_id=posts[0], request_id=request, value=4.5)
        send(kind="like", post_id=posts[0], request_id=request)
        send(kind="click", post_id=posts[1], request_id=request)
        send(kind="comment", post_id=posts[1], request_id=request)
        send(kind="hide", post_id=posts[2], request_id=request)
        send(kind="block", target_id=9)
        send(kind="post", text="hello", topic=3, event_id="mine")
    return workspace, request, posts


def test_feeds_and_events_become_rows_once_however_often_they_are_drained(served, redis_url):
    workspace, request, posts = served
    before = {name: workspace.lake.manifest(spec).rows for name, spec in TABLES.items()}
    assert drain(workspace, redis_url) == {"requests": 1, "impressions": 6, "actions": 5, "posts": 1, "blocks": 1,
                                          "put_aside": 0}  # fmt: skip
    once = {name: workspace.lake.manifest(spec).content_hash for name, spec in TABLES.items()}
    drain(workspace, redis_url)
    assert {name: workspace.lake.manifest(spec).content_hash for name, spec in TABLES.items()} == once
    grown = {name: workspace.lake.manifest(spec).rows - before[name] for name, spec in TABLES.items()}
    assert (grown["requests"], grown["impressions"], grown["actions"], grown["posts"], grown["blocks"]) == (
        1,
        6,
        5,
        1,
        1,
    )
    shown = workspace.lake.read(IMPRESSIONS).filter(np.isin(workspace.lake.read(IMPRESSIONS)["request_id"], [request]))
    assert shown.sort_by("position")["post_id"].to_pylist() == posts
    assert shown.sort_by("position")["viewed_ms"].to_pylist() == [4500, 1, 1, 0, 0, 0]
    assert len(workspace.lake.read(REQUESTS)["candidates"][-1]) >= 81
    assert {one["kind"] for one in workspace.lake.read(ACTIONS).to_pylist()} == {
        "dwell",
        "like",
        "click",
        "comment",
        "hide",
    }
    assert workspace.lake.read(BLOCKS)["target_id"].to_pylist() == [9]
    assert "hello" in workspace.lake.read(POSTS)["text"].to_pylist()


def test_the_next_batch_counts_what_the_online_updater_had_counted(served, redis_url):
    workspace, _, _ = served
    drain(workspace, redis_url)
    end = workspace.dataset().end
    write_states(workspace, end)
    publish(workspace, redis_url)
    client = redis.Redis.from_url(redis_url)
    now_in_force, before = pointers(client)
    assert now_in_force == version_in_force(client)
    compared = 0
    for family in FAMILIES.values():
        half_lives = np.array([counter.half_life_us for counter in family.counters], float)
        prefix = f"{ROOT}{before}:{family.name}:".encode()
        keys = sorted(full[len(f"{ROOT}{before}:") :] for full in client.scan_iter(match=prefix + b"*"))
        states = [
            unpack_states(RedisStore(client, version).get_many(keys), family.width)
            for version in (before, now_in_force)
        ]
        at_end = [
            np.c_[
                one[:, 1 : 1 + len(half_lives)] * 2 ** (-(end - one[:, :1]) / half_lives), one[:, 1 + len(half_lives) :]
            ]
            for one in states
        ]
        np.testing.assert_allclose(at_end[0], at_end[1], rtol=1e-9, err_msg=family.name)
        compared += len(keys)
    assert compared > 20


POST = Document(9, 1, (), END + 5, END + 5, FOREVER, 0, 1, 0, NO_ID, (), "words", b"")
IMPOSSIBLE = [
    LiveEvent("dwell", 1, END + 5, 100, 2, 0, 7, math.inf),
    LiveEvent("dwell", 1, END + 5, 100, 2, 0, 7, math.nan),
    LiveEvent("dwell", 1, END + 5, 100, 2, 0, 7, 1e300),
    LiveEvent("view", 1, END + 5, 100, 2, 0, 7, 86_400_001.0),
    LiveEvent("click", 1, END + 5, 100, 2, 0, 2**63),
    LiveEvent("block", 1, END + 5, target_id=2**63, block_kind="block"),
    LiveEvent("post", 1, END + 5, 9, 1, document=pack(msgspec.structs.replace(POST, audience=(2**63,)))),
    LiveEvent("post", 1, END + 5, 9, 1, document=pack(msgspec.structs.replace(POST, topic=2**31))),
]


def test_an_entry_that_cannot_be_a_row_is_put_aside_with_the_reason_and_all_others_arrive(served, redis_url):
    workspace, _, _ = served
    client, log_id = connect(redis_url), log_identity(workspace.dataset())
    named = [client.xadd(EVENTS, {"log": log_id, "known_at": one.at, "event": pack(one)}) for one in IMPOSSIBLE]
    for _ in range(2):
        assert drain(workspace, redis_url) == {"requests": 1, "impressions": 6, "actions": 5, "posts": 1, "blocks": 1,
                                               "put_aside": len(IMPOSSIBLE)}  # fmt: skip
        lines = (workspace.root / "lake/quarantine/feedback.jsonl").read_text().splitlines()
        aside = [json.loads(line) for line in lines]
        assert [one["entry"] for one in aside] == [one.decode() for one in named] and all(
            one["reason"] for one in aside
        )


def test_no_table_is_written_when_one_cannot_be_made(served, redis_url, monkeypatch):
    workspace, _, _ = served
    before = {name: workspace.lake.manifest(spec).content_hash for name, spec in TABLES.items()}
    monkeypatch.setattr("serving.feedback._blocks", lambda events: iter([{"user_id": None}]))
    with pytest.raises(BadInput):
        drain(workspace, redis_url)
    assert {name: workspace.lake.manifest(spec).content_hash for name, spec in TABLES.items()} == before


def test_feeds_of_another_log_stay_out(served, redis_url, tmp_path):
    other = small_world().write(tmp_path / "other")
    dataset = other.dataset()

    replace(dataset, source="another log").save(other.dataset_path)
    assert set(drain(other, redis_url).values()) == {0}
    assert other.dataset().end == dataset.end
