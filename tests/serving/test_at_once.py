"""Feeds of one viewer that are asked for at the same time show different posts, as pages one after the other would."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from serving.changes import seen_mutation
from serving.feed import Query, serving_policy
from serving.feed.side_effects import Served
from serving.publish import publish
from serving.store.protocol import StoreDown
from serving.store.redis import FEED_LOG, RedisStore, connect, version_in_force
from tests.serving.test_api import small_world
from tests.serving.world import END, LIVE, linear_models

pytestmark = pytest.mark.redis


@pytest.fixture
def store(tmp_path, redis_client, redis_url) -> RedisStore:
    publish(small_world().write(tmp_path), redis_url)
    return RedisStore(redis_client, version_in_force(redis_client))


class Together(Served):
    """Waits before the first feeds are kept until all have been selected."""

    def __init__(self, parties: int):
        super().__init__({"log": "test"}, LIVE, 1000)
        self.barrier, self.waiting = Barrier(parties), set()

    def run(self, run, feed) -> None:
        if feed.query.request_id not in self.waiting:
            self.waiting.add(feed.query.request_id)
            self.barrier.wait(timeout=60)
        super().run(run, feed)


def test_feeds_of_one_viewer_made_at_once_share_no_post(store, redis_url):
    at_once = 8
    pipeline = serving_policy("full", linear_models(), LIVE, side_effects=[Together(at_once)])

    def feed(request_id: int) -> list[int]:
        mine = RedisStore(connect(redis_url, 30), store.version)
        return pipeline.run(Query(1, END + 1, 6, request_id), mine).post_id_K.tolist()

    with ThreadPoolExecutor(at_once) as threads:
        feeds = list(threads.map(feed, range(1, at_once + 1)))
    shown = [post_id for one in feeds for post_id in one]
    assert len(shown) == len(set(shown)) == 6 * at_once
    assert store.client.xlen(FEED_LOG) == at_once


class Rival(Served):
    """Another feed of the viewer is shown just before each of the first `times` is kept."""

    def __init__(self, times: int):
        super().__init__({"log": "test"}, LIVE, 1000)
        self.times, self.selected = times, []

    def run(self, run, feed) -> None:
        self.selected.append(feed.post_id_K.tolist())
        if len(self.selected) <= self.times:
            shown = [seen_mutation(feed.query.user_id, one, END, LIVE, "served") for one in self.selected[-1]]
            run.store.apply(shown)
        super().run(run, feed)


@pytest.mark.parametrize("size", [4, 30])
def test_a_feed_that_was_overtaken_is_selected_again_from_what_is_left(store, size):
    rival = Rival(2)
    feed = serving_policy("full", linear_models(), LIVE, side_effects=[rival]).run(Query(1, END + 1, size), store)
    taken = {post_id for one in rival.selected[:2] for post_id in one}
    assert len(rival.selected) == 3 and len(feed) == min(size, 81 - len(taken))
    assert not taken & set(feed.post_id_K.tolist()) and not taken & set(feed.considered_N.tolist())


def test_a_viewer_who_is_always_overtaken_gets_one_sentence(store):
    pipeline = serving_policy("chronological", linear_models(), LIVE, side_effects=[Rival(10**6)])
    with pytest.raises(StoreDown, match="user 1 asks for too many feeds at once"):
        pipeline.run(Query(1, END + 1, 1), store)
