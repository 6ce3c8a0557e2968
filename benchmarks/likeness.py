"""`simulate --like`: an environment whose parameters are known, fitted from its log alone, again and again.

Every log is of another population; each is fitted by the same front door that the command line uses. The table says how
often the 95% intervals hold the parameter that the log was made with.
"""

import multiprocessing
import os
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.claims import Claim, Result, run
from contracts.progress import say
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, simulate
from simulator.likeness import fit_log, read_log
from simulator.likeness.estimates import Estimate, Fit
from simulator.likeness.log import LoggedLog
from simulator.likeness.looks import ENGAGING_A, fit_examination

TRUTH = EnvironmentSettings(
    examination_power=0.6, life_hours=(12.0, 40.0, 60.0, 24.0, 18.0, 80.0), task_levels=(1.2, 0.8, 1.5, 1.6, 1.4),
    tie_slopes=(0.4, -0.5, 0.6, 0.5, -0.6), request_sigma=0.6, requests_per_day=1.6, session_end=0.5, return_pull=0.7,
    posting_sigma=0.8, posts_per_day=0.9, friend_sigma=0.5, mean_friends=20.0, warmup_days=2,
    kind_shares=(0.25, 0.25, 0.2, 0.1, 0.1, 0.1), visibility_shares=(0.7, 0.2, 0.06, 0.04),
    hour_weights=(3, 2, 1, 1, 1, 2, 3, 5, 5, 4, 4, 4, 5, 4, 4, 4, 5, 5, 6, 7, 8, 8, 6, 4),
)  # fmt: skip
"""Far from the environment's defaults, so that a fit that keeps a default is caught."""
GROUPS = {
    "examination_power": "examination", "life_hours": "half-lives", "task_levels": "levels by task",
    "tie_slopes": "slopes with tie strength", "request_sigma": "return times", "requests_per_day": "return times",
    "session_end": "return times", "return_pull": "return times", "posting_sigma": "posts per author",
    "posts_per_day": "posts per author", "friend_sigma": "friend graph", "mean_friends": "friend graph",
    "kind_shares": "kinds and visibilities", "visibility_shares": "kinds and visibilities", "hour_weights": "daily rhythm",
}  # fmt: skip
BLIND = ("examination exponent, looks not logged", "examination exponent, neither looks nor propensities logged")


@dataclass(frozen=True)
class Recovered:
    """One parameter of one log; `naive` is what the plain figure without the fit would say, where there is one."""

    name: str
    group: str
    truth: float
    estimate: Estimate
    naive: float = np.nan


def known(estimate: Estimate) -> float:
    """The true value of what an estimate that belongs to a setting is about."""
    value = getattr(TRUTH, estimate.setting)
    if estimate.place is None:
        return float(value)
    return value[estimate.place] / sum(value) if estimate.setting == "hour_weights" else value[estimate.place]


def fit_one(users: int, days: int, worlds: int, seed: int) -> list[Recovered]:
    """Simulates a log with the known parameters, fits it, and fits its examination once more without the evidence."""
    settings = TRUTH.model_copy(update={"users": users, "days": days, "seed": seed})
    # One thread a log: as many logs are fitted at once as there are cores.
    with threadpool_limits(1):
        return _fit_one(settings, worlds)


def _fit_one(settings: EnvironmentSettings, worlds: int) -> list[Recovered]:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(folder)
        simulate(workspace, settings)
        log = read_log(workspace.lake)
    fit, _ = fit_log(log, worlds=worlds)
    naive = {"return tail": _tail(log.session_user_S, log.users), "posting tail": _tail(log.author_P, log.users)}
    found = [
        Recovered(name, GROUPS[one.setting], known(one), one, naive.get(name, np.nan))
        for name, one in fit.estimates.items() if one.setting
    ]  # fmt: skip
    for name, absent in zip(BLIND, (("viewed_ms",), ("viewed_ms", "propensities"))):
        blind = Fit()
        fit_examination(_without(log, absent), blind)
        found.append(Recovered(name, name, TRUTH.examination_power, blind.estimates["examination exponent"], _raw(log)))
    return found


def _without(log: LoggedLog, absent: tuple[str, ...]) -> LoggedLog:
    """The same log as if it did not say what was looked at, or how likely each post was at its position."""
    shown = log.impressions
    assert shown is not None
    everything_I = np.ones_like(shown.viewed_I)
    return replace(log, impressions=replace(shown, viewed_I=everything_I), absent=dict.fromkeys(absent, "taken away"))


def _raw(log: LoggedLog) -> float:
    """Exponent of plain acts per impression by position, whatever stands there."""
    shown = log.impressions
    assert shown is not None
    acts_I = shown.acted_IA[:, ENGAGING_A].sum(axis=1)
    rate_K = np.bincount(shown.position_I, acts_I) / np.bincount(shown.position_I)
    return float(-np.polyfit(np.log1p(np.arange(len(rate_K))), np.log(rate_K), 1)[0])


def _tail(user_N: np.ndarray, users: int) -> float:
    """Plain standard deviation of the logarithm of people's counts, those without any left out."""
    counts_U = np.bincount(user_N, minlength=users)
    return float(np.log(counts_U[counts_U > 0]).std())


def study(fits: int, users: int, days: int, worlds: int) -> dict[str, list[Recovered]]:
    """Name -> what each log gave, in the order of seeds."""
    by_seed = {}
    with ProcessPoolExecutor(
        min(os.cpu_count() or 1, 4, fits), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        asked = {pool.submit(fit_one, users, days, worlds, 500 + fit): fit for fit in range(fits)}
        for done, future in enumerate(as_completed(asked), start=1):
            by_seed[asked[future]] = future.result()
            say(f"fitted {done} of {fits} logs")
    found = defaultdict(list)
    for fit in range(fits):
        for one in by_seed[fit]:
            found[one.name].append(one)
    return dict(found)


def _covered(ones: list[Recovered]) -> float:
    return float(np.mean([one.estimate.low <= one.truth <= one.estimate.high for one in ones]))


def _print_table(found: dict[str, list[Recovered]]) -> None:
    print(f"{'parameter':62} {'truth':>8} {'mean fit':>9} {'first interval':>21} {'covered':>9}", file=sys.stderr)
    for name, ones in found.items():
        first = ones[0].estimate
        covered = round(_covered(ones) * len(ones))
        mean = np.mean([one.estimate.value for one in ones])
        print(f"{name:62} {ones[0].truth:8.4g} {mean:9.4g} {f'{first.low:.4g} to {first.high:.4g}':>21} {covered:4d}/{len(ones)}",
              file=sys.stderr)  # fmt: skip


def measure(quick: bool) -> Result:
    """Share of 95% intervals that hold the parameter that the log was made with, over many logs."""
    fits, users, days, worlds = (2, 200, 8, 3) if quick else (40, 300, 10, 4)
    found = study(fits, users, days, worlds)
    _print_table(found)
    result = Result(
        sizes={"logs": fits, "users": users, "days": days, "worlds per fit": worlds, "seeds": f"500 to {499 + fits}"}
    )
    everything = [one for many in found.values() for one in many]
    pooled = _covered(everything)
    result.claims.append(
        Claim(f"95% intervals that hold the known parameter, all {len(everything)} of them", pooled, "share",
              goal="0.92 to 0.98", met=0.92 <= pooled <= 0.98)
    )  # fmt: skip
    # With few logs a share of covered intervals says little: the goal allows for four standard errors of it.
    least = 0.95 - 4 * np.sqrt(0.95 * 0.05 / fits) if quick else 0.88
    for group in (*dict.fromkeys(GROUPS.values()), *BLIND):
        ones = [one for one in everything if one.group == group]
        if not ones:
            result.not_measured.append(f"{group}: no log told it")
            continue
        covered = _covered(ones)
        name = f"{group}: 95% intervals that hold the known parameter ({len(ones)} intervals)"
        result.claims.append(Claim(name, covered, "share", goal=f"at least {least:.2f}", met=bool(covered >= least)))
    for name in ("return tail", "posting tail", *BLIND):
        ones = found.get(name, [])
        if ones:
            ours = float(np.mean([abs(one.estimate.value - one.truth) for one in ones]))
            plain = float(np.mean([abs(one.naive - one.truth) for one in ones]))
            result.claims.append(
                Claim(f"{name}: mean error", ours, "", "plain figure, no fit", plain, "below the peer", ours < plain)
            )
    return result


if __name__ == "__main__":
    run("likeness", measure)
