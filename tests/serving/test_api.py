"""The API keeps its promises over a real Redis: feeds change with events, pages never repeat, every failure is a sentence."""

import itertools

import numpy as np
import pytest
from fastapi.testclient import TestClient

from contracts.clock import HOUR
from contracts.machine.redis_server import RedisServer
from serving.api import create_app, sample_feed
from serving.api.accept import post_id_of
from serving.api.models import EventsAccepted, FeedResponse, Person, TopicList, UserList
from serving.feed.side_effects import decode_record
from serving.publish import publish
from serving.settings import ApiSettings, FeedSettings
from serving.store.redis import FEED_LOG, connect
from tests.serving.world import END, World, random_world

pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*httpx")]
UNHURRIED = FeedSettings(source_deadline_ms=5e3, hydrate_deadline_ms=5e3, rank_deadline_ms=5e3)
_numbers = itertools.count()


def small_world() -> World:
    """User 1 with friends 2 to 9, who wrote ten posts each, of whom 2 and 3 are friends; 10 and 12 have each other; 11 shares."""
    world = World()
    for user_id in range(1, 13):
        world.user(user_id, "Lima")
    for friend in (*range(2, 10), 11):
        world.friend(1, friend)
    world.friend(2, 3)
    world.friend(10, 12)
    for at in range(80):
        world.post(100 + at, 2 + at % 8, END - (at + 1) * HOUR, topic=at % 6)
    world.post(300, 10, END - HOUR, visibility="public")
    world.post(301, 11, END - HOUR // 2, origin_post_id=300)
    return world


def page(api, user_id: int = 1, n: int = 10, **more) -> dict:
    answer = api.get("/v1/feed", params={"user_id": user_id, "n": n, **more})
    assert answer.status_code == 200, answer.text
    return FeedResponse.model_validate(answer.json()).model_dump()


def ids(feed: dict) -> list[int]:
    return [item["post_id"] for item in feed["items"]]


def send(api, **event) -> EventsAccepted:
    event.setdefault("event_id", f"event {next(_numbers)}")
    answer = api.post("/v1/events", json={"events": [{"user_id": 1, **event}]})
    assert answer.status_code == 202, answer.text
    return EventsAccepted.model_validate(answer.json())


def test_pages_never_repeat_a_post_not_even_after_a_restart_or_a_publish(api, workspace, redis_url):
    seen = [ids(page(api, n=7)) for _ in range(3)]
    with TestClient(create_app(workspace, redis_url, feed_settings=UNHURRIED)) as again:
        seen += [ids(page(again, n=7)) for _ in range(2)]
        publish(workspace, redis_url)
        seen += [ids(page(again, n=7)) for _ in range(2)]
    with TestClient(create_app(workspace, redis_url, feed_settings=UNHURRIED)) as third:
        while more := ids(page(third, n=7)):
            seen.append(more)
    flat = [post_id for some in seen for post_id in some]
    assert len(flat) == len(set(flat)) == 81


def test_a_page_tells_who_what_when_and_why(api):
    feed = page(api, n=50)
    share = next(item for item in feed["items"] if item["post_id"] == 301)
    assert share["author"]["name"] == "Person 11" and share["original"]["author"]["name"] == "Person 10"
    assert share["tie"] in ("friend", "close_friend", "new_friend") and share["reasons"]
    assert share["age_s"] == pytest.approx(1800, abs=120) and share["topic"]["name"] == "topic 1"
    assert [item["position"] for item in feed["items"]] == list(range(len(feed["items"])))
    assert feed["degraded"] == [] and feed["versions"]["snapshot"]


def test_a_block_made_between_two_pages_is_obeyed_on_the_next_and_ends_with_it(api):
    first = page(api, n=5)
    target = next(one["author"]["user_id"] for one in first["items"] if one["author"]["user_id"] < 10)
    send(api, kind="block", target_id=target)
    for _ in range(3):
        assert target not in {item["author"]["user_id"] for item in page(api, n=8)["items"]}
    send(api, kind="unblock", target_id=target)
    assert target in {item["author"]["user_id"] for item in page(api, n=50)["items"]}


def test_the_share_of_a_blocked_persons_post_is_gone_with_them(api):
    send(api, kind="block", target_id=10, block_kind="hide_their_posts")
    assert not {300, 301} & set(ids(page(api, n=50)))


def test_a_friends_like_is_seen_and_told(api):
    assert send(api, kind="like", post_id=140, user_id=3, event_id="same").accepted == 1
    assert send(api, kind="like", post_id=140, user_id=3, event_id="same").repeated == 1
    item = next(one for one in page(api, n=50)["items"] if one["post_id"] == 140)
    assert item["engagement"] == {"likes": 1, "comments": 0, "shares": 0}
    assert item["reasons"][0] == {"code": "friend_engaged", "text": "Person 3 reacted to this"}
    assert [one["user_id"] for one in item["friends_engaged"]] == [3]


def test_a_new_post_is_in_the_next_page_of_a_friend_and_gone_once_deleted(api):
    made = [
        send(api, kind="post", user_id=2, text="hello", topic=3, event_id="p", visibility="friends") for _ in range(2)
    ]
    assert made[0].posts == made[1].posts and made[1].repeated == 1
    post_id = made[0].posts["p"]
    quote = send(api, kind="post", user_id=3, text="look", origin_post_id=post_id, event_id="q").posts["q"]
    found = {item["post_id"]: item for item in page(api, n=50, policy="chronological")["items"]}
    assert {post_id, quote} & set(found)
    send(api, kind="delete_post", user_id=2, post_id=post_id)
    send(api, kind="post", user_id=4, text="<b>&", topic=2, event_id="r")
    assert not {post_id, quote} & set(ids(page(api, n=50, policy="chronological")))


def test_the_feed_log_holds_what_training_needs(api, redis_url):
    feed = page(api, n=4)
    entries = connect(redis_url).xrevrange(FEED_LOG, count=1)
    record = decode_record(entries[0][1][b"feed"])
    assert (record.request_id, record.post_ids, record.policy) == (feed["request_id"], ids(feed), "full")
    assert record.propensities == [1.0] * 4 and len(np.frombuffer(record.features, "<f8")) % 4 == 0
    assert set(record.post_ids) < set(record.considered_ids) and len(record.considered_ids) == 81


def test_people_and_topics_for_the_page(api):
    users = UserList.model_validate(api.get("/v1/users", params={"n": 3, "seed": 1}).json())
    assert users.total == 12 and len(users.users) == 3
    assert users == UserList.model_validate(api.get("/v1/users", params={"n": 3, "seed": 1}).json())
    assert [
        u.user_id for u in UserList.model_validate(api.get("/v1/users", params={"q": "person 1"}).json()).users
    ] == [1, 10, 11, 12]
    assert Person.model_validate(api.get("/v1/users/1").json()).friends == 9
    assert len(TopicList.model_validate(api.get("/v1/topics").json()).topics) == 6


def batch(api, *events: dict, status: int = 202) -> dict:
    """The answer to events of user 1 (unless they say otherwise) in one batch."""
    named = [{"event_id": f"event {next(_numbers)}", "user_id": 1, **event} for event in events]
    answer = api.post("/v1/events", json={"events": named})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_an_unblock_ends_the_block_before_it_in_the_same_batch(api):
    block, unblock = {"kind": "block", "target_id": 2}, {"kind": "unblock", "target_id": 2}
    batch(api, block, unblock)
    assert 2 in {item["author"]["user_id"] for item in page(api, n=50)["items"]}
    batch(api, block, unblock, block)
    assert 2 not in {item["author"]["user_id"] for item in page(api, n=50)["items"]}


def test_a_post_can_be_liked_passed_on_and_deleted_in_the_batch_that_makes_it(api):
    post = {"kind": "post", "user_id": 2, "text": "hello", "topic": 3, "event_id": "in a batch"}
    post_id = post_id_of(2, "in a batch")
    quote = {"kind": "post", "user_id": 3, "text": "look", "origin_post_id": post_id, "event_id": "quote in a batch"}
    made = batch(api, post, {"kind": "like", "user_id": 3, "post_id": post_id}, quote)
    assert made["accepted"] == 3 and made["posts"]["in a batch"] == post_id
    found = {item["post_id"]: item for item in page(api, n=50, policy="chronological")["items"]}
    assert found[made["posts"]["quote in a batch"]]["original"]["post_id"] == post_id
    gone = {**post, "event_id": "at once gone"}
    delete = {"kind": "delete_post", "user_id": 2, "post_id": post_id_of(2, "at once gone")}
    assert batch(api, gone, delete)["accepted"] == 2
    assert "there is no post" in batch(api, delete, {"kind": "like", "post_id": delete["post_id"]}, status=404)["error"]
    assert delete["post_id"] not in ids(page(api, user_id=3, n=50, policy="chronological"))


def test_the_first_of_two_events_with_one_id_counts_and_the_second_is_repeated(api):
    like = {"kind": "like", "user_id": 3, "post_id": 140, "event_id": "twice"}
    assert batch(api, like, {**like, "post_id": 141}, {**like, "kind": "comment"}) == {
        "accepted": 1, "repeated": 2, "posts": {}}  # fmt: skip
    shown = {item["post_id"]: item["engagement"] for item in page(api, n=50)["items"]}
    assert shown[140] == {"likes": 1, "comments": 0, "shares": 0}
    assert shown[141] == {"likes": 0, "comments": 0, "shares": 0}
    post = {"kind": "post", "user_id": 2, "text": "first", "topic": 3, "event_id": "posted twice"}
    answer = batch(api, post, {**post, "text": "second"})
    assert (answer["accepted"], answer["repeated"], list(answer["posts"])) == (1, 1, ["posted twice"])
    newest = page(api, n=50, policy="chronological")["items"]
    assert [one["text"] for one in newest if one["post_id"] == answer["posts"]["posted twice"]] == ["first"]


def test_a_batch_whose_answer_was_lost_can_be_sent_again_whatever_it_did(api):
    like = {"kind": "like", "user_id": 3, "post_id": 101, "event_id": "like, then gone"}
    delete = {"kind": "delete_post", "user_id": 3, "post_id": 101, "event_id": "gone"}
    assert batch(api, like, delete)["accepted"] == 2
    assert batch(api, like, delete) == {"accepted": 0, "repeated": 2, "posts": {}}


@pytest.mark.parametrize(
    ("blocker", "blocked", "kind", "told"),
    [
        (1, 3, "block", False),
        (3, 1, "block", False),
        (1, 3, "hide_their_posts", False),
        (3, 1, "deny_my_posts", False),
        (1, 3, "deny_my_posts", True),
        (3, 1, "hide_their_posts", True),
    ],
)
def test_what_a_friend_does_is_told_unless_a_block_stands_between(api, blocker, blocked, kind, told):
    batch(api, {"kind": "like", "user_id": 3, "post_id": 140}, {"kind": "comment", "user_id": 5, "post_id": 140})
    batch(api, {"kind": "block", "user_id": blocker, "target_id": blocked, "block_kind": kind})
    item = next(one for one in page(api, n=50)["items"] if one["post_id"] == 140)
    assert {one["user_id"] for one in item["friends_engaged"]} == ({3, 5} if told else {5})
    assert ("Person 3" in item["reasons"][0]["text"]) == told and "Person 5" in item["reasons"][0]["text"]


def unseen_by_user_10(api) -> dict[str, tuple[int, int]]:
    """(author, post) that user 10, whom only user 12 has as a friend, may not see, by why."""

    def post(user_id: int, name: str, **more) -> tuple[int, int]:
        return user_id, batch(api, {"kind": "post", "user_id": user_id, "text": "x", "topic": 1, "event_id": name, **more})[
            "posts"][name]  # fmt: skip

    found = {
        "friends": post(2, "friends"),
        "list": post(2, "list", visibility="list", audience=[3]),
        "private": post(2, "private", visibility="private"),
        "share of friends": post(3, "share", text="", origin_post_id=post(2, "origin")[1], visibility="public"),
        "block": post(4, "of a blocker", visibility="public"),
        "deny_my_posts": post(5, "of a denier", visibility="public"),
        "blocked by oneself": post(6, "of somebody blocked", visibility="public"),
    }
    batch(
        api,
        {"kind": "block", "user_id": 4, "target_id": 10},
        {"kind": "block", "user_id": 5, "target_id": 10, "block_kind": "deny_my_posts"},
        {"kind": "block", "user_id": 10, "target_id": 6},
    )
    return found


def test_a_post_that_somebody_may_not_see_is_to_them_as_if_it_were_not_there(api):
    acts = ({"kind": "like"}, {"kind": "comment"}, {"kind": "report"}, {"kind": "delete_post"}, {"kind": "post"})
    for why, (author, post_id) in unseen_by_user_10(api).items():
        for act in acts:
            at = "origin_post_id" if act["kind"] == "post" else "post_id"
            refused, absent = (batch(api, {**act, "user_id": 10, "event_id": "e", at: one}, status=404)["error"]
                               for one in (post_id, 5))  # fmt: skip
            assert refused == absent.replace("no post 5", f"no post {post_id}"), (why, act)
        batch(api, {"kind": "like", "user_id": author, "post_id": post_id},
              {"kind": "delete_post", "user_id": author, "post_id": post_id})  # fmt: skip


def test_whoever_may_see_a_post_may_act_on_it_and_whoever_lost_sight_of_it_may_not(api):
    post = {"kind": "post", "user_id": 2, "text": "x", "topic": 1, "visibility": "friends", "event_id": "seen"}
    post_id = batch(api, post)["posts"]["seen"]
    like, block = {"kind": "like", "user_id": 1, "post_id": post_id}, {"kind": "block", "target_id": 2}
    batch(api, like, {"kind": "post", "text": "look", "origin_post_id": post_id})
    batch(api, block, like, status=404)
    batch(api, like, block)
    batch(api, like, status=404)


def test_nobody_whose_blocks_are_unknown_acts_on_another_ones_post(api, redis_client):
    for name in redis_client.scan_iter("*:blocks:10"):
        redis_client.delete(name)
    batch(api, {"kind": "like", "user_id": 10, "post_id": 100}, status=404)
    batch(api, {"kind": "like", "user_id": 10, "post_id": 300})


def test_not_ready_before_anything_is_published_then_ready_without_a_restart(workspace, redis_client, redis_url):
    settings = ApiSettings(poll_s=0.05)
    with TestClient(create_app(workspace, redis_url, settings), raise_server_exceptions=False) as api:
        assert api.get("/healthz").status_code == 200
        for path in ("/readyz", "/v1/feed?user_id=1"):
            answer = api.get(path)
            assert answer.status_code == 503 and "nothing is published yet" in answer.json()["error"]
        publish(workspace, redis_url)
        assert api.get("/readyz").json()["status"] == "ok" and page(api)["items"]


def test_a_dead_redis_is_503_in_one_sentence_and_nothing_is_acknowledged(workspace, tmp_path):
    server = RedisServer(tmp_path / "redis")
    server.start()
    publish(workspace, server.url)
    with TestClient(create_app(workspace, server.url, feed_settings=UNHURRIED), raise_server_exceptions=False) as api:
        assert page(api)["items"]
        server.stop()
        like = {"events": [{"kind": "like", "event_id": "e", "user_id": 1, "post_id": 100}]}
        for answer in (api.get("/v1/feed?user_id=1"), api.post("/v1/events", json=like), api.get("/readyz")):
            assert answer.status_code == 503 and "Redis does not answer" in answer.json()["error"]
        assert api.get("/healthz").status_code == 200


def test_metrics_count_feeds_by_policy_and_version_and_time_each_stage(api):
    version = page(api)["versions"]["snapshot"]
    api.get("/v1/feed?user_id=999")
    text = api.get("/metrics").text
    assert f'feed_requests_total{{policy="full",status="200",version="{version}"}} 1.0' in text
    assert 'feed_requests_total{policy="full",status="404",version=""} 1.0' in text
    for stage in ("viewer", "social", "documents", "visible", "features", "rerank", "served"):
        assert f'feed_stage_seconds_count{{stage="{stage}"}} 1.0' in text


def test_a_sample_feed_leaves_no_trace(workspace, redis_client, redis_url):
    publish(workspace, redis_url)
    first, second = (sample_feed(workspace, redis_url, 1, 5) for _ in range(2))
    assert ids(first) == ids(second) and len(first["items"]) == 5
    assert FeedResponse.model_validate(first).viewer.user_id == 1


def test_a_random_world_serves_everybody(tmp_path, rng, redis_client, redis_url):
    workspace = random_world(rng).write(tmp_path)
    publish(workspace, redis_url)
    with TestClient(create_app(workspace, redis_url, feed_settings=UNHURRIED)) as api:
        assert sum(len(page(api, user_id, 20)["items"]) for user_id in range(1, 13)) > 50
