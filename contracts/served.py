"""What serving writes to its streams, entry by entry, and the rows of the tables that each becomes.

Whoever brings the streams into the lake, serving's own drain or Spark, reads these shapes and makes these rows.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from contracts.clock import DAY, SECOND
from contracts.features import FEATURE_NAMES
from contracts.tables import ACTION_KINDS, POST_KINDS, VISIBILITIES

NO_ID = -1
"""Stands for an absent id; ids are never negative."""
FOREVER = 2**62
"""Stands for "not ended" and "not deleted" where a moment is packed."""
NUMBERS_PER_MS = 65_536
"""Entries of one millisecond that an entry's id tells apart."""
LOOK_MS = {"view": 1, "dwell": 1000}
"""Milliseconds in the unit that the value of each kind of event that says how long a post was looked at comes in."""
POST_EVENTS = ("post", "delete_post")
"""Kinds of events that carry a post's document."""


class LiveEvent(msgspec.Struct, array_like=True, frozen=True):
    """`kind` as in the API; what a kind does not need stays at its default. `document`: the post of "post", and, with
    its end, of "delete_post". `since`: for "unblock" the starts of the blocks that end."""

    kind: str
    user_id: int
    at: int
    post_id: int = -1
    author_id: int = -1
    topic: int = 0
    request_id: int = -1
    value: float = 0.0
    target_id: int = -1
    block_kind: str = ""
    since: tuple[int, ...] = ()
    document: bytes = b""


class FeedRecord(msgspec.Struct, array_like=True, frozen=True):
    """One served feed, by position: `features` holds raw feature rows as float64 bytes in the order of FEATURE_NAMES.

    `considered_ids`: the posts that the policy could choose from, which is what makes a replay of it possible. `versions`
    has, beside those of the models, "log": which log the feed goes on from.
    """

    request_id: int
    user_id: int
    served_at: int
    policy: str
    versions: dict[str, str]
    feature_version: str
    post_ids: list[int]
    author_ids: list[int]
    propensities: list[float]
    scores: list[float]
    features: bytes
    considered_ids: list[int]
    degraded: list[str]


class Document(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A post. `chain`: (post, author) of what it is a share or quote of, nearest first, down to the original."""

    post_id: int
    author_id: int
    chain: tuple[tuple[int, int], ...]
    created_at: int
    known_at: int
    deleted_at: int
    kind: int
    topic: int
    visibility: int
    subject_id: int
    audience: tuple[int, ...]
    text: str
    embedding: bytes

    @property
    def root(self) -> tuple[int, int]:
        """(post, author) of the original."""
        return self.chain[-1] if self.chain else (self.post_id, self.author_id)

    @property
    def channel_id(self) -> int:
        """As `recall.posts.channel_ids`: the subject's channel, else the author's."""
        return self.author_id if self.subject_id == NO_ID else ~self.subject_id

    @property
    def group_id(self) -> int:
        """As `recall.posts.group_ids`: one subject, or one original and its shares."""
        return self.root[0] if self.subject_id == NO_ID else ~self.subject_id


def action_row(entry_id: str, event: LiveEvent) -> dict[str, Any] | None:
    """The row of `actions`; None for an event that is none. ValueError for a value that cannot be."""
    most = 1000 * DAY // SECOND if event.kind == "view" else DAY // SECOND
    if not 0 <= event.value <= most:
        raise ValueError(f"value {event.value} of a {event.kind} is not between 0 and {most}")
    if event.kind not in ACTION_KINDS:
        return None
    milliseconds, number = map(int, entry_id.split("-"))
    return {
        "action_id": milliseconds * NUMBERS_PER_MS | number,
        "request_id": None if event.request_id == NO_ID else event.request_id, "user_id": event.user_id, "post_id": event.post_id,
        "author_id": event.author_id, "kind": event.kind, "value": event.value or None, "occurred_at": event.at, "known_at": event.at,
    }  # fmt: skip


def look_row(event: LiveEvent) -> dict[str, Any] | None:
    """How long a shown post was looked at, and since when; None for an event that says nothing of it."""
    if event.kind not in LOOK_MS or event.request_id == NO_ID:
        return None
    viewed_ms = max(1, round(event.value * LOOK_MS[event.kind]))
    return {"request_id": event.request_id, "post_id": event.post_id, "looked_at": event.at, "looked_ms": viewed_ms}


def post_row(one: Document) -> dict[str, Any]:
    """The row of `posts`."""
    return {
        "post_id": one.post_id, "author_id": one.author_id, "origin_post_id": one.chain[0][0] if one.chain else None,
        "subject_id": None if one.subject_id == NO_ID else one.subject_id, "created_at": one.created_at, "edited_at": None,
        "known_at": one.known_at, "kind": POST_KINDS[one.kind], "topic": one.topic, "text": one.text,
        "embedding": list(struct.unpack(f"<{len(one.embedding) // 4}f", one.embedding)) if one.embedding else None,
        "visibility": VISIBILITIES[one.visibility], "audience": list(one.audience) or None,
        "deleted_at": None if one.deleted_at == FOREVER else one.deleted_at,
    }  # fmt: skip


def block_rows(event: LiveEvent) -> Iterator[dict[str, Any]]:
    """The rows of `blocks` that an event begins or ends."""
    if event.kind in ("block", "unblock"):
        ended_at = event.at if event.kind == "unblock" else None
        for since in event.since or (event.at,):
            yield {"user_id": event.user_id, "target_id": event.target_id, "kind": event.block_kind, "since": since,
                   "ended_at": ended_at, "known_at": since}  # fmt: skip


def request_row(feed: FeedRecord) -> dict[str, Any]:
    """The row of `requests`."""
    return {
        "request_id": feed.request_id, "user_id": feed.user_id, "requested_at": feed.served_at, "policy": feed.policy,
        "experiment": None, "slate_size": len(feed.post_ids), "candidates": feed.considered_ids, "known_at": feed.served_at,
    }  # fmt: skip


def impression_rows(feed: FeedRecord) -> Iterator[dict[str, Any]]:
    """The rows of `impressions`, as if nobody had looked: looks come in by a join."""
    width = 8 * len(FEATURE_NAMES)
    if len(feed.features) % width:
        raise ValueError(f"{len(feed.features)} bytes of features are no rows of {len(FEATURE_NAMES)}")
    rows = struct.iter_unpack(f"<{len(FEATURE_NAMES)}d", feed.features)
    shown = zip(feed.post_ids, feed.author_ids, feed.propensities, rows)
    for position, (post_id, author_id, propensity, features) in enumerate(shown):
        yield {
            "request_id": feed.request_id, "user_id": feed.user_id, "post_id": post_id, "author_id": author_id,
            "position": position, "shown_at": feed.served_at, "viewed_ms": 0, "policy": feed.policy, "propensity": propensity,
            "experiment": None, "feature_version": feed.feature_version, "features": list(features), "known_at": feed.served_at,
        }  # fmt: skip
