"""Keys in Redis that hold what they should not never open anything, and end in one sentence instead of a trace."""

import pytest
from fastapi.testclient import TestClient

from contracts.served import LiveEvent
from serving.api import create_app
from serving.feedback import drain
from serving.live_events import EventLog
from serving.publish import publish
from serving.store.families import key
from serving.store.protocol import StoreDown, Unreadable
from serving.store.redis import EVENTS, FEED_LOG, POINTER, RedisStore, done_key, version_in_force
from serving.versions import read_meta
from tests.serving.test_api import UNHURRIED, ids, page, send, small_world
from tests.serving.world import END

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*httpx")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return small_world().write(tmp_path_factory.mktemp("garbage"))


@pytest.fixture
def api(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    app = create_app(workspace, redis_url, feed_settings=UNHURRIED)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def place(client, *bare) -> bytes:
    return RedisStore(client, version_in_force(client)).place(key(*bare))


def spoil(client, full, how: str) -> None:
    client.delete(full)
    if how == "list":
        client.rpush(full, "a")
    else:
        client.set(full, b"\xff torn")


@pytest.mark.parametrize("how", ["list", "torn"])
@pytest.mark.parametrize("family", ["hidden", "served", "seen", "blocks", "user"])
def test_a_viewers_unreadable_key_shows_nothing(api, redis_client, family, how):
    hidden = ids(page(api, n=2))[0]
    send(api, kind="hide", post_id=hidden)
    spoil(redis_client, place(redis_client, family, 1), how)
    answer = api.get("/v1/feed", params={"user_id": 1, "n": 50})
    assert answer.status_code in (200, 404, 503), answer.text
    if answer.status_code == 200:
        assert answer.json()["items"] == [] and family == "blocks"
    else:
        assert list(answer.json()) == ["error"] and "failed inside" not in answer.text


@pytest.mark.parametrize("how", ["list", "torn"])
def test_an_unreadable_post_is_left_out_and_the_others_are_shown(api, redis_client, how):
    spoil(redis_client, place(redis_client, "doc", 101), how)
    shown = ids(page(api, n=50))
    assert 101 not in shown and len(shown) == 50


@pytest.mark.parametrize("how", ["list", "torn"])
def test_an_unreadable_list_of_one_path_costs_that_path_alone(api, redis_client, how):
    spoil(redis_client, place(redis_client, "by_author", 3), how)
    assert api.get("/v1/feed", params={"user_id": 1, "n": 10}).status_code == 200


@pytest.mark.parametrize("full", [POINTER, EVENTS, FEED_LOG])
def test_a_key_of_another_type_is_503_in_one_sentence(api, redis_client, full):
    redis_client.delete(full)
    redis_client.set(full, "x")
    like = {"events": [{"kind": "like", "event_id": "e", "user_id": 1, "post_id": 100}]}
    if full == FEED_LOG:
        answer = api.get("/v1/feed", params={"user_id": 1, "n": 5})
    else:
        answer = api.post("/v1/events", json=like)
    assert answer.status_code == 503 and "something else than it should" in answer.json()["error"]


@pytest.mark.parametrize(
    ("bare", "how"), [(("engagers", 120), "list"), (("tie", 1, 2), "torn"), (("engagers", 120), "torn")]
)
def test_an_event_that_cannot_be_applied_leaves_nothing_behind_and_counts_once_when_mended(
    api, redis_client, bare, how
):
    version = version_in_force(redis_client)
    meta = read_meta(redis_client, version)
    events = EventLog(redis_client, meta.log_id, meta.live_us)
    event = {"one": LiveEvent("like", 1, END + 1000, 120, 2, 1)}
    spoil(redis_client, place(redis_client, *bare), how)
    watched = [place(redis_client, *one) for one in (("viewer", 1), ("author", 2), ("post", 120), ("taste", 1, 1))]
    before = redis_client.mget(watched)
    for _ in range(2):
        with pytest.raises(StoreDown, match="something else than it should"):
            events.commit(event)
    assert redis_client.mget(watched) == before
    assert redis_client.xlen(EVENTS) == 0 and not redis_client.exists(done_key("one"))
    redis_client.delete(place(redis_client, *bare))
    assert events.commit(event) == {"one": True} and redis_client.mget(watched) != before


def test_a_foreign_entry_of_the_event_stream_is_named(workspace, redis_client, redis_url):
    entry = redis_client.xadd(EVENTS, {"log": "x", "known_at": "1", "event": b"\xc1"}).decode()
    with pytest.raises(Unreadable, match=f"entry {entry} of the stream"):
        publish(workspace, redis_url)


@pytest.mark.parametrize("fields", [{"feed": b"\xc1"}, {"other": "x"}])
def test_a_foreign_entry_of_the_feed_log_is_named(workspace, redis_client, redis_url, fields):
    entry = redis_client.xadd(FEED_LOG, fields).decode()
    with pytest.raises(Unreadable, match=f"entry {entry} of the stream"):
        drain(workspace, redis_url)


def test_an_unreadable_description_of_a_version_is_one_sentence(workspace, redis_client, redis_url):
    version = publish(workspace, redis_url)["version"]
    redis_client.hset(f"{{feedloop}}:{version}:meta", "record", "{")
    with pytest.raises(StoreDown, match="unreadable: publish again"):
        read_meta(redis_client, version)
