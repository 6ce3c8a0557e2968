"""Off-policy estimators of a slate policy's value: the expected sum of rewards over the positions of one request.

Two click models of Li et al. 2018 ("Offline Evaluation of Ranking Policies with Click Models"). Item-position: the reward
at position k depends on the request, the post at k and k, not on the other posts; a logged post speaks only for its own
position, with weight w_rk = target probability / logged propensity there. Position-based: the reward is the chance that
the position is looked at times what the post is worth once seen; a logged post speaks for every position at which the
target may show it, with weight e_rk = target exposure / logged exposure, so far fewer requests suffice. What both leave
out (a viewer tired by similar posts above) is bias that replay shows beside the environment's truth. With K = 1 both are
the ordinary estimators of a contextual bandit.

Shapes: R requests, K positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.evaluation.logged_data import LoggedData, Target

CLIP = 100.0


@dataclass(frozen=True)
class Terms:
    """An estimator as sums over requests, so that a resample of viewers needs only new sums.

    `weighted_RK`, `weight_RK` and `shown_RK` have one column for each ratio that may be self-normalised: as a rule one a
    position.

    value = [sum_r sum_k plain_rk + C] / R, where C = sum_r sum_k weighted_rk, or, self-normalised,
    C = sum_k n_k (sum_r weighted_rk / sum_r weight_rk) with n_k requests that have position k.
    """

    plain_RK: np.ndarray
    weighted_RK: np.ndarray
    weight_RK: np.ndarray
    shown_RK: np.ndarray
    self_normalised: bool


def importance_weights(log: LoggedData, target: Target) -> np.ndarray:
    """w (R, K): target probability over logged propensity; 0 at positions that were not shown."""
    return np.where(log.shown_RK, target.probability_RK / log.propensity_RK, 0.0)


def exposure_weights(log: LoggedData, target: Target) -> np.ndarray:
    """e (R, K): examination that the target gives the logged post over that which the log gave it; 0 where not shown."""
    if log.exposure_RK is None or target.exposure_RK is None:
        raise ValueError(
            "this estimator needs the exposure of both policies, which takes the whole logging distribution"
        )
    return np.where(log.shown_RK, target.exposure_RK / np.where(log.shown_RK, log.exposure_RK, 1.0), 0.0)


def ips(log: LoggedData, target: Target) -> Terms:
    """Inverse propensity score: mean_r sum_k w_rk r_rk. Unbiased. Horvitz and Thompson 1952; slates: Li et al. 2018."""
    weight_RK = importance_weights(log, target)
    return Terms(np.zeros_like(weight_RK), weight_RK * log.reward_RK, weight_RK, log.shown_RK, False)


def clipped_ips(log: LoggedData, target: Target, clip: float = CLIP) -> Terms:
    """mean_r sum_k min(w_rk, clip) r_rk: less variance, biased towards zero. Ionides 2008; Bottou et al. 2013."""
    weight_RK = np.minimum(importance_weights(log, target), clip)
    return Terms(np.zeros_like(weight_RK), weight_RK * log.reward_RK, weight_RK, log.shown_RK, False)


def snips(log: LoggedData, target: Target) -> Terms:
    """Self-normalised per position: sum_k (n_k / R) sum_r w_rk r_rk / sum_r w_rk. Swaminathan and Joachims 2015."""
    weight_RK = importance_weights(log, target)
    return Terms(np.zeros_like(weight_RK), weight_RK * log.reward_RK, weight_RK, log.shown_RK, True)


def dm(log: LoggedData, target: Target) -> Terms:
    """Direct method: mean_r sum_k q(target's choice at k). As good as the regression. Beygelzimer and Langford 2009."""
    _, target_RK = _baselines(log, target)
    zero_RK = np.zeros_like(target_RK)
    return Terms(target_RK, zero_RK, zero_RK, log.shown_RK, False)


def dr(log: LoggedData, target: Target) -> Terms:
    """Doubly robust: mean_r sum_k [q(target's choice) + w_rk (r_rk - q(logged))]. Dudík, Langford and Li 2011."""
    return doubly_robust(log, target, importance_weights(log, target))


def doubly_robust(log: LoggedData, target: Target, weight_RK: np.ndarray) -> Terms:
    """mean_r sum_k [q(target's choice) + weight_rk (r_rk - q(logged))], for weights (R, K) of any kind."""
    logged_RK, target_RK = _baselines(log, target)
    return Terms(target_RK, weight_RK * (log.reward_RK - logged_RK), weight_RK, log.shown_RK, False)


def sndr(log: LoggedData, target: Target) -> Terms:
    """Doubly robust whose correction is self-normalised per position. Thomas and Brunskill 2016."""
    logged_RK, target_RK = _baselines(log, target)
    weight_RK = importance_weights(log, target)
    return Terms(target_RK, weight_RK * (log.reward_RK - logged_RK), weight_RK, log.shown_RK, True)


def pbm(log: LoggedData, target: Target) -> Terms:
    """Position-based IPS: mean_r sum_k e_rk r_rk. Unbiased under the position-based model. Li et al. 2018."""
    weight_RK = exposure_weights(log, target)
    return Terms(np.zeros_like(weight_RK), weight_RK * log.reward_RK, weight_RK, log.shown_RK, False)


def pbm_dr(log: LoggedData, target: Target) -> Terms:
    """Position-based doubly robust: mean_r sum_k [q(target's choice) + e_rk (r_rk - q(logged))]."""
    return doubly_robust(log, target, exposure_weights(log, target))


ESTIMATORS: dict[str, Callable[[LoggedData, Target], Terms]] = {
    "ips": ips, "clipped_ips": clipped_ips, "snips": snips, "dm": dm, "dr": dr, "sndr": sndr, "pbm": pbm,
    "pbm_dr": pbm_dr,
}  # fmt: skip


def value(terms: Terms) -> float:
    """The estimate; NaN when a position that was shown has no weight at all under self-normalisation."""
    weighted_K, weight_K, shown_K = (column_sums(part) for part in (terms.weighted_RK, terms.weight_RK, terms.shown_RK))
    plain_11 = terms.plain_RK.sum(keepdims=True)
    requests_1 = np.array([len(terms.shown_RK)])
    return float(
        combine(plain_11, weighted_K[None], weight_K[None], shown_K[None], requests_1, terms.self_normalised)[0]
    )


def column_sums(part_RK: np.ndarray) -> np.ndarray:
    """Sums over requests (K,), float64; several times faster than `sum(axis=0)` on long and narrow arrays."""
    return np.einsum("rk->k", part_RK, dtype=np.float64, casting="safe")


def combine(plain_B1: np.ndarray, weighted_BK: np.ndarray, weight_BK: np.ndarray, shown_BK: np.ndarray,
            requests_B: np.ndarray, self_normalised: bool) -> np.ndarray:  # fmt: skip
    """Estimates (B,) from B sets of sums over requests; the formula of `Terms`."""
    if self_normalised:
        with np.errstate(invalid="ignore", divide="ignore"):
            weighted_BK = np.where(shown_BK > 0, shown_BK * weighted_BK / weight_BK, 0.0)
    return (plain_B1[:, 0] + weighted_BK.sum(axis=1)) / requests_B


def _baselines(log: LoggedData, target: Target) -> tuple[np.ndarray, np.ndarray]:
    if log.baseline_RK is None or target.baseline_RK is None:
        raise ValueError("this estimator needs the baseline predictions of both the logged and the target's slates")
    return log.baseline_RK, target.baseline_RK
