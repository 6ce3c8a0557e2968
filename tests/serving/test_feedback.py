"""What was served and done comes back into the lake: exactly once, and with the counters that serving already had."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import redis
from fastapi.testclient import TestClient

from contracts.features import FAMILIES
from contracts.tables import ACTIONS, BLOCKS, IMPRESSIONS, POSTS, REQUESTS, TABLES
from serving.api import create_app
from serving.feedback import drain
from serving.publish import publish
from serving.store.packing import unpack_states
from serving.store.redis import ROOT, RedisStore, version_in_force
from serving.versions import pointers
from tests.serving.reference import write_states
from tests.serving.test_api import UNHURRIED, small_world

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
    assert drain(workspace, redis_url) == {"requests": 1, "impressions": 6, "actions": 5, "posts": 1, "blocks": 1}
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


def test_feeds_of_another_log_stay_out(served, redis_url, tmp_path):
    other = small_world().write(tmp_path / "other")
    dataset = other.dataset()

    replace(dataset, source="another log").save(other.dataset_path)
    assert set(drain(other, redis_url).values()) == {0}
    assert other.dataset().end == dataset.end
