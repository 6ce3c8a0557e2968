"""Publishing is all or nothing, keeps what was acknowledged, can be taken back, and serves what memory would serve."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import BadInput
from contracts.machine.redis_server import RedisServer
from contracts.served import LiveEvent
from contracts.workspace import Workspace
from serving.feed import POLICIES, Query, pool_policy, serving_policy
from serving.live_events import EventLog
from serving.publish import publish, rollback
from serving.snapshot import snapshot
from serving.store.families import key
from serving.store.protocol import StoreDown
from serving.store.redis import VERSIONS, RedisStore, connect, version_in_force
from serving.versions import count_keys, pointers, read_meta
from tests.serving.world import END, LIVE, linear_models, random_world

pytestmark = pytest.mark.redis
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    return random_world(np.random.default_rng(5)).write(tmp_path_factory.mktemp("published"))


def live_store(client) -> RedisStore:
    return RedisStore(client, version_in_force(client))


def likes(client, post_id: int) -> int:
    return len(live_store(client).get_many([key("engagers", post_id)])[0] or b"") // 24


def like(client, post_id: int, event_id: str, user_id: int = 1) -> dict[str, bool]:
    meta = read_meta(client, version_in_force(client))
    event = LiveEvent("like", user_id, END + 1000, post_id, 2, 1)
    return EventLog(client, meta.log_id, meta.live_us).commit({event_id: event})


def test_redis_serves_what_memory_serves_post_by_post(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    memory, live = snapshot(workspace, END), live_store(redis_client)
    shown = 0
    for user_id in range(1, 13):
        pool = np.arange(100, 220)
        for name in POLICIES:
            feeds = [
                pool_policy(name, linear_models(), LIVE, rng=np.random.default_rng(1)).run(
                    Query(user_id, END + 1, 8, pool_N=pool), store
                )
                for store in (memory, live)
            ]
            np.testing.assert_array_equal(feeds[0].post_id_K, feeds[1].post_id_K)
            np.testing.assert_array_equal(feeds[0].inputs_KF, feeds[1].inputs_KF)
            np.testing.assert_array_equal(feeds[0].score_K, feeds[1].score_K)
            shown += len(feeds[0])
        whole = [
            serving_policy("full", linear_models(), LIVE).run(Query(user_id, END + 1, 8), s) for s in (memory, live)
        ]
        np.testing.assert_array_equal(whole[0].post_id_K, whole[1].post_id_K)
    assert shown > 200


def test_an_acknowledged_event_counts_once_and_outlives_the_next_publish_and_a_rollback(
    workspace, redis_client, redis_url
):
    publish(workspace, redis_url)
    before = likes(redis_client, 200)
    assert like(redis_client, 200, "a") == {"a": True}
    assert like(redis_client, 200, "a") == {"a": False}
    assert likes(redis_client, 200) == before + 1
    report = publish(workspace, redis_url)
    assert report["live_events_applied"] == 1 and likes(redis_client, 200) == before + 1
    like(redis_client, 200, "b")
    back = rollback(workspace, redis_url)
    assert back["before"] == report["version"] and likes(redis_client, 200) == before + 2
    like(redis_client, 200, "c")
    rollback(workspace, redis_url)
    assert version_in_force(redis_client) == report["version"] and likes(redis_client, 200) == before + 3
    assert publish(workspace, redis_url)["live_events_applied"] == 3 and likes(redis_client, 200) == before + 3


def test_events_of_another_log_are_not_mixed_in(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    EventLog(redis_client, "another log", LIVE).commit({"x": LiveEvent("like", 1, END + 5, 200, 2, 1)})
    assert publish(workspace, redis_url)["live_events_skipped"] == 1


def test_only_the_version_in_force_and_the_one_before_it_are_kept(workspace, redis_client, redis_url):
    made = [publish(workspace, redis_url)["version"] for _ in range(4)]
    assert {one.decode() for one in redis_client.smembers(VERSIONS)} == set(made[2:])
    assert not count_keys(redis_client, made[0]) and not count_keys(redis_client, made[1])
    assert pointers(redis_client) == (made[3], made[2])


def test_rollback_without_an_earlier_version_and_publish_without_features_are_refused(
    workspace, redis_client, redis_url, tmp_path
):
    publish(workspace, redis_url)
    with pytest.raises(BadInput, match="no version before"):
        rollback(workspace, redis_url)
    with pytest.raises(BadInput, match="holds no log yet"):
        publish(Workspace(tmp_path), redis_url)
    assert version_in_force(redis_client)


def test_a_publisher_killed_half_way_leaves_the_old_version_and_the_next_one_sweeps(workspace, redis_client, redis_url):
    first = publish(workspace, redis_url)["version"]
    program = (
        "import serving.publish as p, time, sys\n"
        "from contracts.workspace import Workspace\n"
        "from serving.settings import PublishSettings\n"
        "real = p.state_items\n"
        "def slowly(build):\n"
        "    for at, item in enumerate(real(build)):\n"
        "        if at == 6: print('half', flush=True); time.sleep(60)\n"
        "        yield item\n"
        "p.state_items = slowly\n"
        f"p.publish(Workspace({str(workspace.root)!r}), {redis_url!r}, PublishSettings(lock_s=2))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline().strip() == b"half"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    half = [one.decode() for one in redis_client.smembers(VERSIONS) if one.decode() != first]
    assert version_in_force(redis_client) == first and count_keys(redis_client, half[0])
    report = publish(workspace, redis_url)
    assert half[0] in report["removed_versions"] and not count_keys(redis_client, half[0])
    assert pointers(redis_client) == (report["version"], first)


def test_the_clock_goes_on_from_the_logs_end_and_never_back(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    first = read_meta(redis_client, version_in_force(redis_client)).clock_offset_us
    time.sleep(0.05)
    publish(workspace, redis_url)
    second = read_meta(redis_client, version_in_force(redis_client)).clock_offset_us
    assert abs(first - second) < 20_000, "the second publish would have set the clock back to the log's end"


def test_what_was_acknowledged_is_there_after_the_server_is_killed(workspace, tmp_path):
    server = RedisServer(tmp_path / "redis")
    server.start()
    client = connect(server.url)
    publish(workspace, server.url)
    before = likes(client, 200)
    for at in range(25):
        assert like(client, 200, f"e{at}", user_id=at)[f"e{at}"]
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    with pytest.raises(StoreDown, match="does not answer"):
        like(client, 200, "late")
    again = RedisServer(tmp_path / "redis")
    again.start()
    try:
        client = connect(again.url)
        assert likes(client, 200) == before + 25
        assert like(client, 200, "e3", user_id=3) == {"e3": False}, (
            "an id that was counted before the crash counts once"
        )
        assert publish(workspace, again.url)["live_events_applied"] == 25
    finally:
        again.stop()
