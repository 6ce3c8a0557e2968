"""Estimators that trade bias for variance by one hyperparameter, and SLOPE, which picks it from the log alone.

Shapes: R requests, K positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.evaluation.estimators import Terms, clipped_ips, doubly_robust, importance_weights, value
from simulator.evaluation.intervals import student_interval
from simulator.evaluation.logged_data import LoggedData, Target

SLOPE_LEVEL = 0.8


def clipped_dr(log: LoggedData, target: Target, clip: float) -> Terms:
    """Doubly robust with weights min(w, clip): leans on the regression where weights are large. Su et al. 2020."""
    return doubly_robust(log, target, np.minimum(importance_weights(log, target), clip))


def switch_dr(log: LoggedData, target: Target, threshold: float) -> Terms:
    """Doubly robust that drops its correction where w > threshold. Wang, Agarwal and Dudík 2017."""
    weight_RK = importance_weights(log, target)
    return doubly_robust(log, target, np.where(weight_RK <= threshold, weight_RK, 0.0))


def dros(log: LoggedData, target: Target, shrinkage: float) -> Terms:
    """Doubly robust with optimistic shrinkage, weights s w / (w^2 + s): `dm` at s = 0, `dr` at s = inf. Su et al. 2020."""
    weight_RK = importance_weights(log, target)
    if np.isinf(shrinkage):
        return doubly_robust(log, target, weight_RK)
    positive_RK = np.where(weight_RK > 0, weight_RK, 1.0)
    return doubly_robust(
        log, target, np.where(weight_RK > 0, shrinkage * weight_RK / (positive_RK**2 + shrinkage), 0.0)
    )


def sg_ips(log: LoggedData, target: Target, share: float) -> Terms:
    """IPS with sub-Gaussian weights w / (1 - s + s w), never above 1 / s. Metelli, Russo and Restelli 2021."""
    weight_RK = _sub_gaussian(importance_weights(log, target), share)
    return Terms(np.zeros_like(weight_RK), weight_RK * log.reward_RK, weight_RK, log.shown_RK, False)


def sg_dr(log: LoggedData, target: Target, share: float) -> Terms:
    """Doubly robust with sub-Gaussian weights. Metelli, Russo and Restelli 2021."""
    return doubly_robust(log, target, _sub_gaussian(importance_weights(log, target), share))


@dataclass(frozen=True)
class Family:
    """Estimators of one form, `estimator(log, target, hyperparameter)`, and the hyperparameters among which SLOPE picks."""

    estimator: Callable[[LoggedData, Target, float], Terms]
    candidates: tuple[float, ...]


_BOUNDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, np.inf)
FAMILIES: dict[str, Family] = {
    "clipped_ips": Family(clipped_ips, _BOUNDS),
    "clipped_dr": Family(clipped_dr, _BOUNDS),
    "switch_dr": Family(switch_dr, (0.0, *_BOUNDS)),
    "dros": Family(dros, (0.0, 1.0, 10.0, 100.0, 1_000.0, 10_000.0, np.inf)),
    "sg_ips": Family(sg_ips, (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)),
    "sg_dr": Family(sg_dr, (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)),
}


@dataclass(frozen=True)
class Tuned:
    """The estimator of a family that SLOPE picked."""

    hyperparameter: float
    terms: Terms


def slope(family: Family, log: LoggedData, target: Target, level: float = SLOPE_LEVEL) -> Tuned:
    """The least variable estimator of `family` whose interval agrees with those of all that vary more. Su, Srinath and
    Krishnamurthy 2020.

    Candidates go by falling half-width of their Student interval; i is taken while |v_i - v_j| <= h_i + (sqrt(6) - 1) h_j
    for every j before it. No truth is looked at, and no assumption made but that bias grows as variance falls.
    """
    tried = [(family.estimator(log, target, one), one) for one in family.candidates]
    half, at = np.empty(len(tried)), np.empty(len(tried))
    for i, (terms, _) in enumerate(tried):
        low, high = student_interval(terms, log.viewer_R, level)
        half[i], at[i] = (high - low) / 2, value(terms)
    order = np.argsort(half)[::-1]
    picked = order[0]
    for n, i in enumerate(order):
        wider = order[:n]
        if not np.all(np.abs(at[wider] - at[i]) <= half[i] + (np.sqrt(6) - 1) * half[wider]):
            break
        picked = i
    terms, hyperparameter = tried[picked]
    return Tuned(hyperparameter, terms)


def _sub_gaussian(weight_RK: np.ndarray, share: float) -> np.ndarray:
    return np.where(weight_RK > 0, weight_RK / (1 - share + share * np.where(weight_RK > 0, weight_RK, 1.0)), 0.0)
