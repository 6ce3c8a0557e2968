"""How often intervals hold the truth, how far estimates are from it, and whether they put policies in order: many logs of one world.

Shapes: N logs, P policies, E estimators.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.known_world import KnownWorld
from simulator.evaluation import (
    ESTIMATORS,
    FAMILIES,
    SLATE_ESTIMATORS,
    LoggedData,
    Target,
    Terms,
    bernstein_interval,
    bootstrap,
    percentile_interval,
    slope,
    student_interval,
    value,
)

TUNED = ("switch_dr", "dros")
PLAIN = {name: one for name, one in {**ESTIMATORS, **SLATE_ESTIMATORS}.items() if name not in ("replay", "clipped_ips")}


@dataclass(frozen=True)
class Row:
    """One estimator over all logs: coverage of three intervals at 95%, mean width of the bootstrap one, bias and root mean
    square error relative to the truth, and the mean of Kendall's tau between estimated and true order of all policies (NaN
    for what is tuned, which is estimated for the judged ones only)."""

    bootstrap: float
    student: float
    bernstein: float
    width: float
    bias: float
    error: float
    tau: float


@dataclass
class Tally:
    """What the logs so far said: `point_NPE`, and hits and widths of the judged policies' intervals."""

    points: list[np.ndarray]
    hits: list[np.ndarray]
    widths: list[np.ndarray]


def estimates(log: LoggedData, target: Target, names: tuple[str, ...]) -> dict[str, Terms]:
    """Terms of the named estimators; those of a family are tuned by SLOPE on this log."""
    return {
        name: PLAIN[name](log, target) if name in PLAIN else slope(FAMILIES[name], log, target).terms for name in names
    }


def judge_log(tally: Tally, log: LoggedData, targets: list[Target], truth_P: np.ndarray, names: tuple[str, ...],
              judged: tuple[int, ...], resamples: int, generator: np.random.Generator) -> None:  # fmt: skip
    """Adds one log: points of all policies (what SLOPE tunes only of those in `judged`), intervals of those in `judged`."""
    terms = {
        (p, name): one
        for p, target in enumerate(targets)
        for name, one in estimates(log, target, names if p in judged else tuple(n for n in names if n in PLAIN)).items()
    }
    tally.points.append(
        np.array([[value(terms[p, n]) if (p, n) in terms else np.nan for n in names] for p in range(len(targets))])
    )
    keyed = {f"{p} {name}": terms[p, name] for p in judged for name in names}
    resampled = bootstrap(keyed, log.viewer_R, resamples, generator)
    hits, widths = np.zeros((len(judged), len(names), 3)), np.zeros((len(judged), len(names)))
    for i, p in enumerate(judged):
        for e, name in enumerate(names):
            one = terms[p, name]
            bounds = (percentile_interval(resampled[f"{p} {name}"]), student_interval(one, log.viewer_R),
                      bernstein_interval(one, log.viewer_R))  # fmt: skip
            hits[i, e] = [low <= truth_P[p] <= high for low, high in bounds]
            widths[i, e] = bounds[0][1] - bounds[0][0]
    tally.hits.append(hits)
    tally.widths.append(widths)


def rows(tally: Tally, truth_P: np.ndarray, names: tuple[str, ...], judged: tuple[int, ...]) -> dict[str, Row]:
    """The table: coverage over the judged policies and all logs, errors likewise, order over all policies."""
    point_NPE, hits_E3 = np.array(tally.points), np.mean(tally.hits, axis=(0, 1))
    width_E = np.mean(tally.widths, axis=(0, 1))
    chosen = list(judged)
    off_NPE = point_NPE[:, chosen] / truth_P[chosen][None, :, None] - 1
    tau_E = [
        float(np.mean([stats.kendalltau(point_PE[:, e], truth_P).statistic for point_PE in point_NPE]))
        for e in range(len(names))
    ]
    return {
        name: Row(
            bootstrap=float(hits_E3[e, 0]), student=float(hits_E3[e, 1]), bernstein=float(hits_E3[e, 2]),
            width=float(width_E[e]), bias=float(off_NPE[:, :, e].mean()),
            error=float(np.sqrt(np.mean(off_NPE[:, :, e] ** 2))), tau=tau_E[e],
        )
        for e, name in enumerate(names)
    }  # fmt: skip


def known_world_study(
    *, fatigue: float, logs: int, requests: int, viewers: int, resamples: int, seed: int
) -> dict[str, Row]:
    """Ten policies in a world of eight contexts and 60 slates; intervals of a poor, a middling and a good one."""
    generator = np.random.default_rng(seed)
    world = KnownWorld.make(generator, posts=5, exploration=0.15, fatigue=fatigue, spread=0.3)
    policies = world.policies(10, generator)
    truth_P = np.array([world.true_value(policy_CS) for policy_CS in policies])
    names, judged, tally = (*PLAIN, *TUNED), (1, 5, 9), Tally([], [], [])
    for _ in range(logs):
        sampled = world.draw(requests, viewers, generator)
        targets = [world.target(sampled, policy_CS) for policy_CS in policies]
        judge_log(tally, sampled.log, targets, truth_P, names, judged, resamples, generator)
    return rows(tally, truth_P, names, judged)
