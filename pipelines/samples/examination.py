"""How likely each position of a feed is looked at: by logged looks, by logged randomisation, or from clicks alone.

The position-based model says P(engaged) = examination(position) x attraction(viewer, post, what stands above). Its two
factors are told apart by joint maximum likelihood, which is what regression-EM climbs: Wang et al. 2018, "Position Bias
Estimation for Unbiased Learning to Rank in Personal Search". Weights 1 / propensity turn the logged slates into random
ones, so that what is shown at a position no longer depends on the position: Joachims et al. 2017, "Unbiased
Learning-to-Rank with Biased Feedback".

Legend: N rows, K positions, X inputs of the attraction, P parameters (K - 1 + X), U viewers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from contracts.features import FEATURES

METHODS = ("viewed", "randomised", "clicks")
"""From the best evidence to the weakest: the log says who looked; slates were randomised; neither."""
LARGEST_WEIGHT = 50.0
"""Inverse propensities are cut at this multiple of their mean."""
FEWEST_ROWS = 200
"""A position with fewer rows gets no estimate of its own: deeper ones share one."""
_RIDGE = 1e-6
_CERTAIN = 1.0 - 1e-9
_RARE = 1e-12


@dataclass(frozen=True)
class SlateRows:
    """Impressions of whole slates, in any order. `engaged_N`: an action of any task followed. `propensity_N`: NaN where
    the log has none. `feature(name)` gives a raw feature (N,); asked only where engagement must tell the curve."""

    request_id_N: np.ndarray
    user_id_N: np.ndarray
    author_id_N: np.ndarray
    position_N: np.ndarray
    viewed_N: np.ndarray
    engaged_N: np.ndarray
    propensity_N: np.ndarray
    feature: Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Examination:
    """P(position is looked at), relative to the position that is looked at most; 95% limits. (K,) each.

    Position K - 1 stands for all deeper ones. `methods_left` says why better evidence was not used.
    """

    method: str
    curve_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray
    rows: int
    methods_left: dict[str, str]

    def at(self, position_N: np.ndarray) -> np.ndarray:
        """Examination (N,) of positions counted from 0."""
        return self.curve_K[np.minimum(position_N, len(self.curve_K) - 1)]

    def as_dict(self) -> dict:
        """For JSON."""
        return {
            "method": self.method, "rows": self.rows, "not used": self.methods_left,
            **{name: [round(float(value), 5) for value in getattr(self, f"{name}_K")] for name in ("curve", "low", "high")},
        }  # fmt: skip


def estimate_examination(rows: SlateRows, method: str | None = None) -> Examination | None:
    """The curve by the best evidence the log has, or by `method`; None when the evidence is not there.

    Intervals are clustered by viewer, since one person's impressions hang together: the spread of what each viewer
    contributes to the logarithm of the curve (the sandwich estimator).
    """
    missing = {name: reason for name in METHODS if (reason := _missing(rows, name))}
    chosen = method or next((name for name in METHODS if name not in missing), None)
    if chosen is None or chosen in missing:
        return None
    positions = _positions(rows.position_N)
    at_N = np.minimum(rows.position_N, positions - 1)
    viewer_N = np.unique(rows.user_id_N, return_inverse=True)[1]
    curve = _from_looks if chosen == "viewed" else _from_engagement
    log_curve_K, influence_UK = curve(rows, at_N, positions, viewer_N, chosen)
    most = int(log_curve_K.argmax())
    log_curve_K = log_curve_K - log_curve_K[most]
    reach_K = 1.96 * np.sqrt(((influence_UK - influence_UK[:, [most]]) ** 2).sum(axis=0))
    return Examination(
        chosen, np.exp(log_curve_K), np.exp(log_curve_K - reach_K), np.exp(log_curve_K + reach_K), len(at_N),
        {name: missing.get(name, "weaker evidence") for name in METHODS if name != chosen},
    )  # fmt: skip


def slate_context(rows: SlateRows) -> tuple[np.ndarray, np.ndarray]:
    """How many posts above in the same slate have the row's author, and how many its topic; (N,) each."""
    return (
        _same_above(rows.request_id_N, rows.author_id_N, rows.position_N),
        _same_above(rows.request_id_N, rows.feature("post_topic"), rows.position_N),
    )


def _same_above(request_id_N: np.ndarray, key_N: np.ndarray, position_N: np.ndarray) -> np.ndarray:
    order_N = np.lexsort((position_N, key_N, request_id_N))
    sorted_key, sorted_request = key_N[order_N], request_id_N[order_N]
    begins_N = np.r_[True, (sorted_key[1:] != sorted_key[:-1]) | (sorted_request[1:] != sorted_request[:-1])]
    place_N = np.arange(len(order_N))
    above_N = np.empty(len(order_N), np.int64)
    above_N[order_N] = place_N - np.maximum.accumulate(np.where(begins_N, place_N, 0))
    return above_N


def _missing(rows: SlateRows, method: str) -> str:
    """Why the rows cannot be used for `method`; empty when they can."""
    if not len(rows.position_N):
        return "there are no impressions"
    if method == "viewed":
        return "" if not rows.viewed_N.all() and rows.viewed_N.any() else "the log does not say what was looked at"
    if not rows.engaged_N.any():
        return "no impression earned an action"
    if method == "randomised" and not (rows.propensity_N > 0).all():
        unknown = int((~(rows.propensity_N > 0)).sum())
        return f"{unknown} of {len(rows.propensity_N)} impressions have no propensity"
    return ""


def _positions(position_N: np.ndarray) -> int:
    enough_K = np.bincount(position_N) >= FEWEST_ROWS
    return max(1, int(np.argmin(np.r_[enough_K, False])))


def _from_looks(rows: SlateRows, at_N: np.ndarray, positions: int, viewer_N: np.ndarray, _: str
                ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Log share of looks (K,), and what each viewer adds to it (U, K)."""
    share_K = np.bincount(at_N, rows.viewed_N, minlength=positions) / np.bincount(at_N, minlength=positions)
    share_K = np.maximum(share_K, _RARE)
    looked_K = share_K * np.bincount(at_N, minlength=positions)
    beyond_UK = _by_viewer(viewer_N, at_N, rows.viewed_N - share_K[at_N], positions)
    return np.log(share_K), beyond_UK / looked_K


def _from_engagement(rows: SlateRows, at_N: np.ndarray, positions: int, viewer_N: np.ndarray, method: str
                     ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Log examination (K,), the first position's being 0, and what each viewer adds to it (U, K)."""
    inputs_NX = _attraction_inputs(rows)
    engaged_N = rows.engaged_N.astype(np.float32)
    weights_N = np.ones(len(at_N))
    if method == "randomised":
        inverse_N = 1.0 / rows.propensity_N
        weights_N = np.minimum(inverse_N, LARGEST_WEIGHT * inverse_N.mean())
    weights_N /= weights_N.sum()
    start = np.zeros(positions - 1 + inputs_NX.shape[1])
    start[positions - 1] = _logit(float(engaged_N @ weights_N))
    data = (at_N, inputs_NX, engaged_N, weights_N, positions)
    found = minimize(_surprise, start, data, jac=True, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-10}).x

    attraction_N, chance_N, pull_N = _chances(found, *data)
    slope_N = (1.0 - attraction_N).astype(np.float32)
    inputs_NX *= slope_N[:, None]
    scores_UP = np.concatenate([
        _by_viewer(viewer_N, at_N, pull_N, positions)[:, 1:],
        np.stack([np.bincount(viewer_N, pull_N * column_N) for column_N in inputs_NX.T], axis=1),
    ], axis=1)  # fmt: skip
    curvature_N = (weights_N * chance_N / (1.0 - chance_N)).astype(np.float32)
    examined = [curvature_N * (at_N == position) for position in range(1, positions)]
    across_KX = (
        np.stack([column_N @ inputs_NX for column_N in examined]) if examined else np.zeros((0, len(scores_UP.T)))
    )
    information_PP = np.block([
        [np.diag([column_N.sum() for column_N in examined]), across_KX],
        [across_KX.T, (inputs_NX * curvature_N[:, None]).T @ inputs_NX],
    ]).astype(np.float64)  # fmt: skip
    information_PP[np.diag_indices_from(information_PP)] += _RIDGE
    influence_UP = -np.linalg.solve(information_PP, scores_UP.T).T
    first_U1 = np.zeros((len(influence_UP), 1))
    return np.r_[0.0, found[: positions - 1]], np.concatenate([first_U1, influence_UP[:, : positions - 1]], axis=1)


def _by_viewer(viewer_N: np.ndarray, at_N: np.ndarray, values_N: np.ndarray, positions: int) -> np.ndarray:
    """Sums (U, K) of `values_N` per viewer and position."""
    viewers = int(viewer_N.max()) + 1
    return np.bincount(viewer_N * positions + at_N, values_N, minlength=viewers * positions).reshape(viewers, positions)


def _attraction_inputs(rows: SlateRows) -> np.ndarray:
    """(N, X) float32: a constant, quantities in the form that models take them, squares, and what stands above."""
    columns = [np.ones(len(rows.position_N))]
    above = [np.minimum(count_N, 3) for count_N in slate_context(rows)]
    quantities = [
        np.log1p(rows.feature(feature.name)) if feature.log else rows.feature(feature.name)
        for feature in FEATURES
        if not feature.category
    ]
    for values_N in (*quantities, *above):
        spread = values_N.std()
        if spread > 0:
            scaled_N = (values_N - values_N.mean()) / spread
            columns += [scaled_N, np.minimum(scaled_N**2, 16.0)]
    return np.stack(columns, axis=1).astype(np.float32)


def _chances(free: np.ndarray, at_N: np.ndarray, inputs_NX: np.ndarray, engaged_N: np.ndarray, weights_N: np.ndarray,
             positions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Attraction, chance of engagement, and the slope of the loss by the logarithm of that chance; (N,) each."""
    log_examined_K = np.r_[0.0, free[: positions - 1]]
    attraction_N = expit(inputs_NX @ free[positions - 1 :].astype(np.float32)).astype(np.float64)
    chance_N = np.minimum(np.exp(log_examined_K)[at_N] * attraction_N, _CERTAIN)
    return attraction_N, chance_N, weights_N * (chance_N - engaged_N) / (1.0 - chance_N)


def _surprise(free: np.ndarray, at_N: np.ndarray, inputs_NX: np.ndarray, engaged_N: np.ndarray, weights_N: np.ndarray,
              positions: int) -> tuple[float, np.ndarray]:  # fmt: skip
    """Mean negative log likelihood with a faint ridge on the slopes, and its gradient by `free`."""
    attraction_N, chance_N, pull_N = _chances(free, at_N, inputs_NX, engaged_N, weights_N, positions)
    slopes_X = free[positions - 1 :]
    surprise_N = -np.where(engaged_N > 0, np.log(chance_N), np.log1p(-chance_N))
    loss = float(weights_N @ surprise_N) + 0.5 * _RIDGE * float(slopes_X @ slopes_X)
    by_position_K = np.bincount(at_N, pull_N, minlength=positions)
    by_slope_X = (pull_N * (1.0 - attraction_N)).astype(np.float32) @ inputs_NX
    return loss, np.r_[by_position_K[1:], by_slope_X.astype(np.float64) + _RIDGE * slopes_X]


def _logit(share: float) -> float:
    return float(np.log(share / (1.0 - share))) if 0.0 < share < 1.0 else 0.0
