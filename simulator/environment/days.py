"""The log, day by day: who opens the feed when, what is shown, what is done, and how that moves who comes back.

Shapes: N requests, M pool slots, K slate positions, A tasks, U users, P posts.
"""

from collections.abc import Iterator

import numpy as np

from contracts.clock import DAY
from contracts.tasks import TASKS
from simulator.environment.behaviour import Latents, contentment, respond
from simulator.environment.happened import Log
from simulator.environment.lookups import rank_within
from simulator.environment.policy import Outcome, Policy, Requests, check_chosen
from simulator.environment.pools import PoolMaker
from simulator.environment.posts import PUBLIC, Posts
from simulator.environment.settings import EnvironmentSettings
from simulator.environment.visits import Visitors
from simulator.environment.world import World

VIEWERS_AT_ONCE = 20_000
"""Viewers whose pools are drawn together: their friends' posts take the most memory of a day."""
WORTH_A = np.array([task.worth for task in TASKS])


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


def run_days(rng: np.random.Generator, settings: EnvironmentSettings, maker: PoolMaker, visitors: Visitors, policy: Policy,
             world: World) -> Iterator[Log]:  # fmt: skip
    """The log of each day. Within it the k-th requests of all viewers are made together: only one's own past matters."""
    popular = Popular(maker.posts, settings.live_us)
    for day in range(settings.days):
        day_at = settings.start_at + day * DAY
        popular_P, weight_P = popular.of_day(day_at)
        user_N, at_N, session_N = visitors.requests_of_day(rng, day_at)
        parts = [Log.empty(settings)]
        for row_N in _batches(user_N):
            pools_NM = maker.pools(rng, user_N[row_N], at_N[row_N], popular_P, weight_P)
            parts.append(
                _feeds(rng, maker, policy, world.latents, user_N[row_N], at_N[row_N], session_N[row_N], pools_NM)
            )
        log = Log.joined(parts)
        popular.add(log.slates_NK, log.acted_NKA)
        maker.end_day(day_at + DAY)
        policy.observe(_outcome(world.latents, log))
        visitors.end_day(rng, *_felt(settings, world.latents, log))
        world.end_day(day, log)
        order_N = np.lexsort((log.user_N, log.at_N))
        yield log.take(order_N[(log.slates_NK[order_N] >= 0).any(axis=1)])


def _batches(user_N: np.ndarray) -> Iterator[np.ndarray]:
    """Rows (N,) of requests, each viewer at most once, all first requests of the day before all second ones."""
    turn_N = rank_within(user_N)
    for turn in range(int(turn_N.max()) + 1 if len(turn_N) else 0):
        row_N = np.flatnonzero(turn_N == turn)
        yield from (row_N[first : first + VIEWERS_AT_ONCE] for first in range(0, len(row_N), VIEWERS_AT_ONCE))


def _feeds(rng: np.random.Generator, maker: PoolMaker, policy: Policy, latents: Latents, user_N: np.ndarray, at_N: np.ndarray,
           session_N: np.ndarray, pools_NM: np.ndarray) -> Log:  # fmt: skip
    """One feed for each of distinct viewers, and what they do with it."""
    filled_NM, post_NM, posts = pools_NM >= 0, np.maximum(pools_NM, 0), maker.posts
    requests = Requests(
        latents.user_ids_U[user_N], at_N, np.where(filled_NM, latents.post_ids_P[post_NM], -1),
        np.where(filled_NM, latents.user_ids_U[posts.author_P[post_NM]], -1),
        np.where(filled_NM, posts.created_at_P[post_NM], -1), maker.settings.slate_size,
    )  # fmt: skip
    chosen = policy.choose(rng, requests)
    check_chosen(policy.name, requests, chosen)
    slots_NK = chosen.slot_NK
    slates_NK = np.where(slots_NK >= 0, np.take_along_axis(pools_NM, np.maximum(slots_NK, 0), axis=1), -1)
    viewed_NK, acted_NKA = respond(rng, latents, user_N, slates_NK, at_N)
    request_R, place_R = np.nonzero(slates_NK >= 0)
    maker.seen.add(user_N[request_R], slates_NK[request_R, place_R])
    return Log(user_N, at_N, session_N, pools_NM, slates_NK, chosen.propensity_NK, viewed_NK, acted_NKA)


def _felt(settings: EnvironmentSettings, latents: Latents, log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Per person: what satisfaction follows, summed (U,), and over how many feeds or viewed posts (U,)."""
    if settings.satisfaction == "content":
        felt_N = contentment(latents, log.user_N, log.slates_NK, log.at_N, log.viewed_NK)
        viewed_U = np.bincount(log.user_N, log.viewed_NK.sum(axis=1), settings.users)
        return np.bincount(log.user_N, felt_N, settings.users), viewed_U
    reward_N = (log.acted_NKA @ WORTH_A).sum(axis=1)
    return np.bincount(log.user_N, reward_N, settings.users), np.bincount(log.user_N, minlength=settings.users)


def _outcome(latents: Latents, log: Log) -> Outcome:
    post_id_NK = np.where(log.slates_NK >= 0, latents.post_ids_P[np.maximum(log.slates_NK, 0)], -1)
    return Outcome(latents.user_ids_U[log.user_N], log.at_N, post_id_NK, log.viewed_NK, log.acted_NKA)
