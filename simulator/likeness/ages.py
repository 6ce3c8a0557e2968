"""How interest in a post fades: the half-life of each kind, from likes (or shares) of friends' posts.

Among friends' posts in a pool, how old a post is says nothing of how good it is or how close its author: what falls
with age is the half-life's doing. Strangers' posts are left out, since popular ones are both older and better. Per kind,
on viewed impressions, with examination where looks are not logged:

    log E[likes] = level + slope x evening + log(floor + (1 - floor) 2 ** (-age / life)) - what stands above in the slate

by Poisson quasi-likelihood, with an interval that allows for viewers and authors who like, or are liked, more than others.

Shapes: I impressions, N impressions of one kind, X coefficients.
"""

import numpy as np
from scipy.optimize import minimize

from contracts.clock import DAY, HOUR
from contracts.tables import POST_KINDS
from contracts.tasks import TASK_NAMES
from simulator.likeness.estimates import Fit, clustered_covariance, on_log_scale
from simulator.likeness.log import LoggedLog
from simulator.likeness.slates import neighbours
from simulator.likeness.ties import befriended

FLOORS = {"like": 0.25, "share": 0.35}
"""Task -> the share of its rate that age does not take away; the environment's formulas have the same numbers."""
FEWEST_ACTS = 60
SPAN_HOURS = (0.5, 5_000.0)
LARGEST_ERROR = 0.9
"""Standard error of a log half-life from which on nothing is said: the interval would span a factor of more than 30."""


def fit_lives(log: LoggedLog, curve_K: np.ndarray, fit: Fit) -> None:
    """Adds one half-life a kind to `fit`; kinds with fewer than `FEWEST_ACTS` acts keep the default, and that is said."""
    shown = log.impressions
    if shown is None:
        fit.not_fitted["half-lives"] = log.absent["impressions"]
        return
    author_I = log.author_P[shown.post_I]
    kept_I = shown.viewed_I & befriended(log, shown.viewer_I, author_I)
    task = max(FLOORS, key=lambda name: int(shown.acted_IA[kept_I, TASK_NAMES.index(name)].sum()))
    acted_I = shown.acted_IA[:, TASK_NAMES.index(task)]
    fit.methods["half-lives"] = f"{task}s of friends' posts by age, kind by kind"
    looks_I = np.ones(len(author_I))
    if "viewed_ms" in log.absent:
        looks_I = curve_K[np.minimum(shown.position_I, len(curve_K) - 1)]
    age_I = np.maximum(shown.shown_at_I - log.created_at_P[shown.post_I], 0) / HOUR
    evening_I = np.cos(2 * np.pi * (shown.shown_at_I % DAY / HOUR - 20.0) / 24.0)
    # In the other half of the day close friends like nearly all they see, and a ceiling would hide the fall with age.
    kept_I &= evening_I >= 0
    above_I4 = neighbours(log, shown)
    for kind, name in enumerate(POST_KINDS):
        row_N = np.flatnonzero(kept_I & (log.kind_P[shown.post_I] == kind))
        acts = int(acted_I[row_N].sum())
        if acts < FEWEST_ACTS:
            fit.not_fitted[f"half-life of {name}"] = f"{acts} {task}s of friends' posts, fewer than {FEWEST_ACTS}"
            continue
        inputs_NX = np.column_stack([np.ones(len(row_N)), evening_I[row_N], above_I4[row_N]])
        log_life, error = _life(inputs_NX, age_I[row_N], looks_I[row_N], acted_I[row_N], FLOORS[task],
                                shown.viewer_I[row_N], author_I[row_N])  # fmt: skip
        if not np.log(SPAN_HOURS[0]) < log_life < np.log(SPAN_HOURS[1]) or not error < LARGEST_ERROR:
            fit.not_fitted[f"half-life of {name}"] = f"{acts} {task}s of friends' posts do not tell it"
            continue
        fit.estimates[f"half-life of {name}"] = on_log_scale(log_life, error, "hours", "life_hours", kind)


def _life(inputs_NX: np.ndarray, age_N: np.ndarray, looks_N: np.ndarray, acted_N: np.ndarray, floor: float,
          viewer_N: np.ndarray, author_N: np.ndarray) -> tuple[float, float]:  # fmt: skip
    """Logarithm of the half-life (of hours) and its standard error."""
    used_X = inputs_NX.std(axis=0) > 0
    used_X[0] = True
    inputs_NX = inputs_NX[:, used_X]

    def parts(log_life: float) -> tuple[np.ndarray, np.ndarray]:
        fresh_N = np.exp2(-age_N / np.exp(log_life))
        level_N = floor + (1 - floor) * fresh_N
        return np.log(level_N), (1 - floor) * fresh_N * np.log(2.0) * age_N / np.exp(log_life) / level_N

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        log_level_N, pull_N = parts(free[-1])
        log_mean_N = np.minimum(inputs_NX @ free[:-1] + log_level_N + np.log(looks_N), 3.0)
        mean_N = np.exp(log_mean_N)
        off_N = (mean_N - acted_N) / len(acted_N)
        value = float((mean_N - acted_N * log_mean_N).mean())
        return value, np.concatenate([off_N @ inputs_NX, [off_N @ pull_N]])

    begin = np.zeros(inputs_NX.shape[1] + 1)
    begin[0], begin[-1] = np.log(max(acted_N.mean(), 1e-6)), np.log(24.0)
    limits = [(None, None)] * inputs_NX.shape[1] + [tuple(np.log(SPAN_HOURS))]
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 500, "ftol": 1e-13,
                                                                                       "gtol": 1e-8}).x  # fmt: skip
    log_level_N, pull_N = parts(found[-1])
    mean_N = np.exp(inputs_NX @ found[:-1] + log_level_N + np.log(looks_N))
    gradient_NX = np.column_stack([inputs_NX, pull_N])
    hessian_XX = (gradient_NX * mean_N[:, None]).T @ gradient_NX
    try:
        covariance_XX = clustered_covariance(gradient_NX * (acted_N - mean_N)[:, None], hessian_XX, viewer_N, author_N)
    except np.linalg.LinAlgError:
        return float(found[-1]), float("nan")
    variance = covariance_XX[-1, -1]
    return float(found[-1]), float(np.sqrt(variance)) if variance > 0 else float("nan")
