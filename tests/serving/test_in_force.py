"""What was acknowledged is in force whichever version a server still reads, and a version that cannot be served is told."""

import threading
import time

import pytest
from fastapi.testclient import TestClient

import serving.api.deployment as deployment_room
from contracts.errors import BadInput
from contracts.features import FEATURE_VERSION
from serving.api import create_app
from serving.publish import publish, rollback
from serving.settings import ApiSettings
from serving.store.redis import RedisStore, version_in_force
from serving.versions import holds_until
from tests.serving.test_api import UNHURRIED, ids, page, send, small_world
from tests.serving.test_publish import like, likes

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*httpx")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return small_world().write(tmp_path_factory.mktemp("in_force"))


def with_model(folder):
    """A workspace whose value model is two weights, as training would leave it."""
    workspace = small_world().write(folder)
    with workspace.artifacts.create("value_model", feature_version=FEATURE_VERSION) as artifact:
        (artifact.path / "weights.json").write_text('{"like": 1.0}')
    return workspace


@pytest.fixture
def stuck(workspace, redis_client, redis_url, monkeypatch):
    """An API that serves the first version while a second, which it cannot load, is in force."""
    publish(workspace, redis_url)
    settings = ApiSettings(poll_s=0.02, behind_s=0.2)
    app = create_app(workspace, redis_url, settings, UNHURRIED)
    with TestClient(app, raise_server_exceptions=False) as client:

        def broken(*_):
            raise RuntimeError("the model's file ends too early")

        monkeypatch.setattr(deployment_room, "load_models", broken)
        yield client, publish(workspace, redis_url)["version"]


def test_a_block_and_a_deletion_are_in_force_while_an_older_version_than_the_published_is_served(stuck):
    api, published = stuck
    first = page(api, n=2)
    assert first["versions"]["snapshot"] != published
    send(api, kind="block", target_id=4)
    send(api, kind="delete_post", user_id=2, post_id=100)
    later = page(api, n=50)
    assert later["versions"]["snapshot"] != published
    assert 4 not in {item["author"]["user_id"] for item in later["items"]} and 100 not in ids(later)


def test_both_versions_hold_an_event_once_and_a_rollback_replays_nothing_twice(workspace, redis_client, redis_url):
    first = publish(workspace, redis_url)["version"]
    second = publish(workspace, redis_url)["version"]
    before = likes(redis_client, 120)
    like(redis_client, 120, "both")
    assert holds_until(redis_client, first) == holds_until(redis_client, second) != "0-0"
    assert likes(redis_client, 120) == before + 1
    for version in (first, second):
        assert rollback(workspace, redis_url)["live_events_applied"] == 0
        assert version_in_force(redis_client) == version and likes(redis_client, 120) == before + 1


def test_an_earlier_version_that_missed_events_is_replayed_from_there(workspace, redis_client, redis_url):
    first = publish(workspace, redis_url)["version"]
    publish(workspace, redis_url)
    like(redis_client, 120, "one")
    # As if the first version had stopped at the switch.
    RedisStore(redis_client, first).client.delete(RedisStore(redis_client, first).place(b"engagers:120"))
    redis_client.hset(f"{{feedloop}}:{first}:meta", "holds_until", "0-0")
    like(redis_client, 120, "two", user_id=3)
    assert rollback(workspace, redis_url)["live_events_applied"] == 2 and likes(redis_client, 120) == 2


def test_a_model_that_was_cut_short_is_refused_before_the_switch(tmp_path, redis_client, redis_url):
    workspace = with_model(tmp_path)
    first = publish(workspace, redis_url)["version"]
    artifact = workspace.artifacts.load("value_model")
    artifact.file("weights.json").write_text('{"li')
    for attempt in (publish, publish):
        with pytest.raises(BadInput, match="weights.json was changed"):
            attempt(workspace, redis_url)
    assert version_in_force(redis_client) == first


def test_not_ready_while_another_version_than_the_published_is_served(stuck):
    api, published = stuck
    give_up_at = time.monotonic() + 30
    while (answer := api.get("/readyz")).status_code == 200 and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert answer.status_code == 503
    assert f"version {published} is published, but" in answer.json()["error"]
    assert "loading it failed with RuntimeError" in answer.json()["error"]


def test_the_watch_outlives_any_failure_and_loads_what_works_again(stuck, workspace, redis_url, monkeypatch):
    api, _ = stuck
    time.sleep(0.2)
    assert "deployments" in {thread.name for thread in threading.enumerate()}
    monkeypatch.undo()
    published = publish(workspace, redis_url)["version"]
    give_up_at = time.monotonic() + 30
    while api.get("/readyz").json()["version"] != published and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert page(api)["versions"]["snapshot"] == published


def test_a_version_that_was_swept_from_redis_is_not_served_any_more(stuck, workspace, redis_url):
    api, _ = stuck
    assert page(api, n=2)["items"]
    publish(workspace, redis_url)
    give_up_at = time.monotonic() + 30
    while (answer := api.get("/v1/feed?user_id=1")).status_code != 503 and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert answer.status_code == 503 and "cannot be served: loading it failed" in answer.json()["error"]
