"""What happened as tables of the contracts: requests, sessions, impressions and actions, with delays until rows are known.

Shapes: N requests, I impressions, J actions, E edges.
"""

import numpy as np
import pyarrow as pa

from contracts.clock import DAY, HOUR, MINUTE, SECOND
from contracts.tasks import TASK_NAMES
from simulator.environment.behaviour import IN_WINDOW, Latents
from simulator.environment.happened import Log
from simulator.environment.people import Edges
from simulator.environment.pools import PoolMaker
from simulator.environment.posts import Posts, rhythm
from simulator.environment.settings import EnvironmentSettings
from simulator.environment.tables import FIRST_POST_ID, FIRST_USER_ID, lists, words

Columns = dict[str, np.ndarray]


def requests_table(log: Log, slate_size: int, first_request: int, policy: str) -> pa.Table:
    """`requests`, numbered from `first_request`; the pool's posts stand in ascending order of id."""
    count = len(log.user_N)
    filled_NM = log.pools_NM >= 0
    return pa.table({
        "request_id": first_request + np.arange(count), "user_id": FIRST_USER_ID + log.user_N, "requested_at": log.at_N,
        "policy": words((policy,), np.zeros(count, np.int8)), "experiment": pa.nulls(count, pa.string()),
        "slate_size": pa.array(np.full(count, slate_size), pa.int32()),
        "candidates": lists(FIRST_POST_ID + log.pools_NM[filled_NM], filled_NM.sum(axis=1), pa.int64()),
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


def impressions_table(rng: np.random.Generator, log: Log, posts: Posts, first_request: int, policy: str) -> pa.Table:
    """`impressions` (I rows, in order of request and position)."""
    request_I, position_I = np.nonzero(log.slates_NK >= 0)
    post_I = log.slates_NK[request_I, position_I]
    count = len(post_I)
    look_I = np.maximum(rng.lognormal(0.7, 0.7, count) * 1000, 200).astype(np.int64)
    shown_I = log.at_N[request_I] + (150 + 40 * position_I) * (SECOND // 1000)
    return pa.table({
        "request_id": first_request + request_I, "user_id": FIRST_USER_ID + log.user_N[request_I], "post_id": FIRST_POST_ID + post_I,
        "author_id": FIRST_USER_ID + posts.author_P[post_I], "position": pa.array(position_I, pa.int32()),
        "shown_at": shown_I, "viewed_ms": np.where(log.viewed_NK[request_I, position_I], look_I, 0),
        "policy": words((policy,), np.zeros(count, np.int8)), "propensity": log.propensities_NK[request_I, position_I],
        "experiment": pa.nulls(count, pa.string()), "feature_version": pa.nulls(count, pa.string()),
        "features": pa.nulls(count, pa.list_(pa.float64())),
        "known_at": shown_I + rng.integers(SECOND // 10, 5 * SECOND, count),
    })  # fmt: skip


def feed_actions(rng: np.random.Generator, log: Log, first_request: int) -> Columns:
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
        "request": first_request + request_J, "user": log.user_N[request_J], "post": log.slates_NK[request_J, position_J],
        "kind": np.array(names, object)[kind_J], "value": value_J, "occurred_at": shown_J + delay_J,
    }  # fmt: skip


def profile_visits(
    rng: np.random.Generator,
    settings: EnvironmentSettings,
    maker: PoolMaker,
    latents: Latents,
    first_day: int,
    days: int,
) -> Columns:
    """Visits to friends' profiles outside the feed, the more the stronger the tie; no request stands behind them.

    They fall on `days` days of the log from `first_day` on.
    """
    graph = maker.graph
    edges: Edges = graph.edges
    edge_E = np.arange(len(edges.user_E))
    count_E = rng.poisson(0.16 * latents.tie_of_edges(edge_E, np.full(len(edge_E), first_day)) ** 1.6 * days)
    edge_J = np.repeat(edge_E, count_E)
    day_J = first_day + rng.integers(0, days, len(edge_J))
    at_J = settings.start_at + day_J * DAY + rhythm(rng, len(edge_J), settings.hour_weights)
    user_J, friend_J = edges.user_E[edge_J], edges.friend_E[edge_J]
    post_J = maker.shelf.pick(rng, friend_J, at_J - 14 * DAY, at_J)
    kept_J = (post_J >= 0) & graph.active(edge_J, at_J)
    user_J, post_J, at_J = user_J[kept_J], post_J[kept_J], at_J[kept_J]
    kept_J = maker.visibility.whole(user_J, post_J, at_J)
    user_J, post_J, at_J = user_J[kept_J], post_J[kept_J], at_J[kept_J]
    count = len(user_J)
    return {"request": np.full(count, -1), "user": user_J, "post": post_J, "kind": np.full(count, "profile", object),
            "value": np.full(count, np.nan), "occurred_at": at_J}  # fmt: skip


def with_delays(rng: np.random.Generator, columns: Columns) -> Columns:
    """Actions with the moment at which each is known; a few reach the lake up to an hour late."""
    count = len(columns["user"])
    late = rng.random(count) < 0.02
    delay = np.where(late, rng.integers(MINUTE, HOUR, count), rng.integers(SECOND // 5, 5 * SECOND, count))
    return {**columns, "known_at": columns["occurred_at"] + delay}


def joined(parts: list[Columns]) -> Columns:
    """Actions one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def actions_table(columns: Columns, posts: Posts, first_action: int) -> pa.Table:
    """`actions` in order of time, numbered from `first_action`."""
    order = np.lexsort((columns["post"], columns["user"], columns["occurred_at"]))
    column = {name: values[order] for name, values in columns.items()}
    return pa.table({
        "action_id": first_action + np.arange(len(order)),
        "request_id": pa.array(column["request"], pa.int64(), mask=column["request"] < 0),
        "user_id": FIRST_USER_ID + column["user"], "post_id": FIRST_POST_ID + column["post"],
        "author_id": FIRST_USER_ID + posts.author_P[column["post"]], "kind": pa.array(column["kind"], pa.string()),
        "value": pa.array(column["value"], pa.float64(), mask=np.isnan(column["value"])),
        "occurred_at": column["occurred_at"], "known_at": column["known_at"],
    })  # fmt: skip
