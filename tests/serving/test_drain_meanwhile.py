"""What is acknowledged while served feeds and events go into the lake is in the next version, and in the next drain."""

from dataclasses import replace

import pytest

import serving.feedback as feedback_room
from contracts.served import LiveEvent
from contracts.tables import ACTIONS
from serving.feedback import drain
from serving.live_events import EventLog
from serving.publish import publish
from serving.store.redis import EVENTS, IDENTITY, connect, stream_name, version_in_force
from serving.versions import log_identity, read_meta
from tests.serving.reference import write_states
from tests.serving.test_api import small_world
from tests.serving.test_publish import likes
from tests.serving.world import END

pytestmark = pytest.mark.redis
POST = 120


@pytest.fixture
def workspace(tmp_path):
    return small_world().write(tmp_path)


def like(client, workspace, user_id: int, at: int) -> None:
    dataset = workspace.dataset()
    event = LiveEvent("like", user_id, at, POST, 2, 1)
    EventLog(client, log_identity(dataset), dataset.live_us).commit({f"{user_id} at {at}": event})


def build_and_publish(workspace, url) -> dict:
    write_states(workspace, workspace.dataset().end)
    return publish(workspace, url)


def actions(workspace) -> int:
    return workspace.lake.manifest(ACTIONS).rows


def test_an_event_that_arrives_during_a_drain_is_neither_lost_nor_counted_twice(
    workspace, redis_client, redis_url, monkeypatch
):
    publish(workspace, redis_url)
    like(redis_client, workspace, 1, END + 5000)
    real = feedback_room._all_feeds

    def slowly(client, *more):
        # Between the reading of the events and that of the feeds; its moment is before the last one drained.
        like(redis_client, workspace, 3, END + 4000)
        return real(client, *more)

    monkeypatch.setattr(feedback_room, "_all_feeds", slowly)
    assert drain(workspace, redis_url)["actions"] == 1 == actions(workspace)
    monkeypatch.undo()
    assert workspace.dataset().end == END + 5001
    report = build_and_publish(workspace, redis_url)
    assert (report["live_events_applied"], report["live_events_skipped"]) == (1, 1)
    assert likes(redis_client, POST) == 2
    assert drain(workspace, redis_url)["actions"] == 2 == actions(workspace)
    assert workspace.dataset().end > END + 5001, "features have to be built anew, as the log has an earlier event more"
    report = build_and_publish(workspace, redis_url)
    assert report["live_events_applied"] == 0 and likes(redis_client, POST) == 2


def test_a_drain_with_nothing_new_leaves_the_log_as_it_is(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    like(redis_client, workspace, 1, END + 5000)
    drain(workspace, redis_url)
    once = workspace.dataset()
    drain(workspace, redis_url)
    assert workspace.dataset() == once and once.drained_to[stream_name(redis_client, EVENTS)] != "0-0"


def test_what_came_from_one_redis_hides_no_event_of_another(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    like(redis_client, workspace, 1, END + 5000)
    drain(workspace, redis_url)
    redis_client.flushall()  # another server, which never wrote what the log has
    build_and_publish(workspace, redis_url)
    like(redis_client, workspace, 3, END + 4000)
    assert build_and_publish(workspace, redis_url)["live_events_applied"] == 1
    assert likes(redis_client, POST) == 2


def test_an_id_that_the_stream_does_not_hold_hides_no_event(workspace, redis_client, redis_url):
    name = stream_name(redis_client, EVENTS)
    dataset = workspace.dataset()
    replace(dataset, drained_to={name: "99999999999999-0"}).save(workspace.dataset_path)
    publish(workspace, redis_url)
    like(redis_client, workspace, 3, END + 1)
    assert publish(workspace, redis_url)["live_events_applied"] == 1


def test_a_redis_keeps_its_name_and_another_has_another(redis_client, redis_url):
    first = stream_name(redis_client, EVENTS)
    assert stream_name(connect(redis_url), EVENTS) == first
    redis_client.delete(IDENTITY)
    assert stream_name(redis_client, EVENTS) != first


def test_a_log_that_grew_otherwise_has_what_is_before_its_end(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    like(redis_client, workspace, 3, END + 1)
    replace(workspace.dataset(), end=END + 10).save(workspace.dataset_path)
    assert build_and_publish(workspace, redis_url)["live_events_skipped"] == 1
    assert read_meta(redis_client, version_in_force(redis_client)).drained_to == ""
