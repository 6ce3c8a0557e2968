"""Tiny worlds of hand-made rows, written as a real log, and model doubles with fixed weights."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR
from contracts.dataset import Dataset
from contracts.features import INPUT_NAMES
from contracts.tables import ACTIONS, BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, TABLES, USERS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from serving.feed import Models, ValueModel
from tests.serving.reference import write_states

END = 1_717_372_800_000_000  # 2024-06-03T00:00Z, a Monday
START = END - 20 * DAY
LIVE = 6 * DAY


@dataclass
class World:
    """Rows by table. Everything is known one second after it happened unless told otherwise."""

    rows: dict[str, list[dict]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def user(self, user_id: int, city: str | None = None, at: int = START, **more) -> None:
        self.add(USERS, user_id=user_id, registered_at=at, city=city, attributes={"name": f"Person {user_id}"},
                 known_at=at + 1, **more)  # fmt: skip

    def friend(self, user_id: int, friend_id: int, since: int = START, mutual: bool = True, kind: str = "friend",
               ended_at: int | None = None, known_at: int | None = None) -> None:  # fmt: skip
        for one, other in ((user_id, friend_id), (friend_id, user_id))[: 2 if mutual else 1]:
            self.add(FRIENDSHIPS, user_id=one, friend_id=other, since=since, kind=kind, ended_at=ended_at,
                     known_at=since + 1 if known_at is None else known_at)  # fmt: skip

    def block(self, user_id: int, target_id: int, kind: str, since: int, ended_at: int | None = None) -> None:
        self.add(
            BLOCKS, user_id=user_id, target_id=target_id, kind=kind, since=since, ended_at=ended_at, known_at=since + 1
        )

    def post(self, post_id: int, author_id: int, at: int, known_at: int | None = None, **more) -> None:
        kind = "share" if more.get("origin_post_id") else "text"
        defaults = {"kind": kind, "topic": 1, "visibility": "public", "text": f"post {post_id}"}
        self.add(POSTS, **{**defaults, "post_id": post_id, "author_id": author_id, "created_at": at,
                           "known_at": at + 1 if known_at is None else known_at, **more})  # fmt: skip

    def show(self, request_id: int, user_id: int, post_ids: list[int], at: int, viewed: bool = True) -> None:
        self.add(REQUESTS, request_id=request_id, user_id=user_id, requested_at=at, policy="test", slate_size=len(post_ids),
                 candidates=post_ids, known_at=at)  # fmt: skip
        author = {row["post_id"]: row["author_id"] for row in self.rows["posts"]}
        for position, post_id in enumerate(post_ids):
            self.add(IMPRESSIONS, request_id=request_id, user_id=user_id, post_id=post_id, author_id=author[post_id],
                     position=position, shown_at=at, viewed_ms=900 if viewed else 0, policy="test", known_at=at)  # fmt: skip

    def act(self, user_id: int, post_id: int, kind: str, at: int, known_at: int | None = None) -> None:
        author = {row["post_id"]: row["author_id"] for row in self.rows["posts"]}[post_id]
        self.add(ACTIONS, action_id=len(self.rows["actions"]) + 1, user_id=user_id, post_id=post_id, author_id=author, kind=kind,
                 occurred_at=at, known_at=at + 1 if known_at is None else known_at)  # fmt: skip

    def add(self, spec, **row) -> None:
        self.rows[spec.name].append({name: row.get(name) for name in spec.schema.names})

    def write(self, folder: Path, *moments: int) -> Workspace:
        """The workspace, with feature states as of `moments` (by default the log's end)."""
        workspace = Workspace(folder)
        self.rows["topics"] = [{"topic": topic, "name": f"topic {topic}", "known_at": START} for topic in range(6)]
        for name, spec in TABLES.items():
            table = pa.Table.from_pylist(self.rows[name], schema=spec.schema)
            workspace.lake.write(spec, table)
        Dataset("test", START, END, 2 * DAY, HOUR, LIVE, TASK_NAMES, True).save(workspace.dataset_path)
        write_states(workspace, *(moments or (END,)))
        return workspace


def random_world(rng: np.random.Generator, users: int = 12, posts: int = 120, late: bool = False) -> World:
    """Friends, follows, ended friendships, blocks, shares of shares, all visibilities, impressions and actions."""
    world = World()
    cities = ("Lima", "Oslo", None)
    for user_id in range(1, users + 1):
        world.user(user_id, cities[int(rng.integers(3))], START + int(rng.integers(0, 3 * DAY)))
    for one in range(1, users + 1):
        for other in range(one + 1, users + 1):
            draw = rng.random()
            since = START + int(rng.integers(0, 18 * DAY))
            if draw < 0.5:
                world.friend(one, other, since, ended_at=since + 5 * DAY if draw < 0.05 else None)
            elif draw < 0.6:
                world.friend(one, other, since, mutual=False, kind="follow")
            if draw < 0.1:
                world.friend(one, other, since + DAY, mutual=False, kind="special_care")
    moments = np.sort(rng.integers(START + DAY, END - HOUR, posts))
    for post_id, at in enumerate(moments.tolist(), 100):
        more = {}
        if post_id > 110 and rng.random() < 0.3:
            more["origin_post_id"] = int(rng.integers(max(100, post_id - 30), post_id))
        world.post(post_id, int(rng.integers(1, users + 1)), at, topic=int(rng.integers(6)),
                   known_at=at + int(rng.integers(1, 2 * HOUR)) if late else None,
                   visibility=("public", "public", "friends", "list", "private")[int(rng.integers(5))],
                   audience=[int(one) for one in rng.integers(1, users + 1, 3)],
                   embedding=rng.normal(size=4).tolist(), deleted_at=at + DAY if rng.random() < 0.05 else None, **more)  # fmt: skip
    for request_id in range(1, 100):
        at = int(rng.integers(START + 3 * DAY, END))
        live = [row["post_id"] for row in world.rows["posts"] if at - LIVE < row["created_at"] and row["known_at"] < at]
        if live:
            chosen = rng.choice(live, min(5, len(live)), replace=False).tolist()
            user_id = int(rng.integers(1, users + 1))
            world.show(request_id, user_id, chosen, at)
            for post_id in chosen:
                if rng.random() < 0.5:
                    kind = ("click", "like", "comment", "share", "hide", "dwell")[int(rng.integers(6))]
                    acted = at + int(rng.integers(1, HOUR))
                    world.act(user_id, post_id, kind, acted, acted + int(rng.integers(1, 6 * HOUR)) if late else None)
    return world


class LinearModel:
    """Stands in for trained models where none exists: fixed random weights over standardised-looking inputs."""

    def __init__(self, seed: int = 3):
        rng = np.random.default_rng(seed)
        self.weight_FT = rng.normal(size=(len(INPUT_NAMES), len(TASK_NAMES))) * 0.2

    def score(self, inputs_NF: np.ndarray) -> np.ndarray:
        return np.log1p(np.abs(inputs_NF)) @ self.weight_FT[:, 0]

    def probabilities(self, inputs_NF: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.log1p(np.abs(inputs_NF)) @ self.weight_FT))


def linear_models() -> Models:
    model = LinearModel()
    return Models(model, model, None, ValueModel.for_tasks(TASK_NAMES), {})
