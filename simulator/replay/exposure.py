"""The whole logging distribution where it can be told from the log, and how often each position is looked at.

A log stores the chance of what it showed. The position-based estimators also need the chance of each shown post at the
other positions. A mixture of a uniformly random order (with probability epsilon) and newest-first has it in closed form;
whether a log is one is not taken on trust: every logged propensity must come out.

Shapes: R requests, K positions, P pool entries.
"""

from dataclasses import dataclass

import numpy as np

from contracts.errors import BadInput
from simulator.evaluation.logged_data import uniform_prefix
from simulator.replay.window import Window

_TOLERANCE = 1e-9


def examination_by_position(window: Window) -> np.ndarray:
    """Share (K,) of the impressions at each position that were looked at."""
    shown_K = window.shown_RK.sum(axis=0)
    return window.viewed_RK.sum(axis=0) / np.maximum(shown_K, 1)


@dataclass(frozen=True)
class Mixture:
    """A logging policy of which all is known: with chance `epsilon` a uniformly random order of the pool, else newest first.

    `rank_RK`: rank from 0 of each logged post in its pool, newest first; `size_R`: posts of each pool.
    """

    epsilon: float
    rank_RK: np.ndarray
    size_R: np.ndarray

    def exposure(self, window: Window, examination_K: np.ndarray) -> np.ndarray:
        """Sum over k of examination x propensity of each logged post (R, K)."""
        uniform_R1 = (window.shown_RK @ examination_K)[:, None] / np.maximum(self.size_R, 1)[:, None]
        examined_RK = examination_K[np.minimum(self.rank_RK, len(examination_K) - 1)]
        newest_RK = np.where(self.rank_RK < window.shown_RK.sum(axis=1)[:, None], examined_RK, 0.0)
        return np.where(window.shown_RK, self.epsilon * uniform_R1 + (1 - self.epsilon) * newest_RK, 1.0)

    def prefix(self, window: Window) -> np.ndarray:
        """Chance (R, K) that the log shows the first k + 1 posts exactly as it did."""
        in_order_RK = np.cumprod(self.rank_RK == np.arange(self.rank_RK.shape[1]), axis=1)
        chance_RK = self.epsilon * uniform_prefix(self.size_R, self.rank_RK.shape[1]) + (1 - self.epsilon) * in_order_RK
        return np.where(window.shown_RK, chance_RK, 1.0)

    def calibration(self, window: Window) -> dict[str, list[float]]:
        """By position: the mean logged chance that the newest post of that rank stands there, and how often it did."""
        chance_R = 1 - self.epsilon + self.epsilon / np.maximum(self.size_R, 1)
        shown_K = np.maximum(window.shown_RK.sum(axis=0), 1)
        there_RK = window.shown_RK & (self.rank_RK == np.arange(self.rank_RK.shape[1]))
        return {
            "predicted": ((chance_R @ window.shown_RK) / shown_K).tolist(),
            "observed": (there_RK.sum(axis=0) / shown_K).tolist(),
            "impressions": window.shown_RK.sum(axis=0).tolist(),
        }


def mixture(window: Window) -> Mixture | None:
    """The logging policy when every logged propensity is that of such a mixture; else None.

    `BadInput` when they are all those of such a mixture but for one factor: then they do not sum to one.
    """
    row_RK = window.pool_rows(window.post_RK)
    rank_RK = _newest_first_rank(window)[np.maximum(row_RK, 0)]
    size_R1 = np.maximum(window.pool_size_R, 1)[:, None]
    at_rank_RK = window.shown_RK & (rank_RK == np.arange(window.post_RK.shape[1]))
    elsewhere_RK = window.shown_RK & ~at_rank_RK
    if not elsewhere_RK.any() or not at_rank_RK.any() or (row_RK[window.shown_RK] < 0).any():
        return None
    random = float(np.median((window.propensity_RK * size_R1)[elsewhere_RK]))
    newest = float(np.median((window.propensity_RK - random / size_R1)[at_rank_RK]))
    expected_RK = random / size_R1 + newest * at_rank_RK
    if not np.allclose(expected_RK[window.shown_RK], window.propensity_RK[window.shown_RK], rtol=0, atol=_TOLERANCE):
        return None
    if abs(random + newest - 1) > 1e-6:
        r, k = (int(x[0]) for x in np.nonzero(window.shown_RK))
        raise BadInput(
            f"the propensities of the {window.name} window do not sum to one: those of a pool sum to {random + newest:.4g} at each "
            f"position, over {int(window.shown_RK.sum()):,} impressions, such as request {window.request_R[r]}, position {k}, post "
            f"{window.post_RK[r, k]}, shown with {window.propensity_RK[r, k]:.4g} out of {window.pool_size_R[r]} posts"
        )
    return Mixture(random, rank_RK, window.pool_size_R)


def _newest_first_rank(window: Window) -> np.ndarray:
    """Rank (P,) from 0 of each entry in its pool, newest first, ties by larger post id."""
    owner_P = np.repeat(np.arange(len(window.request_R)), window.pool_size_R)
    order = np.lexsort((-window.pool_P, -window.created_at_P, owner_P))
    rank_P = np.empty(len(order), np.int64)
    rank_P[order] = np.arange(len(order)) - window.pool_start_R[owner_P]
    return rank_P
