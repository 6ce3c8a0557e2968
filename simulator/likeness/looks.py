"""How far down people look: from logged looks, else from logged randomisation, else from actions alone.

The position-based model: P(acted) = examination(position) x attraction. Where looks are not logged, both factors are
told apart by log-linear maximum likelihood, weighted by 1 / propensity where the policy's randomness is logged (Joachims
and others 2017), and unweighted, the regression form of position-based EM, where it is not (Wang and others 2018).
The attraction takes in what stands above: like posts tire, which is no matter of the position.

Shapes: I impressions, K positions, J cells of equal inputs, X inputs.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import PoissonRegressor

from contracts.clock import HOUR
from contracts.tasks import TASK_NAMES
from simulator.likeness.estimates import (
    GROUPS,
    Estimate,
    Fit,
    groups_of,
    jackknife_of_sums,
    jackknife_reach,
    sums_by_group,
)
from simulator.likeness.log import Impressions, LoggedLog
from simulator.likeness.slates import neighbours
from simulator.likeness.ties import contact_groups

ENGAGING_A = np.array([name != "hide" for name in TASK_NAMES])
AGE_EDGES_HOURS = (2.0, 8.0, 24.0, 72.0)
LARGEST_WEIGHT = 50.0
"""Inverse propensities are cut at this multiple of their mean."""
DEEPEST = 30
"""Positions from here on share one estimate."""
RIDGE = 1e-7
"""Keeps the coefficient of a class in which nobody acted from running away; far too small to move the others."""


def fit_examination(log: LoggedLog, fit: Fit) -> np.ndarray:
    """Adds the curve and its exponent to `fit` by the best evidence there is; returns the curve (K,).

    Without impressions or without actions on them: not fitted, and a curve of the environment's default.
    """
    shown = log.impressions
    if shown is None:
        fit.not_fitted["examination"] = log.absent["impressions"]
        return np.ones(1)
    position_I = np.minimum(shown.position_I, DEEPEST)
    if "viewed_ms" not in log.absent:
        fit.methods["examination"] = "logged looks (viewed_ms)"
        value_P, reach_P = _by_looks(shown, position_I)
    elif not shown.acted_IA[:, ENGAGING_A].any():
        fit.not_fitted["examination"] = f"{log.absent['viewed_ms']}, and nobody acted on a post"
        return np.ones(int(position_I.max()) + 1)
    else:
        random = "propensities" not in log.absent
        fit.methods["examination"] = (
            "logged randomisation: log-linear position-based model, weighted by 1 / propensity" if random
            else "actions alone: log-linear position-based model; " + log.absent["propensities"]
        )  # fmt: skip
        value_P, reach_P = _by_actions(log, shown, position_I, random)
    fit.estimates["examination exponent"] = _limits(value_P[0], reach_P[0], "", "examination_power")
    curve_K = value_P[1:]
    for position, (value, reach) in enumerate(zip(curve_K, reach_P[1:])):
        fit.estimates[f"examination of position {position}"] = _limits(value, reach, "share of position 0")
    return curve_K


def _limits(value: float, reach: float, unit: str, setting: str = "") -> Estimate:
    return Estimate(float(value), float(max(value - reach, 0.0)), float(value + reach), unit, setting)


def _exponent(shown_K: np.ndarray, looked_K: np.ndarray) -> float:
    """Maximum likelihood of p in P(look) = (1 + k) ** -p, from counts by position below the first."""
    depth_K = np.log1p(np.arange(1, len(shown_K)))
    missed_K = np.maximum(shown_K - looked_K, 0.0)[1:]

    def slope(p: float) -> float:
        with np.errstate(over="ignore"):
            return float(depth_K @ (missed_K / np.expm1(p * depth_K) - looked_K[1:]))

    if not looked_K[1:].any():
        return np.nan
    return 0.0 if not missed_K.any() else float(brentq(slope, 1e-6, 50.0))


def _by_looks(shown: Impressions, position_I: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    depth, group_I = int(position_I.max()) + 1, groups_of(shown.viewer_I)
    shown_GK = sums_by_group(group_I, position_I, depth)
    looked_GK = sums_by_group(group_I, position_I, depth, shown.viewed_I)

    def fit(sums_X: np.ndarray) -> np.ndarray:
        shown_K, looked_K = sums_X[:depth], sums_X[depth:]
        rate_K = looked_K / np.maximum(shown_K, 1)
        return np.concatenate([[_exponent(shown_K * rate_K[0], looked_K)], rate_K / rate_K[0]])

    return jackknife_of_sums(np.concatenate([shown_GK, looked_GK], axis=1), fit)


def _by_actions(
    log: LoggedLog, shown: Impressions, position_I: np.ndarray, random: bool
) -> tuple[np.ndarray, np.ndarray]:
    weight_I = np.ones(len(position_I))
    if random:
        weight_I = 1.0 / (shown.propensity_I * np.maximum(shown.pool_I, 1))
        weight_I = np.minimum(weight_I, LARGEST_WEIGHT * weight_I.mean())
    acts_I = shown.acted_IA[:, ENGAGING_A].sum(axis=1)
    age_I = (shown.shown_at_I - log.created_at_P[shown.post_I]) / HOUR
    factors_IF = np.column_stack([
        position_I, log.kind_P[shown.post_I], contact_groups(log, shown), np.searchsorted(AGE_EDGES_HOURS, age_I),
        np.minimum(neighbours(log, shown), 3),
    ])  # fmt: skip
    # One number a cell: rows of numbers take far longer to tell apart.
    size_F = factors_IF.max(axis=0) + 1
    code_I = np.ravel_multi_index(tuple(factors_IF.T), tuple(size_F))
    codes_J, cell_I = np.unique(code_I, return_inverse=True)
    cells = np.stack(np.unravel_index(codes_J, tuple(size_F)), axis=1)
    group_I = groups_of(shown.viewer_I)
    weight_GJ = sums_by_group(group_I, cell_I, len(cells), weight_I)
    acts_GJ = sums_by_group(group_I, cell_I, len(cells), weight_I * acts_I)
    inputs_JX = hstack([_one_hot(column_J) for column_J in cells[:, 1:].T])
    depth_J1, position_JK = csr_matrix(np.log1p(cells[:, :1])), _one_hot(cells[:, 0])
    slope, without_G = _log_linear(hstack([depth_J1, inputs_JX]).tocsr(), weight_GJ, acts_GJ, 1)
    steps_K, without_GK = _log_linear(
        hstack([position_JK, inputs_JX]).tocsr(), weight_GJ, acts_GJ, position_JK.shape[1]
    )
    values = np.concatenate([-slope, [1.0], np.exp(steps_K)])
    return values, jackknife_reach(np.column_stack([-without_G, np.ones(GROUPS), np.exp(without_GK)]))


def _log_linear(
    design_JX: csr_matrix, weight_GJ: np.ndarray, acts_GJ: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `first` coefficients of a Poisson regression of acts per weight, and those without each group (G, first).

    Without a group they are one step of Newton's method away: the groups are small, and the likelihood nearly a parabola.
    """
    weight_J = weight_GJ.sum(axis=0)
    model = PoissonRegressor(alpha=RIDGE, solver="newton-cholesky", tol=1e-7, max_iter=100)
    model.fit(design_JX, acts_GJ.sum(axis=0) / weight_J, sample_weight=weight_J)
    mean_J = model.predict(design_JX)
    inputs_JX = hstack([design_JX, csr_matrix(np.ones((len(weight_J), 1)))]).tocsr()
    score_GX = (acts_GJ - weight_GJ * mean_J) @ inputs_JX

    def hessian(at_J: np.ndarray) -> np.ndarray:
        return (inputs_JX.T @ inputs_JX.multiply((at_J * mean_J)[:, None])).toarray()

    ridge_XX = RIDGE * weight_J.sum() * np.eye(inputs_JX.shape[1])
    whole_XX = hessian(weight_J) + ridge_XX
    steps_GX = np.stack([
        np.linalg.solve(whole_XX - hessian(weight_J), score_X) for weight_J, score_X in zip(weight_GJ, score_GX)
    ])  # fmt: skip
    return model.coef_[:first], model.coef_[:first] - steps_GX[:, :first]


def _one_hot(code_J: np.ndarray) -> csr_matrix:
    """Columns for every code that occurs but the first."""
    codes, at_J = np.unique(code_J, return_inverse=True)
    rows = np.flatnonzero(at_J > 0)
    return csr_matrix((np.ones(len(rows)), (rows, at_J[rows] - 1)), shape=(len(code_J), len(codes) - 1))
