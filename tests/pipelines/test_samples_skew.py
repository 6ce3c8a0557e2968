"""Skew: one author of a quarter of all posts, two people with tens of thousands of friends, a post that they all liked."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from contracts.clock import DAY
from contracts.features import FEATURE_NAMES
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.tables import ACTIONS, FRIENDSHIPS
from contracts.workspace import Workspace
from pipelines.features import build_states
from pipelines.samples import build_samples
from tests.pipelines.reference import Reference
from tests.pipelines.small_log import START, Tables, random_log, save, table
from tests.pipelines.test_samples import worst_difference

pytestmark = pytest.mark.spark
STAR, OTHER = 1, 2
FRIENDS, SHARED, LIKERS = 100_000, 30_000, 20_000
FIRST, LEFT, LIKED = 10_000, START + 7 * DAY, START + 5 * DAY
"""Ids of the friends count from FIRST; each tenth friendship ends at LEFT; the first friends like a post at LIKED."""


def by_star(rows: pa.Table) -> pa.Table:
    """A quarter of the posts are the star's, wherever the log tells their author."""
    if not {"post_id", "author_id"} <= set(rows.column_names):
        return rows
    author = pc.if_else(pc.equal(pc.bit_wise_and(rows["post_id"], 3), 0), STAR, rows["author_id"])
    return rows.set_column(rows.column_names.index("author_id"), rows.schema.field("author_id"), author)


@pytest.fixture(scope="module")
def plain() -> Tables:
    return {name: by_star(rows) for name, rows in random_log(np.random.default_rng(9)).items()}


def circle(person: int, friends: int) -> pa.Table:
    """Friendships of a person with FIRST, FIRST + 1, …, told from both sides."""
    friend_id = np.arange(FIRST, FIRST + friends)
    user_id = np.full(friends, person)
    ended_at = np.where(friend_id % 10 == 0, LEFT, -1)
    ended_at = [None if at < 0 else int(at) for at in np.concatenate([ended_at, ended_at])]
    at = np.full(2 * friends, START - 50 * DAY)
    return table(FRIENDSHIPS, user_id=np.concatenate([user_id, friend_id]), friend_id=np.concatenate([friend_id, user_id]),
                 since=at, ended_at=ended_at, kind=["friend"] * len(at), known_at=at)  # fmt: skip


def active(friends: int, at: int) -> int:
    """How many of the first `friends` are friends at `at`."""
    return friends if at < LEFT else friends - friends // 10


def built(spark: SparkSession, root: Path, log: Tables) -> tuple[Workspace, dict[tuple, dict], int]:
    """The samples by request and position, and the bytes that Spark moved between its tasks for them."""
    workspace = save(root, log)
    moved = spark.sparkContext._jsc.sc().statusStore().executorSummary("driver")
    before = moved.totalShuffleWrite()
    build_samples(workspace, spark)
    after = spark.sparkContext._jsc.sc().statusStore().executorSummary("driver").totalShuffleWrite()
    rows = workspace.samples.read(SAMPLES).to_pylist()
    return workspace, {(row["request_id"], row["position"]): row for row in rows}, after - before


@pytest.fixture(scope="module")
def built_plain(
    spark: SparkSession, plain: Tables, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workspace, dict[tuple, dict], int]:
    return built(spark, tmp_path_factory.mktemp("plain"), plain)


def test_an_author_of_a_tenth_of_all_events_has_the_features_of_a_brute_force_count(
    plain: Tables, built_plain: tuple[Workspace, dict[tuple, dict], int]
) -> None:
    workspace, rows, _ = built_plain
    assert sum(row["author_id"] == STAR for row in rows.values()) > len(rows) / 5
    some = workspace.samples.read(SAMPLES)
    difference, where = worst_difference(some.take(np.arange(0, some.num_rows, 3)), Reference(plain))
    assert difference < 1e-9, where


@pytest.mark.slow
def test_a_hundred_thousand_friends_move_the_counts_of_friends_alone_and_no_row_carries_them(
    spark: SparkSession, plain: Tables, built_plain: tuple[Workspace, dict[tuple, dict], int], tmp_path: Path
) -> None:
    _, before, moved = built_plain
    size = {STAR: FRIENDS, OTHER: SHARED}
    post = next(row for row in before.values() if row["user_id"] in size and row["requested_at"] > LIKED)
    liker = np.arange(FIRST, FIRST + LIKERS)
    likes = table(
        ACTIONS, action_id=liker + 10**6, user_id=liker, post_id=np.full(LIKERS, post["post_id"]),
        author_id=np.full(LIKERS, post["author_id"]), kind=["like"] * LIKERS, occurred_at=np.full(LIKERS, LIKED),
        known_at=np.full(LIKERS, LIKED),
    )  # fmt: skip
    skewed = plain | {
        "friendships": pa.concat_tables([plain["friendships"], circle(STAR, FRIENDS), circle(OTHER, SHARED)]),
        "actions": pa.concat_tables([plain["actions"], likes]),
    }
    workspace, after, moved_skewed = built(spark, tmp_path, skewed)
    moves = {
        "viewer_friends",
        "author_friends",
        "mutual_friends",
        "friends_engaged",
        "author_likes_7d",
        "post_likes_2d",
    }
    assert before.keys() == after.keys()
    seen = set()
    for key, row in after.items():
        old, at, people = before[key], row["requested_at"], (row["user_id"], row["author_id"])
        assert all(row[name] == old[name] for name in FEATURE_NAMES if name not in moves)
        more = {f"{who}_friends": active(size.get(person, 0), at) for who, person in zip(("viewer", "author"), people)}
        more["mutual_friends"] = active(min(size.get(person, 0) for person in people), at)
        of_liked = row["post_id"] == post["post_id"] and at > LIKED
        more["friends_engaged"] = active(min(size.get(people[0], 0), LIKERS), at) if of_liked else 0
        for name, count in more.items():
            assert row[name] - old[name] == count, name
            seen |= {name} if count else set()
    assert seen == {"viewer_friends", "author_friends", "mutual_friends", "friends_engaged"}
    edges = 2 * (FRIENDS + SHARED) + LIKERS
    assert moved_skewed - moved < 250 * edges, "bytes grow with the friendships, not with rows times friends"
    build_states(workspace, spark)
    assert workspace.features.read(STATES["author"])["author_id"].to_pylist().count(STAR) == 2
