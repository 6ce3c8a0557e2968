"""People: who they are, what they like, who is tied to whom and how strongly, who has blocked whom.

Shapes: U users (by index), T topics, E directed edges, B blocks.
"""

from dataclasses import dataclass

import numpy as np

from contracts.clock import DAY, HOUR, SECOND
from simulator.environment.names import AGE_BANDS, AGE_SHARES, CITIES, FIRST_NAMES, GENDER_SHARES, GENDERS, LAST_NAMES
from simulator.environment.phrases import TOPICS
from simulator.environment.settings import EnvironmentSettings

FOREVER = np.iinfo(np.int64).max
"""Stands for "never ended" and "never deleted" in the arrays; the tables hold null."""
HISTORY_MONTHS = 36
"""Accounts and friendships older than the log lie on the first days of so many months before it."""


PAIRS_AT_ONCE = 200_000
"""Pairs whose neighbours are compared together: they take more memory than the whole graph."""


@dataclass(frozen=True)
class Edges:
    """Directed friendship pairs, sorted by (user, friend); times in UTC microseconds."""

    user_E: np.ndarray
    friend_E: np.ndarray
    since_E: np.ndarray
    known_at_E: np.ndarray
    ended_at_E: np.ndarray
    mutual_E: np.ndarray
    tie_E: np.ndarray
    care_since_E: np.ndarray
    source_E: np.ndarray


@dataclass(frozen=True)
class Blocks:
    """Directed blocks; `kind_B` indexes `contracts.tables.BLOCK_KINDS`."""

    user_B: np.ndarray
    target_B: np.ndarray
    kind_B: np.ndarray
    since_B: np.ndarray
    ended_at_B: np.ndarray


@dataclass(frozen=True)
class People:
    """All people by index, their edges and blocks."""

    registered_at_U: np.ndarray
    age_U: np.ndarray
    gender_U: np.ndarray
    city_U: np.ndarray
    name_U: np.ndarray
    community_U: np.ndarray
    taste_UT: np.ndarray
    style_UA: np.ndarray
    edges: Edges
    blocks: Blocks


def _months_back(settings: EnvironmentSettings) -> np.ndarray:
    month = settings.start.year * 12 + settings.start.month - 1 - np.arange(HISTORY_MONTHS, 0, -1)
    return (month - 1970 * 12).astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)


def _old_moments(rng: np.random.Generator, settings: EnvironmentSettings, after_N: np.ndarray) -> np.ndarray:
    """A random historic moment (N,) in a month after that of `after_N` where there is one; else `after_N` + 1 hour."""
    months = _months_back(settings)
    first_N = np.searchsorted(months, after_N)
    picked_N = first_N + np.floor(rng.random(len(after_N)) * (len(months) - first_N)).astype(np.int64)
    inside_N = rng.integers(0, DAY, len(after_N))
    at_N = months[np.minimum(picked_N, len(months) - 1)] + inside_N
    return np.where(first_N < len(months), at_N, np.minimum(after_N + HOUR, settings.start_at - HOUR))


def _pick(rng: np.random.Generator, weights_U: np.ndarray, low_N: np.ndarray, high_N: np.ndarray) -> np.ndarray:
    """One index (N,) from each half-open range, with probability proportional to weight."""
    total = np.concatenate([[0.0], np.cumsum(weights_U)])
    at_N = total[low_N] + rng.random(len(low_N)) * (total[high_N] - total[low_N])
    return np.clip(np.searchsorted(total, at_N, side="right") - 1, low_N, high_N - 1)


def _pairs(
    rng: np.random.Generator, community_U: np.ndarray, city_U: np.ndarray, wanted: int, sigma: float
) -> np.ndarray:
    """Distinct undirected pairs (P, 2): most inside communities, some by city, by chance, and by a common friend."""
    users = len(community_U)
    weight_U = rng.lognormal(0.0, sigma, users)
    parts = []
    for share, group_U in ((0.58, community_U), (0.12, city_U), (0.15, np.zeros(users, np.int64))):
        order_U = np.argsort(group_U, kind="stable")
        sorted_U = group_U[order_U]
        count = int(wanted * share * 1.35)
        a_N = _pick(rng, weight_U[order_U], np.zeros(count, np.int64), np.full(count, users))
        low_N = np.searchsorted(sorted_U, sorted_U[a_N], side="left")
        high_N = np.searchsorted(sorted_U, sorted_U[a_N], side="right")
        b_N = _pick(rng, weight_U[order_U], low_N, high_N)
        parts.append(np.stack([order_U[a_N], order_U[b_N]], axis=1))
    pairs = np.concatenate(parts)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    via = both[rng.integers(0, len(both), int(wanted * 0.25))]
    low_N = np.searchsorted(both[:, 0], via[:, 1], side="left")
    high_N = np.searchsorted(both[:, 0], via[:, 1], side="right")
    third_N = both[low_N + np.floor(rng.random(len(via)) * (high_N - low_N)).astype(np.int64), 1]
    pairs = np.sort(np.concatenate([pairs, np.stack([via[:, 0], third_N], axis=1)]), axis=1)
    keys = np.unique(pairs[:, 0] * users + pairs[:, 1])
    keys = keys[keys // users != keys % users]
    kept = np.sort(rng.permutation(len(keys))[:wanted])
    return np.stack([keys[kept] // users, keys[kept] % users], axis=1)


def _mutual_counts(pairs: np.ndarray, users: int) -> np.ndarray:
    """Common neighbours (P,) of each pair."""
    from scipy.sparse import csr_matrix

    ones = np.ones(len(pairs), np.int32)
    graph = csr_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=(users, users))
    graph = graph + graph.T
    counts = [
        np.asarray(graph[some[:, 0]].multiply(graph[some[:, 1]]).sum(axis=1)).ravel()
        for some in (pairs[first : first + PAIRS_AT_ONCE] for first in range(0, len(pairs), PAIRS_AT_ONCE))
    ]
    return np.concatenate(counts) if counts else np.zeros(0, np.int64)


def _draw_edges(
    rng: np.random.Generator, settings: EnvironmentSettings, registered_at_U: np.ndarray, community_U: np.ndarray,
    city_U: np.ndarray,
) -> Edges:  # fmt: skip
    users, start, end = settings.users, settings.start_at, settings.end_at
    wanted = max(int(users * settings.mean_friends / 2), 1)
    pairs = _pairs(rng, community_U, city_U, wanted, settings.friend_sigma)
    a_P, b_P = pairs[:, 0], pairs[:, 1]
    count = len(pairs)
    same_city_P, same_community_P = city_U[a_P] == city_U[b_P], community_U[a_P] == community_U[b_P]
    level_P = (
        -2.2 + 1.3 * rng.standard_normal(count) + 0.7 * same_community_P + 0.5 * same_city_P
        + 0.35 * np.log1p(_mutual_counts(pairs, users))
    )  # fmt: skip
    both_registered_P = np.maximum(registered_at_U[a_P], registered_at_U[b_P])
    recent_P = (both_registered_P >= start) | (rng.random(count) < settings.new_friend_share)
    during_P = np.maximum(both_registered_P, start) + (
        rng.exponential(3 * DAY, count) * np.where(both_registered_P >= start, 1, 3)
    ).astype(np.int64)
    since_P = np.where(recent_P, during_P, _old_moments(rng, settings, np.minimum(both_registered_P, start)))
    ended_P = np.where(
        rng.random(count) < 0.015,
        np.maximum(since_P, start) + rng.integers(DAY, max(end - start, DAY + 1), count),
        FOREVER,
    )
    one_way_P = rng.random(count) < 0.06
    source_P = rng.choice(3, count, p=[0.5, 0.3, 0.2])

    user_E = np.concatenate([a_P, b_P[~one_way_P]])
    friend_E = np.concatenate([b_P, a_P[~one_way_P]])
    of_E = np.concatenate([np.arange(count), np.flatnonzero(~one_way_P)])
    tie_E = 1.0 / (1.0 + np.exp(-1.2 * (level_P[of_E] + 0.45 * rng.standard_normal(len(of_E)))))
    cared_E = (rng.random(len(of_E)) < 0.25 * tie_E**2) & ~one_way_P[of_E]
    care_since_E = np.where(cared_E, since_P[of_E] + rng.integers(1, DAY, len(of_E)), FOREVER)
    known_at_E = since_P[of_E] + rng.integers(SECOND, 10 * SECOND, len(of_E))
    inside_E = (known_at_E < end) & (since_P[of_E] < end)
    order_E = np.lexsort((friend_E, user_E))
    order_E = order_E[inside_E[order_E]]
    ended_E = np.where(ended_P < end, ended_P, FOREVER)[of_E]
    return Edges(
        user_E[order_E], friend_E[order_E], since_P[of_E][order_E], known_at_E[order_E], ended_E[order_E],
        ~one_way_P[of_E][order_E], tie_E[order_E], care_since_E[order_E], source_P[of_E][order_E],
    )  # fmt: skip


def _draw_blocks(
    rng: np.random.Generator, settings: EnvironmentSettings, registered_at_U: np.ndarray, edges: Edges
) -> Blocks:
    """Few blocks of all kinds: against strangers, and against friends whose tie is weak."""
    users, start, end = settings.users, settings.start_at, settings.end_at
    strangers = max(users // 10, 1)
    weak_E = np.flatnonzero(rng.random(len(edges.user_E)) < 0.015 * (1 - edges.tie_E) ** 4)
    user_B = np.concatenate([rng.integers(0, users, strangers), edges.user_E[weak_E]])
    target_B = np.concatenate([rng.integers(0, users, strangers), edges.friend_E[weak_E]])
    kind_B = np.concatenate(
        [rng.choice(3, strangers, p=[0.7, 0.15, 0.15]), rng.choice(3, len(weak_E), p=[0.15, 0.6, 0.25])]
    )
    fit_B = (user_B != target_B) & (np.maximum(registered_at_U[user_B], registered_at_U[target_B]) < start)
    user_B, target_B, kind_B = user_B[fit_B], target_B[fit_B], kind_B[fit_B]
    _, first = np.unique(np.minimum(user_B, target_B) * users + np.maximum(user_B, target_B), return_index=True)
    user_B, target_B, kind_B = user_B[first], target_B[first], kind_B[first]
    old_B = rng.random(len(user_B)) < 0.5
    old_at_B = _old_moments(rng, settings, np.maximum(registered_at_U[user_B], registered_at_U[target_B]))
    since_B = np.where(old_B, old_at_B, rng.integers(start, end - 10 * SECOND, len(user_B)))
    ended_B = np.where(
        rng.random(len(user_B)) < 0.1, np.maximum(since_B, start) + rng.integers(DAY, 9 * DAY, len(user_B)), FOREVER
    )
    return Blocks(user_B, target_B, kind_B, since_B, np.where(ended_B < end, ended_B, FOREVER))


def draw_people(rng: np.random.Generator, settings: EnvironmentSettings) -> People:
    """Everything about people that does not depend on posts and feeds."""
    users, topics = settings.users, len(TOPICS)
    communities = max(users // 55, 3)
    community_U = rng.choice(communities, users, p=rng.dirichlet(np.full(communities, 3.0)))
    home_C = rng.choice(len(CITIES), communities)
    city_U = np.where(rng.random(users) < 0.6, home_C[community_U], rng.choice(len(CITIES), users))
    joins_late_U = rng.random(users) < settings.newcomer_share
    span = settings.end_at - settings.start_at
    late_U = settings.start_at + (rng.random(users) * 0.75 * span).astype(np.int64)
    months = _months_back(settings)
    early_U = months[rng.integers(0, len(months) - 1, users)] + rng.integers(0, DAY, users)
    registered_at_U = np.where(joins_late_U, late_U, early_U)
    centre_CT = rng.normal(0.0, 1.1, (communities, topics))
    level_UT = centre_CT[community_U] + rng.normal(0.0, 1.1, (users, topics))
    taste_UT = 1.0 / (1.0 + np.exp(-1.6 * (level_UT - 1.0)))
    style_UA = np.exp(rng.normal(0.0, 0.35, (users, 5)))
    style_UA /= style_UA.mean(axis=0)
    edges = _draw_edges(rng, settings, registered_at_U, community_U, city_U)
    first, last = np.array(FIRST_NAMES, object), np.array(LAST_NAMES, object)
    name_U = first[rng.integers(0, len(first), users)] + " " + last[rng.integers(0, len(last), users)]
    return People(
        registered_at_U=registered_at_U, age_U=rng.choice(len(AGE_BANDS), users, p=AGE_SHARES),
        gender_U=rng.choice(len(GENDERS), users, p=GENDER_SHARES), city_U=city_U, name_U=name_U,
        community_U=community_U,
        taste_UT=taste_UT, style_UA=style_UA, edges=edges, blocks=_draw_blocks(rng, settings, registered_at_U, edges),
    )  # fmt: skip
