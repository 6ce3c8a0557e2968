"""Nobody sees what is blocked, hidden, deleted or not meant for them, wherever in a chain of shares it stands."""

import itertools

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from contracts.served import FOREVER, Document, LiveEvent
from serving.changes import INCOMING, block_mutations, seen_mutation
from serving.feed import Query, pool_policy, serving_policy
from serving.feed.filters import blocked_authors
from serving.live_events import ended, mutations_of
from serving.snapshot import snapshot
from serving.store.families import key
from serving.store.memory import MemoryStore
from serving.store.packing import pack, unpack_document
from tests.serving.world import END, LIVE, World, linear_models

VIEWER, SHARER, MIDDLE, ROOT = 1, 2, 3, 4
CHAIN = {"author": SHARER, "quoted": MIDDLE, "ancestor": ROOT}
KINDS = {"block": (True, True), "hide_their_posts": (True, False), "deny_my_posts": (False, True)}
"""Kind -> (hides the target from who makes it, hides who makes it from the target)."""


def chain_world(visibility: str = "public", **root) -> World:
    """ROOT writes 10, MIDDLE quotes it as 11, SHARER shares that as 12; 20 and 21 are there to fill the feed."""
    world = World()
    for user_id in range(1, 7):
        world.user(user_id)
    for friend in (SHARER, MIDDLE, ROOT, 5):
        world.friend(VIEWER, friend)
    world.post(10, ROOT, END - 9 * HOUR, visibility=visibility, **root)
    world.post(11, MIDDLE, END - 8 * HOUR, origin_post_id=10, kind="quote")
    world.post(12, SHARER, END - 7 * HOUR, origin_post_id=11)
    world.post(20, 5, END - 6 * HOUR, topic=2)
    world.post(21, 6, END - 5 * HOUR, topic=3)
    return world


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> MemoryStore:
    return snapshot(chain_world().write(tmp_path_factory.mktemp("chain")), END)


@pytest.fixture
def store(built) -> MemoryStore:
    """The chain's world, each test's own."""
    return MemoryStore(built.values)


def pool_feed(store, size: int = 8, viewer: int = VIEWER) -> list[int]:
    query = Query(viewer, END + 1, size, pool_N=np.array([10, 11, 12, 20, 21]))
    return sorted(pool_policy("chronological", linear_models(), LIVE).run(query, store).post_id_K.tolist())


def open_feed(store, size: int = 8) -> list[int]:
    return serving_policy("full", linear_models(), LIVE).run(Query(VIEWER, END + 1, size), store).post_id_K.tolist()


def tainted(position: str) -> set[int]:
    """The posts that carry the person at `position` of the chain."""
    return {"author": {12}, "quoted": {11, 12}, "ancestor": {10, 11, 12}}[position]


@pytest.mark.parametrize("position", CHAIN)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_viewer", [True, False], ids=["made by the viewer", "made by the author"])
@pytest.mark.parametrize("when", ["made between two pages", "ended"])
def test_a_block_reaches_every_post_that_carries_the_person(store, position, kind, by_viewer, when):
    person = CHAIN[position]
    maker, target = (VIEWER, person) if by_viewer else (person, VIEWER)
    hides = KINDS[kind][0 if by_viewer else 1] and when != "ended"
    assert pool_feed(store) == [10, 11, 12, 20, 21]  # the page before
    store.apply(block_mutations(maker, target, kind, END - HOUR))
    if when == "ended":
        store.apply(block_mutations(maker, target, kind, END - HOUR, END - 1))
    expected = {10, 11, 12, 20, 21} - (tainted(position) if hides else set())
    assert pool_feed(store) == sorted(expected)
    assert set(open_feed(store)) <= expected


def test_blocks_of_the_log_hide_like_those_made_live(tmp_path, store):
    world = chain_world()
    made = [
        (VIEWER, 5, "block"),
        (MIDDLE, VIEWER, "deny_my_posts"),
        (VIEWER, 6, "hide_their_posts"),
        (VIEWER, 2, "deny_my_posts"),
    ]
    for one in made:
        world.block(*one, END - DAY)
        store.apply(block_mutations(*one, END - DAY))
    assert pool_feed(snapshot(world.write(tmp_path), END)) == pool_feed(store) == [10]


@pytest.mark.parametrize("broken", ["absent", "torn"])
def test_a_failed_look_up_of_blocks_shows_nothing(store, broken):
    assert pool_feed(store)
    if broken == "absent":
        del store.values[key("blocks", VIEWER)]
    else:
        store.values[key("blocks", VIEWER)] = b"torn"
    query = Query(VIEWER, END + 1, pool_N=np.array([10, 20]))
    feed = pool_policy("full", linear_models(), LIVE).run(query, store)
    assert len(feed) == 0 and any("blocks" in reason for reason in feed.degraded)


@pytest.mark.parametrize("missing", [10, 11])
def test_a_share_of_what_cannot_be_looked_up_is_not_shown(store, missing):
    del store.values[key("doc", missing)]
    assert not {12, missing} & set(pool_feed(store))


def test_a_block_made_while_the_feed_is_selected_is_obeyed_and_its_places_are_filled(tmp_path):
    world = chain_world()
    for post_id in range(30, 36):
        world.post(post_id, 5, END - post_id * HOUR // 10)
    store = snapshot(world.write(tmp_path), END)
    pipeline = serving_policy("full", linear_models(), LIVE)
    prepared = pipeline.prepare(Query(VIEWER, END + 1, 4), store)
    store.apply(block_mutations(VIEWER, ROOT, "block", END))
    feed = pipeline.rank(prepared)
    assert len(feed) == 4 and not tainted("ancestor") & set(feed.post_id_K.tolist())


VISIBLE_TO_FRIENDS = [
    ("public", {}, True, True),
    ("friends", {}, True, False),
    ("list", {"audience": [VIEWER]}, True, True),
    ("list", {"audience": [5]}, False, False),
    ("private", {}, False, False),
]


@pytest.mark.parametrize(("visibility", "more", "to_friend", "to_stranger"), VISIBLE_TO_FRIENDS)
def test_an_originals_audience_holds_for_all_that_pass_it_on(tmp_path, visibility, more, to_friend, to_stranger):
    for friend, sees in ((True, to_friend), (False, to_stranger)):
        world = chain_world(visibility, **more)
        if not friend:
            world.rows["friendships"] = [
                r for r in world.rows["friendships"] if {r["user_id"], r["friend_id"]} != {VIEWER, ROOT}
            ]
        store = snapshot(world.write(tmp_path / str(friend)), END)
        assert ({10, 11, 12} <= set(pool_feed(store))) == sees
        assert bool({10, 11, 12} & set(pool_feed(store))) == sees


def test_following_somebody_opens_nothing_that_is_for_their_friends(tmp_path):
    world = World()
    for user_id in (1, 2, 3):
        world.user(user_id)
    world.friend(1, 2, mutual=False, kind="follow")
    world.friend(3, 1, mutual=False, kind="follow")  # being followed opens nothing either
    world.post(10, 2, END - HOUR, visibility="friends")
    world.post(11, 3, END - HOUR, visibility="friends")
    assert pool_feed(snapshot(world.write(tmp_path), END)) == []


def test_deleted_hidden_seen_own_and_old_posts_are_not_shown(tmp_path):
    world = chain_world()
    world.act(VIEWER, 11, "hide", END - HOUR)  # hides 11 and its share 12
    world.post(13, VIEWER, END - HOUR)
    world.post(14, 5, END - LIVE)
    world.post(15, 5, END - HOUR, deleted_at=END - 1)
    world.post(16, 5, END - HOUR)
    world.show(1, VIEWER, [16], END - HOUR // 2)
    store = snapshot(world.write(tmp_path), END)
    query = Query(VIEWER, END + 1, 20, pool_N=np.arange(10, 22))
    feed = pool_policy("chronological", linear_models(), LIVE).run(query, store)
    assert feed.post_id_K.tolist() == [21, 20, 10]


def test_a_deleted_original_takes_its_shares_along(store):
    document = unpack_document(store.values[key("doc", 10)])
    store.apply(mutations_of(LiveEvent("delete_post", ROOT, END, 10, document=ended(document, END)), LIVE))
    assert pool_feed(store) == [20, 21]


def test_blocks_of_every_kind_and_direction_hide_as_their_names_say():
    rows = {"block": 0, "hide_their_posts": 1, "deny_my_posts": 2}
    for (kind, code), incoming in itertools.product(rows.items(), (0, INCOMING)):
        hidden = blocked_authors(np.array([[7, code + incoming, 1, FOREVER]]), END)
        assert (7 in hidden) == KINDS[kind][1 if incoming else 0], (kind, incoming)


def test_a_post_is_never_shown_twice_over_hundreds_of_pages(tmp_path):
    world = World()
    for user_id in range(1, 41):
        world.user(user_id)
        if user_id > 1:
            world.friend(1, user_id)
    for post_id in range(1000, 1600):
        world.post(post_id, 2 + post_id % 39, END - LIVE + (post_id - 999) * 10 * 60_000_000, topic=post_id % 6)
    store = snapshot(world.write(tmp_path), END)
    pipeline, seen = serving_policy("full", linear_models(), LIVE), []
    for page in range(300):
        now = END + page + 1
        feed = pipeline.run(Query(VIEWER, now, 2), store)
        seen += feed.post_id_K.tolist()
        store.apply(seen_mutation(VIEWER, one, now, LIVE, "served") for one in feed.post_id_K.tolist())
    assert len(seen) == len(set(seen)) >= 590


def test_a_new_post_is_in_the_next_feed_of_a_friend(store):
    document = Document(99, 5, (), END, END, FOREVER, 0, 1, 1, -1, (), "fresh", b"")
    store.apply(mutations_of(LiveEvent("post", 5, END, 99, 5, 1, document=pack(document)), LIVE))
    assert 99 in open_feed(store)
