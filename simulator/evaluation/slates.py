"""Estimators that take a slate as a whole or from the top down: right where what stands above acts on what is done below.

The item-position estimators of `estimators.py` (there `ips` and `snips`) need least data and assume most; whole-slate
weights assume nothing and are hopeless beyond a few positions; cascade weights lie between (McInerney et al. 2020).

Shapes: R requests, K positions. `W` is the weight of a whole slate, `w_1:k` that of its first k posts.
"""

from collections.abc import Callable

import numpy as np

from simulator.evaluation.estimators import Terms
from simulator.evaluation.logged_data import LoggedData, Target


def prefix_weights(log: LoggedData, target: Target) -> np.ndarray:
    """w_1:k (R, K): chance that the target shows the first k posts as logged, over that of the log; 0 where not shown."""
    if log.prefix_propensity_RK is None or target.prefix_probability_RK is None:
        raise ValueError("this estimator needs the probability of each slate from the top down, of both policies")
    logged_RK = np.where(log.shown_RK, log.prefix_propensity_RK, 1.0)
    return np.where(log.shown_RK, target.prefix_probability_RK / logged_RK, 0.0)


def slate_weights(log: LoggedData, target: Target) -> np.ndarray:
    """W (R, K), the same at all positions that were shown: the weight of the request's last prefix."""
    weight_RK = prefix_weights(log, target)
    last_R = np.maximum(log.shown_RK.shape[1] - 1 - np.argmax(log.shown_RK[:, ::-1], axis=1), 0)
    return np.where(log.shown_RK, weight_RK[np.arange(len(last_R)), last_R][:, None], 0.0)


def replay(log: LoggedData, target: Target) -> Terms:
    """Mean reward of the requests where the log shows what the target always shows. Li, Chu, Langford and Wang 2011.

    Unbiased for a log that gave every slate the same chance, and for a target that never varies; ValueError where the
    target does.
    """
    probability_RK = target.probability_RK[log.shown_RK]
    varying = (probability_RK > 0) & (probability_RK < 1)
    if varying.any():
        raise ValueError(
            f"replay by rejection needs a policy that always shows the same slate; {int(varying.sum())} of {len(varying)} "
            f"probabilities lie between 0 and 1, such as {probability_RK[varying][0]:.4g}"
        )
    kept_R1 = np.all((target.probability_RK == 1) | ~log.shown_RK, axis=1, keepdims=True)
    match_RK = np.where(log.shown_RK & kept_R1, 1.0, 0.0)
    return _weighted(log, match_RK, True)


def sips(log: LoggedData, target: Target) -> Terms:
    """Whole-slate IPS: mean_r W_r sum_k r_rk. Unbiased whatever posts do to each other. Li et al. 2018."""
    return _weighted(log, slate_weights(log, target), False)


def snsips(log: LoggedData, target: Target) -> Terms:
    """Whole-slate IPS, self-normalised per position."""
    return _weighted(log, slate_weights(log, target), True)


def rips(log: LoggedData, target: Target) -> Terms:
    """Reward-interaction IPS: mean_r sum_k w_r,1:k r_rk. Unbiased where a reward depends on its post and those above it.
    McInerney et al. 2020."""
    return _weighted(log, prefix_weights(log, target), False)


def snrips(log: LoggedData, target: Target) -> Terms:
    """Reward-interaction IPS, self-normalised per position; consistent."""
    return _weighted(log, prefix_weights(log, target), True)


def cascade_dr(log: LoggedData, target: Target) -> Terms:
    """Cascade doubly robust: mean_r sum_k [w_1:k (r_k - Q_k(logged)) + w_1:k-1 Q_k(target)], Q_k being the predicted
    rewards from k on. Unbiased as `rips`, with less variance the better Q is. Kiyohara et al. 2022."""
    return _cascade(log, target, False)


def sncascade_dr(log: LoggedData, target: Target) -> Terms:
    """Cascade doubly robust, both of its weights self-normalised per position; consistent."""
    return _cascade(log, target, True)


def _weighted(log: LoggedData, weight_RK: np.ndarray, self_normalised: bool) -> Terms:
    return Terms(np.zeros_like(weight_RK), weight_RK * log.reward_RK, weight_RK, log.shown_RK, self_normalised)


def _cascade(log: LoggedData, target: Target, self_normalised: bool) -> Terms:
    if target.to_go_logged_RK is None or target.to_go_target_RK is None:
        raise ValueError("this estimator needs predictions of the rewards from each position on, under the target")
    weight_RK = prefix_weights(log, target)
    above_RK = np.where(log.shown_RK, np.concatenate([np.ones_like(weight_RK[:, :1]), weight_RK[:, :-1]], axis=1), 0.0)
    plain_RK = above_RK[:, :1] * target.to_go_target_RK[:, :1]
    corrected_RK = weight_RK * np.where(log.shown_RK, log.reward_RK - target.to_go_logged_RK, 0.0)
    below_RK = (above_RK * target.to_go_target_RK)[:, 1:]
    return Terms(
        plain_RK,
        np.concatenate([corrected_RK, below_RK], axis=1),
        np.concatenate([weight_RK, above_RK[:, 1:]], axis=1),
        np.concatenate([log.shown_RK, log.shown_RK[:, 1:]], axis=1),
        self_normalised,
    )


SLATE_ESTIMATORS: dict[str, Callable[[LoggedData, Target], Terms]] = {
    "replay": replay, "sips": sips, "snsips": snsips, "rips": rips, "snrips": snrips, "cascade_dr": cascade_dr,
    "sncascade_dr": sncascade_dr,
}  # fmt: skip
