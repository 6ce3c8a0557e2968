"""People and posts as tables of the contracts: ids instead of indices, nulls where nothing is.

Shapes: U users, E edges, P posts.
"""

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, SECOND
from contracts.tables import BLOCK_KINDS, POST_KINDS, VISIBILITIES
from simulator.environment.names import AGE_BANDS, CITIES, GENDERS
from simulator.environment.people import FOREVER, People
from simulator.environment.phrases import TOPICS
from simulator.environment.posts import LIST, Posts

FIRST_USER_ID = 1_001
FIRST_POST_ID = 500_001
SOURCES = ("import", "search", "suggestion")


def words(values: tuple, index_N: np.ndarray) -> pa.Array:
    """A text column (N,) out of few words, by index."""
    return pa.array([None if value is None else str(value) for value in values], pa.string()).take(pa.array(index_N))


def _moments(at_N: np.ndarray) -> pa.Array:
    return pa.array(at_N, pa.int64(), mask=at_N == FOREVER)


def lists(flat: np.ndarray, sizes_N: np.ndarray, dtype: pa.DataType, empty: np.ndarray | None = None) -> pa.Array:
    """A column of lists (N,) from their elements in a row; null where `empty`."""
    offsets = np.concatenate([[0], np.cumsum(sizes_N)]).astype(np.int32)
    mask = pa.array(empty) if empty is not None else None
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, dtype), mask=mask)


def users_table(people: People) -> pa.Table:
    """`users`, with invented names in the attributes."""
    count = len(people.registered_at_U)
    names = pa.MapArray.from_arrays(
        np.arange(count + 1, dtype=np.int32), pa.array(["name"] * count), pa.array(people.name_U, pa.string())
    )
    return pa.table({
        "user_id": FIRST_USER_ID + np.arange(count), "registered_at": people.registered_at_U,
        "age_band": words(AGE_BANDS, people.age_U), "gender": words(GENDERS, people.gender_U),
        "city": words(CITIES, people.city_U), "attributes": names, "known_at": people.registered_at_U + SECOND,
    })  # fmt: skip


def friendships_table(people: People, end_at: int) -> pa.Table:
    """`friendships`: friend rows both ways, follows one way, and a second row where special care was given."""
    edges = people.edges
    cared_E = (edges.care_since_E + 2 * SECOND < end_at) & (edges.care_since_E < edges.ended_at_E)
    at = np.concatenate([np.arange(len(edges.user_E)), np.flatnonzero(cared_E)])
    special = np.arange(len(at)) >= len(edges.user_E)
    since = np.where(special, edges.care_since_E[at], edges.since_E[at])
    kind = np.where(special, 2, np.where(edges.mutual_E[at], 0, 1))
    return pa.table({
        "user_id": FIRST_USER_ID + edges.user_E[at], "friend_id": FIRST_USER_ID + edges.friend_E[at], "since": since,
        "ended_at": _moments(edges.ended_at_E[at]), "kind": words(("friend", "follow", "special_care"), kind),
        "source": words(SOURCES, edges.source_E[at]),
        "known_at": np.where(special, since + SECOND, edges.known_at_E[at]),
    })  # fmt: skip


def blocks_table(people: People) -> pa.Table:
    """`blocks`; they are known one second after they were made."""
    blocks = people.blocks
    return pa.table({
        "user_id": FIRST_USER_ID + blocks.user_B, "target_id": FIRST_USER_ID + blocks.target_B,
        "kind": words(BLOCK_KINDS, blocks.kind_B), "since": blocks.since_B, "ended_at": _moments(blocks.ended_at_B),
        "known_at": blocks.since_B + SECOND,
    })  # fmt: skip


def posts_table(posts: Posts) -> pa.Table:
    """`posts`."""
    count = len(posts.author_P)
    origin_P = posts.ancestors_PD[:, 0]
    listed_P = posts.visibility_P == LIST
    sizes_P = np.bincount(posts.audience_L2[:, 0], minlength=count)
    return pa.table({
        "post_id": FIRST_POST_ID + np.arange(count), "author_id": FIRST_USER_ID + posts.author_P,
        "origin_post_id": pa.array(FIRST_POST_ID + origin_P, pa.int64(), mask=origin_P < 0),
        "subject_id": pa.nulls(count, pa.int64()), "created_at": posts.created_at_P,
        "edited_at": _moments(posts.edited_at_P), "known_at": posts.known_at_P, "kind": words(POST_KINDS, posts.kind_P),
        "topic": pa.array(posts.topic_P, pa.int32()), "text": pa.array(posts.text_P, pa.string()),
        "embedding": lists(posts.embedding_PC.ravel(), np.full(count, posts.embedding_PC.shape[1]), pa.float32()),
        "visibility": words(VISIBILITIES, posts.visibility_P),
        "audience": lists(FIRST_USER_ID + posts.audience_L2[:, 1], sizes_P, pa.int64(), ~listed_P),
        "deleted_at": _moments(posts.deleted_at_P),
    })  # fmt: skip


def topics_table(start_at: int) -> pa.Table:
    """`topics`, known before the log begins."""
    return pa.table({
        "topic": pa.array(range(len(TOPICS)), pa.int32()), "name": [topic.name for topic in TOPICS],
        "known_at": pa.array([start_at - DAY] * len(TOPICS), pa.int64()),
    })  # fmt: skip
