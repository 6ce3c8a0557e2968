"""The rules of who may see what, told once more from the lake's tables alone, for the environment's tests."""

from collections import defaultdict

import pyarrow as pa

from contracts.lake import Lake
from contracts.tables import BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS

NEVER = 2**63 - 1


def rows(table: pa.Table, *names: str) -> list[tuple]:
    """The table's rows as tuples of the named columns."""
    return list(zip(*(table[name].to_pylist() for name in names)))


def pool_faults(lake: Lake, live_us: int) -> list[str]:
    """One line per candidate of a logged pool that the viewer should not have been able to get."""
    posts = {row["post_id"]: row for row in lake.read(POSTS).to_pylist()}
    edges, hidden, seen = defaultdict(list), defaultdict(list), {}
    for user, friend, kind, known, ended in rows(
        lake.read(FRIENDSHIPS), "user_id", "friend_id", "kind", "known_at", "ended_at"
    ):
        edges[user, friend].append((kind, known, ended or NEVER))
    for user, target, kind, since, ended in rows(
        lake.read(BLOCKS), "user_id", "target_id", "kind", "since", "ended_at"
    ):
        if kind in ("block", "hide_their_posts"):
            hidden[user, target].append((since, ended or NEVER))
        if kind in ("block", "deny_my_posts"):
            hidden[target, user].append((since, ended or NEVER))
    for user, post, shown in rows(lake.read(IMPRESSIONS), "user_id", "post_id", "shown_at"):
        seen[user, post] = min(shown, seen.get((user, post), NEVER))

    def befriended(author: int, viewer: int, at: int) -> bool:
        return any(kind != "follow" and known < at < ended for kind, known, ended in edges[author, viewer])

    def fault_of_link(viewer: int, post: dict, at: int) -> str:
        author = post["author_id"]
        if (post["deleted_at"] or NEVER) <= at:
            return "deleted"
        if post["known_at"] >= at:
            return "not known yet"
        if any(since <= at < ended for since, ended in hidden[viewer, author]):
            return "blocked"
        if author == viewer or post["visibility"] == "public":
            return ""
        if post["visibility"] == "friends":
            return "" if befriended(author, viewer, at) else "for friends"
        if post["visibility"] == "list":
            return "" if viewer in (post["audience"] or []) else "for a list"
        return "private"

    faults = []
    for request, viewer, at, candidates in rows(
        lake.read(REQUESTS), "request_id", "user_id", "requested_at", "candidates"
    ):
        for post_id in candidates:
            post = posts[post_id]
            reason = "own" if post["author_id"] == viewer else ""
            reason = reason or ("too old" if post["created_at"] <= at - live_us else "")
            reason = reason or ("seen" if seen.get((viewer, post_id), NEVER) < at else "")
            while post and not reason:
                reason = fault_of_link(viewer, post, at)
                post = posts[post["origin_post_id"]] if post["origin_post_id"] is not None else None
            if reason:
                faults.append(f"request {request}, viewer {viewer}, post {post_id}: {reason}")
    return faults
