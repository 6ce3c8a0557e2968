"""The log, day by day: who opens the feed when, what is shown, what is done, and how that moves who comes back.

Shapes: N requests, M pool slots, K slate positions, A tasks, U users, P posts.
"""

from dataclasses import dataclass

import numpy as np

from contracts.clock import DAY, MINUTE, SECOND
from contracts.tasks import TASKS
from simulator.environment.behaviour import Latents, respond
from simulator.environment.lookups import Graph, rank_within
from simulator.environment.people import People
from simulator.environment.policy import chronological_order, draw_slates, mixture_propensities
from simulator.environment.pools import PoolMaker
from simulator.environment.posts import PUBLIC, Posts, rhythm
from simulator.environment.settings import EnvironmentSettings

MOST_REQUESTS_A_DAY = 24
SATISFACTION_MEMORY = 0.85


@dataclass
class Log:
    """Requests in time order, by index of users and posts; `acted_NKA` holds what happened."""

    user_N: np.ndarray
    at_N: np.ndarray
    session_N: np.ndarray
    pools_NM: np.ndarray
    slates_NK: np.ndarray
    propensities_NK: np.ndarray
    viewed_NK: np.ndarray
    acted_NKA: np.ndarray


def _requests_of_day(
    rng: np.random.Generator,
    settings: EnvironmentSettings,
    day_at: int,
    rate_U: np.ndarray,
    registered_at_U: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Viewer (N,), moment (N,) and session number (N,) of the day's requests, ordered by viewer and moment.

    Sessions are Poisson; each holds one request or more, some minutes apart.
    """
    # Rounded, since 1.45 requests a session is what the demo's log was drawn with.
    mean_length = round(1.0 / settings.session_end, 2)
    session_user_S = np.repeat(np.arange(len(rate_U)), rng.poisson(rate_U / mean_length))
    begin_S = day_at + rhythm(rng, len(session_user_S), settings.hour_weights)
    length_S = rng.geometric(settings.session_end, len(session_user_S))
    session_N = np.repeat(np.arange(len(session_user_S)), length_S)
    gap_N = np.where(
        rank_within(session_N) == 0, 0, SECOND * 20 + rng.exponential(4 * MINUTE, len(session_N)).astype(np.int64)
    )
    total_N = np.cumsum(gap_N)
    first_S = np.cumsum(length_S) - length_S
    at_N = begin_S[session_N] + total_N - total_N[first_S[session_N]] if len(session_N) else np.zeros(0, np.int64)
    user_N = session_user_S[session_N]
    kept_N = (at_N < min(day_at + DAY, settings.end_at - MINUTE)) & (at_N > registered_at_U[user_N] + MINUTE)
    user_N, at_N, session_N = user_N[kept_N], at_N[kept_N], session_N[kept_N]
    order_N = np.lexsort((session_N, at_N, user_N))
    user_N, at_N, session_N = user_N[order_N], at_N[order_N], session_N[order_N]
    few_N = rank_within(user_N) < MOST_REQUESTS_A_DAY
    return user_N[few_N], at_N[few_N], session_N[few_N]


class Popular:
    """Posts by engagement so far, for the part of the pool that comes from beyond friends; renewed daily."""

    def __init__(self, posts: Posts, live_us: int):
        self._posts, self._live_us = posts, live_us
        self._score_P = np.zeros(len(posts.author_P))

    def add(self, slates_NK: np.ndarray, acted_NKA: np.ndarray) -> None:
        """Counts clicks, likes, comments and shares."""
        filled_NK = slates_NK >= 0
        np.add.at(self._score_P, slates_NK[filled_NK], acted_NKA[..., :4].sum(axis=2)[filled_NK])

    def of_day(self, day_at: int) -> tuple[np.ndarray, np.ndarray]:
        """Live public posts and their cumulated weights 1 + engagement ** 1.2, for a day that begins at `day_at`."""
        created_P = self._posts.created_at_P
        live_P = np.flatnonzero(
            (created_P > day_at - self._live_us) & (created_P < day_at + DAY) & (self._posts.visibility_P == PUBLIC)
        )
        return live_P, np.cumsum(0.3 + self._score_P[live_P] ** 1.2)


def satisfaction_after(
    before_U: np.ndarray, reward_U: np.ndarray, shown_U: np.ndarray, usual: float | None
) -> tuple[np.ndarray, float]:
    """Satisfaction (U,) after a day, and the reward per feed that is now usual (`None`: no day has passed).

    It moves towards tanh((own reward per feed - usual) / 4) of who came, and stays as it was of who did not.
    """
    came_U = shown_U > 0
    if not came_U.any():
        return before_U, usual or 0.0
    mean_U = reward_U / np.maximum(shown_U, 1)
    today = float(mean_U[came_U].mean())
    usual = today if usual is None else 0.9 * usual + 0.1 * today
    moved_U = SATISFACTION_MEMORY * before_U + (1 - SATISFACTION_MEMORY) * np.tanh((mean_U - usual) / 4.0)
    return np.where(came_U, moved_U, before_U), usual


def run_days(
    rng: np.random.Generator,
    settings: EnvironmentSettings,
    people: People,
    graph: Graph,
    posts: Posts,
    latents: Latents,
) -> Log:
    """The whole log. Within a day the k-th requests of all viewers are made together: only one's own past matters."""
    users, k = settings.users, settings.slate_size
    rate_U = np.minimum(rng.lognormal(0.0, settings.request_sigma, users), 12.0)
    rate_U *= settings.requests_per_day / rate_U.mean()
    satisfaction_U = np.zeros(users)
    maker, popular = PoolMaker(settings, graph, posts), Popular(posts, settings.live_us)
    worth_A = np.array([task.worth for task in TASKS])
    parts: list[tuple[np.ndarray, ...]] = []
    sessions_before = 0
    usual = 0.0
    for day in range(settings.days):
        day_at = settings.start_at + day * DAY
        popular_P, weight_P = popular.of_day(day_at)
        user_N, at_N, session_N = _requests_of_day(
            rng, settings, day_at, rate_U * np.exp(settings.return_pull * satisfaction_U), people.registered_at_U
        )
        round_N = rank_within(user_N)
        reward_U, shown_U = np.zeros(users), np.zeros(users)
        first_part = len(parts)
        for turn in range(int(round_N.max()) + 1 if len(round_N) else 0):
            now_N = round_N == turn
            viewer_N, moment_N = user_N[now_N], at_N[now_N]
            pools_NM = maker.pools(rng, viewer_N, moment_N, popular_P, weight_P)
            sizes_N = (pools_NM >= 0).sum(axis=1)
            created_NM = np.where(pools_NM >= 0, posts.created_at_P[np.maximum(pools_NM, 0)], 0)
            chronological_NM = chronological_order(created_NM, pools_NM)
            slots_NK, _ = draw_slates(rng, chronological_NM, sizes_N, k, settings.epsilon)
            propensities_NK = mixture_propensities(slots_NK, chronological_NM, sizes_N, settings.epsilon)
            slates_NK = np.where(slots_NK >= 0, np.take_along_axis(pools_NM, np.maximum(slots_NK, 0), axis=1), -1)
            viewed_NK, acted_NKA = respond(rng, latents, viewer_N, slates_NK, moment_N)
            request_R, place_R = np.nonzero(slates_NK >= 0)
            maker.seen.add(viewer_N[request_R], slates_NK[request_R, place_R])
            reward_U[viewer_N] += (acted_NKA @ worth_A).sum(axis=1)
            shown_U[viewer_N] += 1
            parts.append((viewer_N, moment_N, session_N[now_N] + sessions_before, pools_NM, slates_NK, propensities_NK,
                          viewed_NK, acted_NKA))  # fmt: skip
        for part in parts[first_part:]:
            popular.add(part[4], part[7])
        sessions_before += int(session_N.max()) + 1 if len(session_N) else 0
        satisfaction_U, usual = satisfaction_after(satisfaction_U, reward_U, shown_U, usual if day else None)
    columns = [np.concatenate(column) for column in zip(*parts)] if parts else _empty(settings)
    order_N = np.lexsort((columns[0], columns[1]))
    order_N = order_N[(columns[4][order_N] >= 0).any(axis=1)]
    return Log(*(column[order_N] for column in columns))


def _empty(settings: EnvironmentSettings) -> list[np.ndarray]:
    k, m, a = settings.slate_size, settings.pool_size, len(TASKS)
    none, pools, slates = np.zeros(0, np.int64), np.zeros((0, m), np.int64), np.zeros((0, k), np.int64)
    return [none, none, none, pools, slates, np.zeros((0, k)), np.zeros((0, k), bool), np.zeros((0, k, a), bool)]
