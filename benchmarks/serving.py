"""Feeds over HTTP from a published workspace: correct for every viewer, and how fast beside the store's own floor.

`python -m benchmarks.serving` asks a server process of its own for feeds of random viewers over the workspace that
`make demo` left (FEEDLOOP_WORKSPACE, default ./workspace). It checks each post against the lake, not against the server.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import redis

from benchmarks.claims import Claim, Result, run
from contracts.errors import BadInput
from contracts.machine.redis_server import ensure
from contracts.tables import BLOCKS, FRIENDSHIPS, POSTS
from contracts.workspace import Workspace
from serving.store.redis import ROOT, version_in_force

FEEDS, SIZE = 200, 10


def measure(quick: bool) -> Result:
    """200 feeds of random viewers: no post unseen-by-right, twice or again; p50 and p99 beside one MGET of the same bytes."""
    workspace = Workspace(Path(os.environ.get("FEEDLOOP_WORKSPACE", "workspace")))
    result = Result(sizes={"feeds": 50 if quick else FEEDS, "posts_per_feed": SIZE})
    try:
        workspace.dataset()
        url = ensure(workspace.run / "redis")
        version_in_force(redis.Redis.from_url(url))
    except (BadInput, OSError, RuntimeError) as error:
        result.not_measured.append(f"feeds over HTTP: {error}")
        return result
    rules = VisibilityRules(workspace)
    rng = np.random.default_rng(11)
    with serving(workspace) as base, httpx.Client(base_url=base, timeout=30) as client:
        people = [one["user_id"] for one in client.get("/v1/users", params={"n": 200, "seed": 3}).json()["users"]]
        for user_id in people[:20]:
            client.get("/v1/feed", params={"user_id": user_id, "n": SIZE})
        figures: dict[str, np.ndarray] = {}
        violations = {"not visible": 0, "twice in a feed": 0, "seen before": 0, "degraded": 0}
        seen: dict[int, set[int]] = {}
        for policy in ("full", "chronological"):
            took_ms = []
            for user_id in rng.choice(people, result.sizes["feeds"]).tolist():
                begun = time.perf_counter()
                feed = (
                    client.get("/v1/feed", params={"user_id": user_id, "n": SIZE, "policy": policy})
                    .raise_for_status()
                    .json()
                )
                took_ms.append((time.perf_counter() - begun) * 1e3)
                posts = [item["post_id"] for item in feed["items"]]
                before = seen.setdefault(user_id, set())
                violations["not visible"] += sum(not rules.visible(user_id, post_id) for post_id in posts)
                violations["twice in a feed"] += len(posts) - len(set(posts))
                violations["seen before"] += len(before & set(posts))
                violations["degraded"] += bool(feed["degraded"])
                before.update(posts)
            figures[policy] = np.array(took_ms)
    for name, count in violations.items():
        goal = "0" if name != "degraded" else ""
        result.claims.append(Claim(f"feeds of random viewers: {name}", count, "posts" if goal else "feeds", goal=goal,
                                   met=count == 0 or not goal))  # fmt: skip
    floor_ms = _floor_ms(url)
    for quantile in (50, 99):
        full, plain = (float(np.percentile(figures[name], quantile)) for name in ("full", "chronological"))
        result.claims.append(
            Claim(f"full feed over HTTP, p{quantile}", full, "ms", "chronological policy, same pipeline", plain)
        )
    result.claims.append(
        Claim("full feed over HTTP, p50", float(np.median(figures["full"])), "ms", "one MGET of 500 states", floor_ms)
    )
    return result


class VisibilityRules:
    """Who may see what, read from the lake by its own plain rules."""

    def __init__(self, workspace: Workspace):
        self.posts = {row["post_id"]: row for row in workspace.lake.read(POSTS).to_pylist()}
        end = workspace.dataset().end
        friendships = workspace.lake.read(FRIENDSHIPS, ["user_id", "friend_id", "ended_at"]).to_pylist()
        self.friends = {(r["user_id"], r["friend_id"]) for r in friendships if not r["ended_at"] or r["ended_at"] > end}
        blocks = [r for r in workspace.lake.read(BLOCKS).to_pylist() if not r["ended_at"] or r["ended_at"] > end]
        self.kept_apart = {
            pair
            for row in blocks
            for pair in {
                "block": [(row["user_id"], row["target_id"]), (row["target_id"], row["user_id"])],
                "hide_their_posts": [(row["user_id"], row["target_id"])],
                "deny_my_posts": [(row["target_id"], row["user_id"])],
            }[row["kind"]]
        }

    def visible(self, viewer: int, post_id: int | None) -> bool:
        """The post and every original it is made of: there, not the viewer's own at the top, not kept apart, meant for them."""
        post = self.posts.get(post_id)
        if post is None or post["deleted_at"] or post["author_id"] == viewer:
            return False
        while post is not None:
            author, rule = post["author_id"], post["visibility"]
            meant = (
                author == viewer
                or rule == "public"
                or (rule == "friends" and (author, viewer) in self.friends)
                or (rule == "list" and viewer in (post["audience"] or ()))
            )
            if not meant or (viewer, author) in self.kept_apart or post["deleted_at"]:
                return False
            if post["origin_post_id"] is None:
                return True
            post = self.posts.get(post["origin_post_id"])
        return False


@contextlib.contextmanager
def serving(workspace: Workspace, port: int = 18_431) -> Iterator[str]:
    """The address of a server process over `workspace`, ready to answer."""
    command = [sys.executable, "-m", "feedloop", "serve", "--workspace", str(workspace.root), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{base}/readyz").status_code == 200:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"`feedloop serve` ended with {process.returncode} before it was ready")
            time.sleep(0.1)
        yield base
    finally:
        process.terminate()
        process.wait(timeout=20)


def _floor_ms(url: str) -> float:
    """Median time of one MGET of 500 post states, which is what one feed cannot do without."""
    client = redis.Redis.from_url(url)
    prefix = f"{ROOT}{version_in_force(client)}:post:".encode()
    keys: list[bytes] = []
    for full in client.scan_iter(match=prefix + b"*", count=1000):
        keys.append(full)
        if len(keys) == 500:
            break
    took = []
    for _ in range(200):
        begun = time.perf_counter()
        client.mget(keys)
        took.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(took))


if __name__ == "__main__":
    run("serving", measure)
