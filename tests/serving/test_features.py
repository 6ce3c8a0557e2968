"""Online features equal the declared formulas, read row by row from the log, and never see what is not known yet."""

import math

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from contracts.features import FAMILIES, FEATURES, INPUT_NAMES
from contracts.tables import POST_KINDS
from contracts.tasks import ENGAGEMENTS
from serving.feed import Query, pool_policy
from serving.log_changes import LogChanges
from serving.snapshot import snapshot
from tests.serving.reference import events_of, state_of
from tests.serving.world import END, LIVE, START, World, linear_models, random_world

MIDDLE = END - 5 * DAY


def declared(world: World, events: list[dict], t: int, viewer: int, post: dict) -> dict[str, float]:
    """Every feature by its sentence in contracts.features, straight from the rows."""
    tables, author = world.rows, post["author_id"]
    people = {row["user_id"]: row for row in tables["users"] if row["known_at"] < t}
    edges = [r for r in tables["friendships"] if r["known_at"] < t and (r["ended_at"] is None or r["ended_at"] > t)]
    circle = {one: {r["friend_id"] for r in edges if r["user_id"] == one} for one in (viewer, author)}
    ties = [r for r in edges if r["user_id"] == viewer and r["friend_id"] == author]
    engaged = {
        r["user_id"]
        for r in tables["actions"]
        if r["post_id"] == post["post_id"] and r["kind"] in ENGAGEMENTS and r["known_at"] < t
    }
    hour = t % DAY / HOUR
    cities = [people[one]["city"] if one in people else None for one in (viewer, author)]
    facts = {
        "viewer_tenure_days": max(0, t - people[viewer]["registered_at"]) / DAY,
        "viewer_friends": len(circle[viewer]),
        "author_friends": len(circle[author]),
        "is_friend": float(bool(ties)),
        "special_care": float(any(r["kind"] == "special_care" for r in ties)),
        "friendship_days": (t - min(r["since"] for r in ties)) / DAY if ties else 0.0,
        "mutual_friends": len(circle[viewer] & circle[author]),
        "same_city": float(cities[0] is not None and cities[0] == cities[1]),
        "post_age_hours": max(0, t - post["created_at"]) / HOUR,
        "post_is_share": float(post["origin_post_id"] is not None),
        "post_public": float(post["visibility"] == "public"),
        "post_kind": POST_KINDS.index(post["kind"]),
        "post_topic": post["topic"],
        "friends_engaged": len(engaged & circle[viewer]),
        "hour_sin": math.sin(2 * math.pi * hour / 24),
        "hour_cos": math.cos(2 * math.pi * hour / 24),
        "weekend": float((t // DAY + 4) % 7 in (0, 6)),
    }
    ids = {"user_id": viewer, "author_id": author, "post_id": post["post_id"], "topic": post["topic"]}
    states: dict[tuple, np.ndarray | None] = {}
    for feature in FEATURES:
        family, name = feature.counter or feature.latest or (None, None)
        if family is None:
            continue
        where = (family, tuple(ids[column] for column in feature.key))
        if where not in states:
            states[where] = state_of(events, *where, t)
        state = states[where]
        value = 0.0 if state is None else state[FAMILIES[family].slot(name)]
        if feature.latest:
            value = min((t - value) / DAY, feature.default) if value else feature.default
        facts[feature.name] = value
    return facts


def inputs_at(workspace, store, t: int, viewer: int, posts: list[int]) -> dict[int, np.ndarray]:
    policy = pool_policy("full", linear_models(), LIVE)
    prepared = policy.prepare(Query(viewer, t, pool_N=np.array(posts)), store)
    return dict(zip(prepared.candidates["post_id"].tolist(), prepared.candidates["inputs_NF"]))


@pytest.mark.parametrize("late", [False, True], ids=["prompt log", "late rows"])
def test_features_online_equal_the_declared_formulas_at_any_moment(tmp_path, rng, late):
    world = random_world(rng, late=late)
    workspace = world.write(tmp_path, MIDDLE)
    store, changes, events = snapshot(workspace, MIDDLE), LogChanges(workspace, MIDDLE, END), events_of(workspace)
    compared = 0
    for t in np.linspace(MIDDLE, END, 6).astype(np.int64).tolist():
        changes.advance(store, t)
        posts = {row["post_id"]: row for row in world.rows["posts"] if row["known_at"] < t}
        for viewer in (1, 5):
            for post_id, inputs_F in inputs_at(workspace, store, t, viewer, list(posts)).items():
                expected = declared(world, events, t, viewer, posts[post_id])
                got = dict(zip(INPUT_NAMES, inputs_F))
                for name, value in expected.items():
                    assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-9), (name, t, viewer, post_id)
                compared += 1
    assert compared > 40


def test_a_row_is_invisible_until_it_is_known_however_early_it_happened(tmp_path):
    world = World()
    for user_id in (1, 2, 3):
        world.user(user_id)
    world.friend(1, 2)
    world.post(10, 2, END - 2 * DAY)
    t = END - DAY
    world.act(3, 10, "like", t - 9 * HOUR, known_at=t)  # happened before t, known only at t
    world.friend(1, 3, since=START, known_at=t)
    workspace = world.write(tmp_path, MIDDLE)
    store, changes = snapshot(workspace, MIDDLE), LogChanges(workspace, MIDDLE, END)
    changes.advance(store, t)
    before = dict(zip(INPUT_NAMES, inputs_at(workspace, store, t, 1, [10])[10]))
    changes.advance(store, t + 1)
    after = dict(zip(INPUT_NAMES, inputs_at(workspace, store, t + 1, 1, [10])[10]))
    watched = ("post_likes_2d", "author_likes_7d", "friends_engaged", "viewer_friends")
    assert [before[name] for name in watched] == [0, 0, 0, 1]
    assert after["post_likes_2d"] == pytest.approx(2 ** (-9 / 48), rel=1e-6)
    assert [after["friends_engaged"], after["viewer_friends"]] == [1, 2]


def test_walking_the_log_reaches_the_state_that_a_snapshot_of_its_end_has(tmp_path, rng):
    world = random_world(rng, late=True)
    workspace = world.write(tmp_path, MIDDLE, END)
    walked = snapshot(workspace, MIDDLE)
    LogChanges(workspace, MIDDLE, END).advance(walked, END)
    built = snapshot(workspace, END)
    for viewer in range(1, 13):
        posts = [row["post_id"] for row in world.rows["posts"]]
        one, other = (inputs_at(workspace, store, END, viewer, posts) for store in (walked, built))
        assert one.keys() == other.keys()
        for post_id in one:
            np.testing.assert_allclose(one[post_id], other[post_id], rtol=1e-9, atol=1e-9)
