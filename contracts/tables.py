"""The tables of the lake: names, columns, and the column that says which UTC day a row belongs to.

All moments are int64 UTC microseconds (`*_at`, `since`); all ids are int64. `known_at` is when the row reached the
lake: a reader at time t may use a row only if `known_at < t`.
"""

from dataclasses import dataclass

import pyarrow as pa

_ID = pa.int64()
_AT = pa.int64()


@dataclass(frozen=True)
class TableSpec:
    """One table: its Arrow schema, the moment column that picks the partition `dt`, and the columns that order its rows."""

    name: str
    schema: pa.Schema
    day_column: str
    order: tuple[str, ...]


def _table(name: str, day_column: str, order: tuple[str, ...], *columns: tuple[str, pa.DataType, bool]) -> TableSpec:
    fields = [pa.field(column, dtype, nullable=nullable) for column, dtype, nullable in columns]
    return TableSpec(name, pa.schema(fields), day_column, order)


USERS = _table(
    "users", "registered_at", ("user_id",),
    ("user_id", _ID, False), ("registered_at", _AT, False), ("age_band", pa.string(), True),
    ("gender", pa.string(), True), ("city", pa.string(), True),
    ("attributes", pa.map_(pa.string(), pa.string()), True), ("known_at", _AT, False),
)  # fmt: skip

FRIENDSHIPS = _table(
    "friendships", "since", ("user_id", "friend_id", "since"),
    ("user_id", _ID, False), ("friend_id", _ID, False), ("since", _AT, False), ("ended_at", _AT, True),
    ("kind", pa.string(), False), ("source", pa.string(), True), ("known_at", _AT, False),
)  # fmt: skip
"""Directed: a mutual friendship is two rows. kind: friend, follow, special_care."""

BLOCKS = _table(
    "blocks", "since", ("user_id", "target_id", "since"),
    ("user_id", _ID, False), ("target_id", _ID, False), ("kind", pa.string(), False),
    ("since", _AT, False), ("ended_at", _AT, True), ("known_at", _AT, False),
)  # fmt: skip
"""kind: block (both ways), hide_their_posts (user does not see target), deny_my_posts (target does not see user)."""

POSTS = _table(
    "posts", "created_at", ("created_at", "post_id"),
    ("post_id", _ID, False), ("author_id", _ID, False), ("origin_post_id", _ID, True), ("subject_id", _ID, True),
    ("created_at", _AT, False), ("edited_at", _AT, True), ("known_at", _AT, False), ("kind", pa.string(), False),
    ("topic", pa.int32(), False), ("text", pa.string(), True), ("embedding", pa.list_(pa.float32()), True),
    ("visibility", pa.string(), False), ("audience", pa.list_(pa.int64()), True), ("deleted_at", _AT, True),
)  # fmt: skip
"""kind: text, photo, video, share, quote, link. visibility: public, friends, list (audience), private."""

TOPICS = _table("topics", "known_at", ("topic",), ("topic", pa.int32(), False), ("name", pa.string(), False),
                ("known_at", _AT, False))  # fmt: skip

SUBJECTS = _table(
    "subjects", "known_at", ("subject_id",),
    ("subject_id", _ID, False), ("name", pa.string(), False), ("kind", pa.string(), False),
    ("url", pa.string(), True), ("known_at", _AT, False),
)  # fmt: skip
"""What posts are about when the same thing comes back in many posts: an artist, a product, a linked page."""

REQUESTS = _table(
    "requests", "requested_at", ("requested_at", "request_id"),
    ("request_id", _ID, False), ("user_id", _ID, False), ("requested_at", _AT, False), ("policy", pa.string(), False),
    ("experiment", pa.string(), True), ("slate_size", pa.int32(), False),
    ("candidates", pa.list_(pa.int64()), False), ("known_at", _AT, False),
)  # fmt: skip
"""One row per feed opened; `candidates` is the pool that the policy could choose from, which makes replay possible."""

IMPRESSIONS = _table(
    "impressions", "shown_at", ("shown_at", "request_id", "position"),
    ("request_id", _ID, False), ("user_id", _ID, False), ("post_id", _ID, False), ("author_id", _ID, False),
    ("position", pa.int32(), False), ("shown_at", _AT, False), ("viewed_ms", _AT, False),
    ("policy", pa.string(), False), ("propensity", pa.float64(), True), ("experiment", pa.string(), True),
    ("feature_version", pa.string(), True), ("features", pa.list_(pa.float64()), True), ("known_at", _AT, False),
)  # fmt: skip
"""`position` counts from 0. `propensity`: probability that the logging policy puts this post at this position, or null
where the log has none. `viewed_ms` 0: the person did not look. `policy` begins with "derived" for impressions that
an adapter inferred and the log did not hold."""

ACTIONS = _table(
    "actions", "occurred_at", ("occurred_at", "action_id"),
    ("action_id", _ID, False), ("request_id", _ID, True), ("user_id", _ID, False), ("post_id", _ID, False),
    ("author_id", _ID, False), ("kind", pa.string(), False), ("value", pa.float64(), True),
    ("occurred_at", _AT, False), ("known_at", _AT, False),
)  # fmt: skip
"""kind: click, like, comment, share, dwell (value: seconds), profile, hide, report."""

SESSIONS = _table(
    "sessions", "started_at", ("started_at", "user_id"),
    ("user_id", _ID, False), ("started_at", _AT, False), ("ended_at", _AT, False), ("requests", pa.int32(), False),
)  # fmt: skip

TABLES = {spec.name: spec for spec in (USERS, FRIENDSHIPS, BLOCKS, POSTS, TOPICS, SUBJECTS, REQUESTS, IMPRESSIONS,
                                       ACTIONS, SESSIONS)}  # fmt: skip

POST_KINDS = ("text", "photo", "video", "share", "quote", "link")
VISIBILITIES = ("public", "friends", "list", "private")
FRIENDSHIP_KINDS = ("friend", "follow", "special_care")
BLOCK_KINDS = ("block", "hide_their_posts", "deny_my_posts")
ACTION_KINDS = ("click", "like", "comment", "share", "dwell", "profile", "hide", "report")
