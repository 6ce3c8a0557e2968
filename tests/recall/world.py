"""A tiny log for recall's tests: sixty people in two circles, who like the posts of one topic, for twenty days."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR, MINUTE
from contracts.dataset import Dataset
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, USERS, TableSpec
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from recall.settings import RecallSettings, VectorSettings, for_dataset

START = 20_000 * DAY
DAYS = 20


def table(spec: TableSpec, rows: list[dict]) -> pa.Table:
    """Rows with the spec's columns; what a row does not name is null."""
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in spec.schema.names} for row in rows], schema=spec.schema
    )


def post_row(post_id: int, author_id: int, at: int, **more) -> dict:
    """A public text post."""
    plain = {"kind": "text", "topic": author_id % 2, "text": "", "visibility": "public", "embedding": None}
    return {"post_id": post_id, "author_id": author_id, "created_at": at, "known_at": at, **plain, **more}


def action_row(action_id: int, user_id: int, post: dict, at: int, kind: str = "like", **more) -> dict:
    """An act on a post."""
    return {"action_id": action_id, "user_id": user_id, "post_id": post["post_id"], "author_id": post["author_id"],
            "kind": kind, "occurred_at": at, "known_at": at, **more}  # fmt: skip


def edge_rows(pairs: list[tuple[int, int]], since: int = START - DAY, **more) -> list[dict]:
    """Friendships in both directions."""
    both = [*pairs, *((b, a) for a, b in pairs)]
    return [
        {"user_id": a, "friend_id": b, "since": since, "known_at": since, "kind": "friend", **more} for a, b in both
    ]


def make_rows(rng: np.random.Generator, people: int = 60) -> dict[str, list[dict]]:
    """Even and odd people are two circles: friends, topic and likes stay inside one."""
    users = [
        {"user_id": u, "registered_at": START - DAY, "known_at": START - DAY, "city": f"city{u % 3}"}
        for u in range(people)
    ]
    pairs = [(a, b) for a in range(people) for b in range(a + 1, people) if a % 2 == b % 2 and rng.random() < 0.15]
    posts, requests, actions = [], [], []
    for number in range(DAYS * people // 3):
        author = int(rng.integers(people))
        at = START + int(rng.integers(DAYS * DAY))
        content = np.zeros(4, np.float32)
        content[author % 2] = 1.0
        posts.append(post_row(1000 + number, author, at, embedding=content.tolist()))
    posts.sort(key=lambda row: row["created_at"])
    for day in range(1, DAYS):
        for user in range(people):
            if rng.random() < 0.6:
                at = START + day * DAY + int(rng.integers(DAY // 2))
                requests.append({"request_id": len(requests), "user_id": user, "requested_at": at, "policy": "chronological",
                                 "slate_size": 4, "candidates": [], "known_at": at})  # fmt: skip
                near = [p for p in posts if at - 3 * DAY < p["created_at"] < at and p["author_id"] % 2 == user % 2]
                for post in near[-6:]:
                    if post["author_id"] != user and rng.random() < 0.4:
                        actions.append(action_row(len(actions), user, post, at + MINUTE * (1 + len(actions) % 30)))
    return {"users": users, "friendships": edge_rows(pairs), "posts": posts, "requests": requests, "actions": actions}


def write(root: Path, rows: dict[str, list[dict]]) -> Workspace:
    """The rows as a workspace."""
    workspace = Workspace(root)
    specs = {spec.name: spec for spec in (USERS, FRIENDSHIPS, POSTS, REQUESTS, IMPRESSIONS, ACTIONS)}
    for name, spec in specs.items():
        workspace.lake.write(spec, table(spec, rows.get(name, [])))
    dataset = Dataset("tiny", START, START + DAYS * DAY, warmup_us=DAY, attribution_us=6 * HOUR, live_us=4 * DAY,
                      tasks=TASK_NAMES, has_propensities=False)  # fmt: skip
    dataset.save(workspace.dataset_path)
    return workspace


def small_settings(workspace: Workspace) -> RecallSettings:
    """Enough to learn the two circles in a second."""
    return for_dataset(workspace.dataset()).model_copy(
        update={
            "vector": VectorSettings(dim=8, epochs=2, batch=128, history=8),
            "evaluated_requests": 30,
            "tuning_requests": 20,
        }
    )
