"""Counter states and records change the same way in memory, in Redis and by the formula, in any order, at once."""

import threading

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from contracts.features import FAMILIES
from contracts.tables import ACTION_KINDS
from serving.features.updater import Event, event_mutations
from serving.store.families import KEY_FAMILIES, POST, SEEN, key
from serving.store.memory import MemoryStore
from serving.store.packing import group_records, latest_records, pack_record, unpack_records, unpack_states
from serving.store.protocol import Append, StoreDown
from serving.store.redis import POINTER, RedisStore, connect, version_in_force

NOW = 1_717_000_000_000_000


def random_events(rng: np.random.Generator, count: int) -> list[Event]:
    kinds = (*ACTION_KINDS, "view", "post")
    at = NOW - rng.integers(0, 20 * DAY, count)  # in no order: late events are as good as others
    return [
        Event(kinds[rng.integers(len(kinds))], int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(10, 13)),
              int(rng.integers(2)), int(one), int(one) + 1)
        for one in at
    ]  # fmt: skip


def formula(events: list[Event], family: str, ids: tuple, t: int) -> np.ndarray:
    declared = FAMILIES[family]
    mine = [one for one in events if tuple(getattr(one, name) for name in declared.key) == ids]
    return np.array([
        sum(2.0 ** (-(t - one.occurred_at) / counter.half_life_us) for one in mine if one.kind in counter.kinds)
        for counter in declared.counters
    ])  # fmt: skip


def counters(store, family: str, ids: tuple, t: int) -> np.ndarray:
    from serving.features.hydrate import decayed

    return decayed(unpack_states(store.get_many([key(family, *ids)]), FAMILIES[family].width), family, t)[0]


def stores(redis_client):
    return {"memory": MemoryStore(), "redis": RedisStore(redis_client, "v1")}


@pytest.mark.redis
def test_counters_equal_the_formula_in_both_stores_whatever_the_order_of_events(redis_client, rng):
    events = random_events(rng, 400)
    both = stores(redis_client)
    for store in both.values():
        for event in events:
            store.apply(event_mutations(event))
    for family, ids in [("viewer", (1,)), ("author", (2,)), ("post", (11,)), ("tie", (1, 3)), ("taste", (2, 1))]:
        expected = formula(events, family, ids, NOW + HOUR)
        for name, store in both.items():
            np.testing.assert_allclose(counters(store, family, ids, NOW + HOUR), expected, rtol=1e-12, err_msg=name)
    bare = list(both["memory"].values)
    assert both["redis"].get_many(bare) == [both["memory"].values[one] for one in bare], "the bytes differ"


@pytest.mark.redis
def test_concurrent_events_are_all_counted(redis_client, redis_url):
    store = RedisStore(redis_client, "v1")

    def like_often() -> None:
        mine = RedisStore(connect(redis_url), "v1")
        for at in range(100):
            mine.apply(event_mutations(Event("like", 1, 2, 3, 0, NOW + at, NOW + at)))

    threads = [threading.Thread(target=like_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    likes = FAMILIES["tie"].slot("likes_14d")
    assert counters(store, "tie", (1, 2), NOW + 100)[likes] == pytest.approx(400, rel=1e-9)
    assert len(store.get_many([key("engagers", 3)])[0]) == 400 * 24


@pytest.mark.redis
def test_records_are_appended_and_old_ones_dropped_alike(redis_client):
    both = stores(redis_client)
    for store in both.values():
        for at in range(10):
            horizon = NOW + 4 if at == 7 else 0
            store.apply([Append(key("seen", 1), pack_record(100 + at, NOW + at), SEEN.at_column, horizon)])
        store.apply([Append(key("blocks", 9), b"", 2)])
    kept = {
        name: unpack_records(store.get_many([key("seen", 1)])[0], SEEN)[:, 0].tolist() for name, store in both.items()
    }
    assert kept == {"memory": list(range(104, 110)), "redis": list(range(104, 110))}
    assert [store.get_many([key("blocks", 9), key("blocks", 8)]) for store in both.values()] == [[b"", None]] * 2


@pytest.mark.redis
def test_what_outlives_versions_is_seen_from_another_version_and_expires(redis_client):
    RedisStore(redis_client, "v1").apply([Append(key("served", 1), pack_record(5, NOW), 1, 0, expire_s=60)])
    other = RedisStore(redis_client, "v2")
    assert unpack_records(other.get_many([key("served", 1)])[0], SEEN).tolist() == [[5, NOW]]
    assert 0 < redis_client.ttl(other.place(key("served", 1))) <= 60


def test_every_key_family_says_what_ends_its_life():
    assert {family.owner for family in KEY_FAMILIES.values()} == {"version", "live"}
    assert set(FAMILIES) <= set(KEY_FAMILIES)


@pytest.mark.redis
def test_nothing_published_and_a_dead_server_are_said_in_one_sentence(redis_client):
    redis_client.delete(POINTER)
    with pytest.raises(StoreDown, match="nothing is published"):
        version_in_force(redis_client)
    with pytest.raises(StoreDown, match="does not answer"):
        RedisStore(connect("redis://127.0.0.1:1/0"), "v1").get_many([b"a"])


def test_records_are_grouped_by_id_in_the_given_order():
    rows = np.array([[1, 7], [2, 8], [3, 7], [4, 8]])
    grouped = dict(group_records(np.array([7, 8, 7, 8]), rows))
    assert unpack_records(grouped[8], SEEN).tolist() == [[2, 8], [4, 8]]
    assert group_records(np.zeros(0, np.int64), np.zeros((0, 2), np.int64)) == []
    assert len(unpack_records(None, POST)) == 0


def test_a_later_record_of_the_same_edge_replaces_the_earlier():
    rows = np.array([[5, 0, 10, 99], [6, 0, 10, 99], [5, 0, 10, 50]])
    assert latest_records(rows, 0, 1, 2).tolist() == [[6, 0, 10, 99], [5, 0, 10, 50]]
