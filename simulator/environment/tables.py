"""The log as tables of the contracts: ids instead of indices, delays until rows are known, nulls where nothing is.

Shapes: U users, E edges, P posts, N requests, I impressions, J actions.
"""

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR, MINUTE, SECOND
from contracts.tables import BLOCK_KINDS, POST_KINDS, VISIBILITIES
from contracts.tasks import TASK_NAMES
from simulator.environment.behaviour import IN_WINDOW
from simulator.environment.days import Log
from simulator.environment.lookups import Graph
from simulator.environment.names import AGE_BANDS, CITIES, GENDERS
from simulator.environment.people import FOREVER, People
from simulator.environment.phrases import TOPICS
from simulator.environment.policy import POLICY_NAME
from simulator.environment.pools import PoolMaker
from simulator.environment.posts import Posts, rhythm
from simulator.environment.settings import EnvironmentSettings

FIRST_USER_ID = 1_001
FIRST_POST_ID = 500_001
SOURCES = ("import", "search", "suggestion")


def _words(values: tuple, index_N: np.ndarray) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values], pa.string()).take(pa.array(index_N))


def _moments(at_N: np.ndarray) -> pa.Array:
    return pa.array(at_N, pa.int64(), mask=at_N == FOREVER)


def _lists(flat: np.ndarray, sizes_N: np.ndarray, dtype: pa.DataType, empty: np.ndarray | None = None) -> pa.Array:
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
        "age_band": _words(AGE_BANDS, people.age_U), "gender": _words(GENDERS, people.gender_U),
        "city": _words(CITIES, people.city_U), "attributes": names, "known_at": people.registered_at_U + SECOND,
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
        "ended_at": _moments(edges.ended_at_E[at]), "kind": _words(("friend", "follow", "special_care"), kind),
        "source": _words(SOURCES, edges.source_E[at]),
        "known_at": np.where(special, since + SECOND, edges.known_at_E[at]),
    })  # fmt: skip


def blocks_table(people: People) -> pa.Table:
    """`blocks`; they are known one second after they were made."""
    blocks = people.blocks
    return pa.table({
        "user_id": FIRST_USER_ID + blocks.user_B, "target_id": FIRST_USER_ID + blocks.target_B,
        "kind": _words(BLOCK_KINDS, blocks.kind_B), "since": blocks.since_B, "ended_at": _moments(blocks.ended_at_B),
        "known_at": blocks.since_B + SECOND,
    })  # fmt: skip


def posts_table(posts: Posts) -> pa.Table:
    """`posts`."""
    count = len(posts.author_P)
    origin_P = posts.ancestors_PD[:, 0]
    sizes_P = np.zeros(count, np.int64)
    for post, members in posts.audience.items():
        sizes_P[post] = len(members)
    listed = [posts.audience[post] for post in sorted(posts.audience)]
    listed_P = np.isin(np.arange(count), list(posts.audience))
    flat = np.concatenate(listed) if listed else np.zeros(0, np.int64)
    return pa.table({
        "post_id": FIRST_POST_ID + np.arange(count), "author_id": FIRST_USER_ID + posts.author_P,
        "origin_post_id": pa.array(FIRST_POST_ID + origin_P, pa.int64(), mask=origin_P < 0),
        "subject_id": pa.nulls(count, pa.int64()), "created_at": posts.created_at_P,
        "edited_at": _moments(posts.edited_at_P), "known_at": posts.known_at_P, "kind": _words(POST_KINDS, posts.kind_P),
        "topic": pa.array(posts.topic_P, pa.int32()), "text": pa.array(posts.text_P, pa.string()),
        "embedding": _lists(posts.embedding_PC.ravel(), np.full(count, posts.embedding_PC.shape[1]), pa.float32()),
        "visibility": _words(VISIBILITIES, posts.visibility_P),
        "audience": _lists(FIRST_USER_ID + flat, sizes_P, pa.int64(), ~listed_P),
        "deleted_at": _moments(posts.deleted_at_P),
    })  # fmt: skip


def topics_table(start_at: int) -> pa.Table:
    """`topics`, known before the log begins."""
    return pa.table({
        "topic": pa.array(range(len(TOPICS)), pa.int32()), "name": [topic.name for topic in TOPICS],
        "known_at": pa.array([start_at - DAY] * len(TOPICS), pa.int64()),
    })  # fmt: skip


def requests_table(log: Log, slate_size: int) -> pa.Table:
    """`requests`; the pool's posts stand in ascending order of id."""
    count = len(log.user_N)
    filled_NM = log.pools_NM >= 0
    return pa.table({
        "request_id": 1 + np.arange(count), "user_id": FIRST_USER_ID + log.user_N, "requested_at": log.at_N,
        "policy": pa.array([POLICY_NAME] * count, pa.string()), "experiment": pa.nulls(count, pa.string()),
        "slate_size": pa.array(np.full(count, slate_size), pa.int32()),
        "candidates": _lists(FIRST_POST_ID + log.pools_NM[filled_NM], filled_NM.sum(axis=1), pa.int64()),
        "known_at": log.at_N + SECOND // 2,
    })  # fmt: skip


def sessions_table(log: Log) -> pa.Table:
    """`sessions`: requests of one visit, from the first to a little after the last."""
    numbers, first, requests = np.unique(log.session_N, return_index=True, return_counts=True)
    ended = np.zeros(len(numbers), np.int64)
    np.maximum.at(ended, np.searchsorted(numbers, log.session_N), log.at_N)
    return pa.table({
        "user_id": FIRST_USER_ID + log.user_N[first], "started_at": log.at_N[first], "ended_at": ended + 30 * SECOND,
        "requests": pa.array(requests, pa.int32()),
    })  # fmt: skip


def impressions_table(rng: np.random.Generator, log: Log, posts: Posts) -> pa.Table:
    """`impressions` (I rows, in order of request and position)."""
    request_I, position_I = np.nonzero(log.slates_NK >= 0)
    post_I = log.slates_NK[request_I, position_I]
    count = len(post_I)
    look_I = np.maximum(rng.lognormal(0.7, 0.7, count) * 1000, 200).astype(np.int64)
    shown_I = log.at_N[request_I] + (150 + 40 * position_I) * (SECOND // 1000)
    return pa.table({
        "request_id": 1 + request_I, "user_id": FIRST_USER_ID + log.user_N[request_I], "post_id": FIRST_POST_ID + post_I,
        "author_id": FIRST_USER_ID + posts.author_P[post_I], "position": pa.array(position_I, pa.int32()),
        "shown_at": shown_I, "viewed_ms": np.where(log.viewed_NK[request_I, position_I], look_I, 0),
        "policy": pa.array([POLICY_NAME] * count, pa.string()), "propensity": log.propensities_NK[request_I, position_I],
        "experiment": pa.nulls(count, pa.string()), "feature_version": pa.nulls(count, pa.string()),
        "features": pa.nulls(count, pa.list_(pa.float64())),
        "known_at": shown_I + rng.integers(SECOND // 10, 5 * SECOND, count),
    })  # fmt: skip


def _feed_actions(rng: np.random.Generator, log: Log, posts: Posts) -> dict[str, np.ndarray]:
    """What was done in feeds: the five tasks, dwelling after a click, a look at the profile, rarely a report."""
    request_I, position_I = np.nonzero(log.viewed_NK)
    acted_IA = log.acted_NKA[request_I, position_I]
    count = len(request_I)
    hidden_I, clicked_I = acted_IA[:, TASK_NAMES.index("hide")], acted_IA[:, TASK_NAMES.index("click")]
    liked_I = acted_IA[:, TASK_NAMES.index("like")]
    extra = {
        "dwell": clicked_I | (rng.random(count) < 0.08), "profile": rng.random(count) < 0.01 + 0.05 * liked_I,
        "report": hidden_I & (rng.random(count) < 0.04),
    }  # fmt: skip
    happened = np.concatenate([acted_IA.T, np.stack(list(extra.values()))])
    kind_J, at_J = np.nonzero(happened)
    request_J, position_J = request_I[at_J], position_I[at_J]
    names = (*TASK_NAMES, *extra)
    seconds_K = np.array([6, 8, 70, 40, 5, 9, 15, 20], np.float64)
    delay_J = (seconds_K[kind_J] * rng.lognormal(0.0, 0.8, len(kind_J)) * SECOND).astype(np.int64) + SECOND
    late_J = rng.random(len(kind_J)) >= IN_WINDOW
    delay_J = np.where(
        late_J, DAY + rng.exponential(8 * HOUR, len(kind_J)).astype(np.int64), np.minimum(delay_J, 20 * HOUR)
    )
    shown_J = log.at_N[request_J] + (150 + 40 * position_J) * (SECOND // 1000)
    dwell_J = kind_J == names.index("dwell")
    value_J = np.where(dwell_J, np.round(rng.lognormal(2.2, 0.8, len(kind_J)), 1), np.nan)
    return {
        "request": request_J, "user": log.user_N[request_J], "post": log.slates_NK[request_J, position_J],
        "kind": np.array(names, object)[kind_J], "value": value_J, "occurred_at": shown_J + delay_J,
    }  # fmt: skip


def _profile_visits(rng: np.random.Generator, settings: EnvironmentSettings, people: People, graph: Graph,
                    maker: PoolMaker) -> dict[str, np.ndarray]:  # fmt: skip
    """Visits to friends' profiles outside the feed, the more the stronger the tie; no request stands behind them."""
    edges = people.edges
    count_E = rng.poisson(0.16 * edges.tie_E**1.6 * settings.days)
    edge_J = np.repeat(np.arange(len(edges.user_E)), count_E)
    at_J = (
        settings.start_at
        + rng.integers(0, settings.days, len(edge_J)) * DAY
        + rhythm(rng, len(edge_J), settings.hour_weights)
    )
    user_J, friend_J = edges.user_E[edge_J], edges.friend_E[edge_J]
    post_J = maker.shelf.pick(rng, friend_J, at_J - 14 * DAY, at_J)
    kept_J = (post_J >= 0) & graph.active(edge_J, at_J)
    user_J, post_J, at_J = user_J[kept_J], post_J[kept_J], at_J[kept_J]
    kept_J = maker.visibility.whole(user_J, post_J, at_J)
    user_J, post_J, at_J = user_J[kept_J], post_J[kept_J], at_J[kept_J]
    count = len(user_J)
    return {"request": np.full(count, -1), "user": user_J, "post": post_J, "kind": np.full(count, "profile", object),
            "value": np.full(count, np.nan), "occurred_at": at_J}  # fmt: skip


def actions_table(rng: np.random.Generator, settings: EnvironmentSettings, people: People, graph: Graph, posts: Posts,
                  log: Log) -> pa.Table:  # fmt: skip
    """`actions` known before the log's end; a few reach the lake up to an hour late."""
    parts = (
        _feed_actions(rng, log, posts),
        _profile_visits(rng, settings, people, graph, PoolMaker(settings, graph, posts)),
    )
    column = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(column["user"])
    late = rng.random(count) < 0.02
    delay = np.where(late, rng.integers(MINUTE, HOUR, count), rng.integers(SECOND // 5, 5 * SECOND, count))
    known_at = column["occurred_at"] + delay
    order = np.lexsort((column["post"], column["user"], column["occurred_at"]))
    order = order[known_at[order] < settings.end_at]
    column = {name: values[order] for name, values in column.items()}
    return pa.table({
        "action_id": 1 + np.arange(len(order)),
        "request_id": pa.array(1 + column["request"], pa.int64(), mask=column["request"] < 0),
        "user_id": FIRST_USER_ID + column["user"], "post_id": FIRST_POST_ID + column["post"],
        "author_id": FIRST_USER_ID + posts.author_P[column["post"]], "kind": pa.array(column["kind"], pa.string()),
        "value": pa.array(column["value"], pa.float64(), mask=np.isnan(column["value"])),
        "occurred_at": column["occurred_at"], "known_at": known_at[order],
    })  # fmt: skip
