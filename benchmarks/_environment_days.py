"""`python -m benchmarks._environment_days days|log USERS DAYS`: days under a popularity policy, or a whole log.

In a process of its own, so that the peak memory is its own. Prints one JSON object. Seconds of days are those of the
processor, of one thread: the same whatever else the machine does. Shapes: N requests, K positions,
P posts, U users, C communities, D posts of a front page, A tasks.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from contracts.clock import DAY
from contracts.progress import say
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, log_tables, simulate
from simulator.environment.behaviour import Latents, respond
from simulator.environment.days import WORTH_A
from simulator.environment.happened import Log
from simulator.environment.lookups import Graph, rank_within
from simulator.environment.people import People, draw_people
from simulator.environment.posts import PUBLIC, Posts, draw_posts
from simulator.environment.simulate import latents_of
from simulator.environment.visits import MOST_REQUESTS_A_DAY, Visitors

K = 20
AT_ONCE = 20_000
"""Requests whose rows are made together, as they would be written."""


class FrontPages:
    """The most engaged-with posts of each community and of all, by turns, renewed daily; a second visit reads on."""

    def __init__(self, people: People, posts: Posts, live_us: int):
        self._community_U, self._posts, self._live_us = people.community_U, posts, live_us
        self._engagement_P = np.zeros(len(posts.author_P))
        self._page_CD = np.zeros((0, 0), np.int64)

    def renew(self, day_at: int) -> None:
        """Puts together the day's pages (C, D)."""
        created_P = self._posts.created_at_P
        live_P = np.flatnonzero(
            (created_P > day_at - self._live_us) & (created_P < day_at) & (self._posts.visibility_P == PUBLIC)
        )
        width = K * MOST_REQUESTS_A_DAY
        best = live_P[np.argsort(-self._engagement_P[live_P], kind="stable")][:width]
        others_P = np.setdiff1d(live_P, best)
        community_P = self._community_U[self._posts.author_P[others_P]]
        order = np.lexsort((others_P, -self._engagement_P[others_P], community_P))
        rank = rank_within(community_P[order])
        page_CD = np.full((int(self._community_U.max()) + 1, width), -1)
        kept = rank < width // 2
        page_CD[community_P[order][kept], 2 * rank[kept]] = others_P[order][kept]
        # What the community does not fill, the most popular of all do, in their order.
        next_CD = np.cumsum(page_CD < 0, axis=1) - 1
        self._page_CD = np.where(page_CD >= 0, page_CD, best[np.minimum(next_CD, len(best) - 1)])

    def slates(self, user_N: np.ndarray) -> np.ndarray:
        """Slates (N, K) for requests of a day in the order of their users."""
        turn_N = rank_within(user_N)
        return self._page_CD[self._community_U[user_N][:, None], turn_N[:, None] * K + np.arange(K)]

    def add(self, slates_NK: np.ndarray, acted_NKA: np.ndarray) -> None:
        """Counts what was done."""
        request_R, position_R = np.nonzero(acted_NKA[..., :4].any(axis=2))
        np.add.at(self._engagement_P, slates_NK[request_R, position_R], 1.0)


def run_day(rng: np.random.Generator, day_at: int, settings: EnvironmentSettings, visitors: Visitors, pages: FrontPages,
            latents: Latents, posts: Posts) -> tuple[int, int, float, Log]:  # fmt: skip
    """One day of everybody: (requests, rows, seconds of the policy, a part of the log)."""
    began = time.process_time()
    pages.renew(day_at)
    policy_s = time.process_time() - began
    user_N, at_N, session_N = visitors.requests_of_day(rng, day_at)
    slates_NK = pages.slates(user_N)
    reward_N, made = np.zeros(len(user_N)), 0
    for first in range(0, len(user_N), AT_ONCE):
        rows = slice(first, first + AT_ONCE)
        some_NK = slates_NK[rows]
        viewed_NK, acted_NKA = respond(rng, latents, user_N[rows], some_NK, at_N[rows])
        reward_N[rows] = (acted_NKA @ WORTH_A).sum(axis=1)
        log = Log(
            user_N[rows], at_N[rows], session_N[rows], some_NK, some_NK, (some_NK >= 0) * 1.0, viewed_NK, acted_NKA
        )
        pages.add(some_NK, acted_NKA)
        made += rows_of(rng, log, posts, 1 + first)
    shown_U = np.bincount(user_N, minlength=settings.users)
    visitors.end_day(rng, np.bincount(user_N, reward_N, settings.users), shown_U)
    return len(user_N), made, policy_s, log


def rows_of(rng: np.random.Generator, log: Log, posts: Posts, first_request: int) -> int:
    """Makes the tables' rows of a piece of log; returns how many."""
    requests = log_tables.requests_table(log, K, first_request, "popularity")
    impressions = log_tables.impressions_table(rng, log, posts, first_request, "popularity")
    done = log_tables.with_delays(rng, log_tables.feed_actions(rng, log, first_request))
    return requests.num_rows + impressions.num_rows + log_tables.actions_table(done, posts, 1).num_rows


def one_by_one(rng: np.random.Generator, log: Log, latents: Latents, posts: Posts, count: int) -> float:
    """The peer: the same formulas and rows for `count` requests, one request at a time; requests per second."""
    rows: list[tuple] = []
    began = time.process_time()
    for n in range(count):
        one = slice(n, n + 1)
        viewed_1K, acted_1KA = respond(rng, latents, log.user_N[one], log.slates_NK[one], log.at_N[one])
        look_K = rng.lognormal(0.7, 0.7, K) * viewed_1K[0]
        for position, post in enumerate(log.slates_NK[n]):
            rows.append((n, log.user_N[n], post, posts.author_P[post], position, log.at_N[n], look_K[position]))
        rows += [(n, position, TASK_NAMES[task]) for position, task in np.argwhere(acted_1KA[0])]
    return count / (time.process_time() - began)


def draws_alone(rng: np.random.Generator, log: Log) -> float:
    """The floor: nothing but the random numbers of a piece of log; requests per second."""
    n, looked = len(log.user_N), int(log.viewed_NK.sum())
    acts = int(log.acted_NKA.sum())
    began = time.process_time()
    for first in range(0, n, 4096):
        rng.random((min(4096, n - first), K, len(TASK_NAMES)))
    rng.random((n, K))
    rng.lognormal(0.7, 0.7, n * K)
    rng.integers(0, 5_000_000, n * K)
    rng.random((3, looked))
    rng.lognormal(0.0, 0.8, (2, acts))
    rng.random((4, acts))
    return n / (time.process_time() - began)


def measure(users: int, days: int) -> dict:
    """Draws people and posts, lets `days` days pass, and measures the peer and the floor on the last piece."""
    base_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    settings = EnvironmentSettings(users=users, days=days + 2, warmup_days=0, pool_size=K, slate_size=K)
    settings.check()
    rng = np.random.default_rng(settings.seed)
    began = time.process_time()
    people = draw_people(rng, settings)
    graph = Graph(users, people.edges, people.blocks)
    posts = draw_posts(rng, settings, people, graph)
    latents, edges = latents_of(settings, people, posts), len(people.edges.user_E)
    set_up_s = time.process_time() - began
    say(f"  people, ties and {len(posts.author_P):,} posts drawn ({set_up_s:.0f} s)")
    visitors, pages = Visitors(rng, settings, people.registered_at_U), FrontPages(people, posts, settings.live_us)
    wall, began, requests, rows, policy_s = time.perf_counter(), time.process_time(), 0, 0, 0.0
    for day in range(2, days + 2):
        made = run_day(rng, settings.start_at + day * DAY, settings, visitors, pages, latents, posts)
        requests, rows, policy_s = requests + made[0], rows + made[1], policy_s + made[2]
        say(f"  day {day - 1} of {days}: {requests:,} requests so far")
    days_s, wall_s = time.process_time() - began, time.perf_counter() - wall
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    log = made[3].take(np.arange(min(len(made[3].user_N), AT_ONCE)))
    return {
        "users": users, "days": days, "edges": edges, "posts": len(posts.author_P), "requests": requests, "rows": rows,
        "set_up_s": set_up_s, "days_s": days_s, "days_wall_s": wall_s, "policy_s": policy_s, "requests_per_s": requests / days_s,
        "peer_requests_per_s": one_by_one(rng, log, latents, posts, min(600, len(log.user_N))),
        "floor_requests_per_s": draws_alone(rng, log), "imports_mb": base_mb, "peak_mb": peak_mb,
        "filled": float((log.slates_NK >= 0).mean()),
    }  # fmt: skip


def measure_log(users: int, days: int) -> dict:
    """`feedloop simulate` as it is: pools, slates of 8, and the tables written."""
    settings = EnvironmentSettings(users=users, days=days, warmup_days=0)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = simulate(Workspace(Path(folder)), settings)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    requests, whole_s = report["counts"]["requests"], time.perf_counter() - began
    return {"users": users, "days": days, "requests": requests, "whole_s": whole_s, "requests_per_s": requests / whole_s,
            "peak_mb": peak_mb}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps({"days": measure, "log": measure_log}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
