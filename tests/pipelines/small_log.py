"""A small random log with what real ones have: late rows, ended and cared-for friendships, edited posts, moves of city."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR, MINUTE, SECOND
from contracts.dataset import Dataset
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POST_KINDS, POSTS, REQUESTS, USERS, TableSpec
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace

START = 1_700_006_400 * SECOND  # a UTC midnight
Tables = dict[str, pa.Table]
SPECS = {spec.name: spec for spec in (USERS, FRIENDSHIPS, POSTS, REQUESTS, IMPRESSIONS, ACTIONS)}


def table(spec: TableSpec, **columns: object) -> pa.Table:
    """A table of `spec`; nullable columns may be left out."""
    rows = len(next(iter(columns.values())))  # type: ignore[arg-type]
    arrays = [
        pa.array(columns[field.name], field.type, from_pandas=True)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in spec.schema
    ]
    return pa.Table.from_arrays(arrays, schema=spec.schema)


def random_log(
    rng: np.random.Generator, *, users: int = 12, days: int = 12, posts: int = 70, requests: int = 140, slate: int = 5
) -> Tables:
    """Tables of a log that begins at `START`; every late row is known up to a day after it happened."""
    end = START + days * DAY
    lateness = lambda n: np.where(rng.random(n) < 0.2, rng.integers(0, DAY, n), 0)  # noqa: E731

    user_id = np.arange(1, users + 1)
    registered = START - rng.integers(0, 400 * DAY, users)
    cities = np.array(["Graz", "Linz", None], dtype=object)
    moved = rng.choice(user_id, users // 4, replace=False)
    moved_at = rng.integers(START, end, len(moved))
    people = table(
        USERS,
        user_id=np.concatenate([user_id, moved]),
        registered_at=np.concatenate([registered, registered[moved - 1]]),
        city=np.concatenate([rng.choice(cities, users), rng.choice(cities, len(moved))]),
        known_at=np.concatenate([registered, moved_at]),
    )

    pairs = rng.integers(1, users + 1, (users * 5, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    edges = np.concatenate([pairs, pairs[:, ::-1]])
    since = rng.integers(START - 100 * DAY, end, len(pairs))
    since = np.concatenate([since, since])
    ended = np.where(rng.random(len(edges)) < 0.2, since + rng.integers(1, 60 * DAY, len(edges)), -1)
    kind = np.where(rng.random(len(edges)) < 0.2, "special_care", "friend")
    friendships = table(
        FRIENDSHIPS, user_id=edges[:, 0], friend_id=edges[:, 1], since=since,
        ended_at=[None if at < 0 else int(at) for at in ended], kind=kind.tolist(), known_at=since + lateness(len(edges)),
    )  # fmt: skip

    post_id = np.arange(1, posts + 1)
    author = rng.integers(1, users + 1, posts)
    created = np.sort(rng.integers(START, end, posts))
    origin = [int(rng.integers(1, i)) if i > 1 and rng.random() < 0.2 else None for i in post_id]
    edited = rng.choice(post_id, posts // 10, replace=False)
    at = np.concatenate([post_id, edited]) - 1
    late = lateness(posts) // 4
    edited_at = created[edited - 1] + late[edited - 1] + rng.integers(1, 3 * DAY, len(edited))
    wall = table(
        POSTS, post_id=post_id[at], author_id=author[at], origin_post_id=[origin[i] for i in at], created_at=created[at],
        edited_at=[None] * posts + edited_at.tolist(), known_at=np.concatenate([created + late, edited_at]),
        kind=rng.choice(POST_KINDS, len(at)).tolist(), topic=rng.integers(0, 4, len(at)),
        visibility=rng.choice(["public", "friends"], len(at)).tolist(),
    )  # fmt: skip

    request_id = np.arange(1, requests + 1)
    viewer = rng.integers(1, users + 1, requests)
    requested = np.sort(rng.integers(START + HOUR, end, requests))
    feeds = table(
        REQUESTS, request_id=request_id, user_id=viewer, requested_at=requested, policy=["logging"] * requests,
        slate_size=[slate] * requests, candidates=[[]] * requests, known_at=requested,
    )  # fmt: skip

    at = np.repeat(np.arange(requests), slate)
    seen = np.concatenate([_slate(rng, created, moment, slate) for moment in requested])
    shown_at = requested[at] + rng.integers(0, MINUTE, len(at))
    impressions = table(
        IMPRESSIONS, request_id=request_id[at], user_id=viewer[at], post_id=post_id[seen], author_id=author[seen],
        position=np.tile(np.arange(slate), requests), shown_at=shown_at,
        viewed_ms=np.where(rng.random(len(at)) < 0.7, rng.integers(1, 9000, len(at)), 0), policy=["logging"] * len(at),
        propensity=rng.random(len(at)), known_at=shown_at + lateness(len(at)),
    )  # fmt: skip

    acted = rng.choice(len(at), len(at) // 3)
    occurred = shown_at[acted] + rng.integers(0, 2 * DAY, len(acted))
    actions = table(
        ACTIONS, action_id=np.arange(len(acted)), user_id=viewer[at][acted], post_id=post_id[seen][acted],
        author_id=author[seen][acted], occurred_at=occurred, known_at=occurred + lateness(len(acted)),
        request_id=[int(request_id[at[i]]) if rng.random() < 0.6 else None for i in acted],
        kind=rng.choice(["click", "like", "comment", "share", "hide", "profile", "dwell"], len(acted)).tolist(),
    )  # fmt: skip
    return {
        "users": people, "friendships": friendships, "posts": wall, "requests": feeds, "impressions": impressions,
        "actions": actions,
    }  # fmt: skip


def _slate(rng: np.random.Generator, created: np.ndarray, moment: int, slate: int) -> np.ndarray:
    """Distinct posts, some of which the log has not heard of yet: the samples must cope."""
    live = max(slate, int(np.searchsorted(created, moment)))
    return rng.choice(np.arange(max(0, live - 12 * slate), live), slate, replace=False)


def save(root: Path, tables: Tables, *, days: int = 12, attribution_us: int = DAY) -> Workspace:
    """A workspace whose lake holds `tables`, with a day of warm-up."""
    workspace = Workspace(root)
    for name, rows in tables.items():
        workspace.lake.write(SPECS[name], rows)
    Dataset(
        source="test", start=START, end=START + days * DAY, warmup_us=DAY, attribution_us=attribution_us,
        live_us=30 * DAY, tasks=tuple(name for name in TASK_NAMES if name != "comment"), has_propensities=True,
    ).save(workspace.dataset_path)  # fmt: skip
    return workspace
