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
from simulator.likeness.estimates import Estimate, Fit, jackknife
from simulator.likeness.log import Impressions, LoggedLog
from simulator.likeness.slates import neighbours
from simulator.likeness.ties import contact_groups

ENGAGING_A = np.array([name != "hide" for name in TASK_NAMES])
AGE_EDGES_HOURS = (2.0, 8.0, 24.0, 72.0)
LARGEST_WEIGHT = 50.0
"""Inverse propensities are cut at this multiple of their mean."""
DEEPEST = 30
"""Positions from here on share one estimate."""


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
    def fit(kept_I: np.ndarray) -> np.ndarray:
        shown_K = np.bincount(position_I[kept_I], minlength=int(position_I.max()) + 1)
        looked_K = np.bincount(position_I[kept_I], shown.viewed_I[kept_I], minlength=len(shown_K))
        rate_K = looked_K / np.maximum(shown_K, 1)
        return np.concatenate([[_exponent(shown_K * rate_K[0], looked_K)], rate_K / rate_K[0]])

    return jackknife(shown.viewer_I, fit)


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
        log.kind_P[shown.post_I], contact_groups(log, shown), np.searchsorted(AGE_EDGES_HOURS, age_I),
        np.minimum(neighbours(log, shown), 3),
    ])  # fmt: skip
    cells, cell_I = np.unique(np.column_stack([position_I, factors_IF]), axis=0, return_inverse=True)
    inputs_JX = hstack([_one_hot(column_J) for column_J in cells[:, 1:].T]).tocsr()
    depth_J1 = csr_matrix(np.log1p(cells[:, :1]))
    position_JK = _one_hot(cells[:, 0])

    designs = [hstack([first, inputs_JX]).tocsr() for first in (depth_J1, position_JK)]
    # Each refit of the jackknife begins at the one before it, which lies close by.
    models = [PoissonRegressor(alpha=1e-7, solver="lbfgs", tol=1e-6, max_iter=1000, warm_start=True) for _ in designs]

    def fit(kept_I: np.ndarray) -> np.ndarray:
        weight_J = np.bincount(cell_I[kept_I], weight_I[kept_I], minlength=len(cells))
        acts_J = np.bincount(cell_I[kept_I], (weight_I * acts_I)[kept_I], minlength=len(cells))
        used_J = weight_J > 0
        for model, design_JX in zip(models, designs):
            model.fit(design_JX[used_J], acts_J[used_J] / weight_J[used_J], sample_weight=weight_J[used_J])
        steps_K = models[1].coef_[: position_JK.shape[1]]
        return np.concatenate([[-models[0].coef_[0], 1.0], np.exp(steps_K)])

    return jackknife(shown.viewer_I, fit)


def _one_hot(code_J: np.ndarray) -> csr_matrix:
    """Columns for every code that occurs but the first."""
    codes, at_J = np.unique(code_J, return_inverse=True)
    rows = np.flatnonzero(at_J > 0)
    return csr_matrix((np.ones(len(rows)), (rows, at_J[rows] - 1)), shape=(len(code_J), len(codes) - 1))
