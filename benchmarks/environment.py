"""The behaviour environment's own cost from ten thousand to a million people, beside requests one at a time and bare draws.

Shapes: S sizes.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import numpy as np

from benchmarks._long_term import weeks
from benchmarks.claims import Claim, Result, run
from contracts.progress import stage

FULL, QUICK = ((10_000, 8), (100_000, 2), (1_000_000, 1)), ((2_000, 4), (20_000, 1))
"""People and days of each size: enough requests to time, few enough to wait for."""
GOAL_PER_S = 20_000


def measure(quick: bool) -> Result:
    """Days of feeds of 20 posts under a popularity policy (policy, visits, responses, satisfaction and the log's rows), by
    number of people, each in a process of its own on one core; whole logs with pools, written; and what click-bait does."""
    found = [_worker("days", users, days) for users, days in (QUICK if quick else FULL)]
    judged = found[-1] if quick else found[1]
    what = f"20-post feeds under a popularity policy, {judged['users']:,} people"
    result = Result(sizes={"days": found})
    result.claims += [
        Claim(f"environment: {what}", judged["requests_per_s"], "requests per CPU second", "the same formulas, one request at a time",
              judged["peer_requests_per_s"], f"at least {GOAL_PER_S:,}", judged["requests_per_s"] >= GOAL_PER_S),
        Claim(f"environment: {what}, beside the random numbers alone (floor)", judged["requests_per_s"], "requests per CPU second",
              "draws", judged["floor_requests_per_s"]),
    ]  # fmt: skip
    result.claims += [
        Claim(f"environment: feeds of {one['users']:,} people", one["requests_per_s"], "requests per CPU second")
        for one in found
    ]
    result.claims += [
        Claim(f"environment: memory per person, {one['users']:,} people", 1e3 * _own_mb(one) / one["users"], "kB")
        for one in found
    ]
    people_S = [one["users"] for one in found]
    per_request = _exponent(people_S, [one["days_s"] / one["requests"] for one in found])
    drawn = _exponent([one["edges"] + one["posts"] for one in found], [one["set_up_s"] for one in found])
    memory = _exponent(people_S, [_own_mb(one) for one in found])
    # A tenth above linear is what sorting may cost.
    result.claims += [
        Claim("environment: growth exponent of the time per request with people", per_request, "power"),
        Claim("environment: growth exponent of the time to draw people, ties and posts with their number", drawn, "power"),
        Claim("environment: growth exponent of memory with people", memory, "power", goal="at most 1.1", met=memory <= 1.1),
    ]  # fmt: skip
    result.claims += _whole_logs(result, quick)
    result.claims += _long_term(result, quick)
    return result


def _whole_logs(result: Result, quick: bool) -> list[Claim]:
    users, days = (10_500, (4, 5)) if quick else (30_000, (4, 8))
    short, long = (_worker("log", users, n) for n in days)
    result.sizes["logs"] = [short, long]
    return [
        Claim(f"environment: whole logs with pools, {users:,} people, written", long["requests_per_s"], "requests/s"),
        Claim(f"environment: peak memory of {days[1]} days", long["peak_mb"], "MB", f"{days[0]} days", short["peak_mb"]),
    ]  # fmt: skip


def _long_term(result: Result, quick: bool) -> list[Claim]:
    """Click-bait against close ties, for several seeds: every seed must show the gain and the loss."""
    users, seeds = (300, (1,)) if quick else (600, (1, 2, 3, 4, 5))
    pairs = []
    for seed in seeds:
        with stage(f"long term, seed {seed}"):
            pairs.append([weeks(users, 21, seed, policy) for policy in ("bait", "ties")])
    result.sizes["long term"] = {"users": users, "days": 21, "seeds": seeds,
                                 "bait, ties": [[asdict(one) for one in pair] for pair in pairs]}  # fmt: skip
    what = (
        ("clicks per impression of the first 4 days", "early_clicks", "clicks", 1),
        ("clicks of the last week", "clicks", "clicks", -1),
        ("requests of the last week", "requests", "requests", -1),
        ("people who come in the last week", "people", "people", -1),
    )
    claims = []
    for name, field, unit, sign in what:
        bait, ties = (np.array([getattr(pair[i], field) for pair in pairs]) for i in (0, 1))
        held = int((sign * (bait - ties) > 0).sum())
        goal = f"{'above' if sign > 0 else 'below'} it for all of {len(seeds)} seeds"
        claims.append(Claim(f"environment, click-bait: {name} ({held} of {len(seeds)} seeds)", bait.mean(), unit, "close ties first",
                            ties.mean(), goal, held == len(seeds)))  # fmt: skip
    return claims


def _worker(kind: str, users: int, days: int) -> dict:
    with stage(f"{users:,} people, {days} days, {kind}"):
        command = [sys.executable, "-m", "benchmarks._environment_days", kind, str(users), str(days)]
        one_core = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=one_core)
    return json.loads(done.stdout.splitlines()[-1])


def _own_mb(one: dict) -> float:
    return one["peak_mb"] - one["imports_mb"]


def _exponent(size_S: list[int], value_S: list[float]) -> float:
    """Slope of log(value) over log(size)."""
    return float(np.polyfit(np.log(size_S), np.log(value_S), 1)[0])


if __name__ == "__main__":
    run("environment", measure)
