"""A window's log made ready for the estimators: reward regression, exposures, and policies as targets.

Shapes: R requests, K positions, P pool entries of all requests, T tasks.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulator.evaluation import LoggedData, Target
from simulator.evaluation.logged_data import deterministic_target, uniform_target
from simulator.evaluation.reward_regression import RewardRegression
from simulator.replay.exposure import Mixture, examination_by_position, mixture
from simulator.replay.settings import ReplaySettings
from simulator.replay.walk import Walked
from simulator.replay.window import Window


@dataclass(frozen=True)
class Evidence:
    """A window's log ready for the estimators: the regression's reward `q_PK` of every pool entry at every position, the
    logging policy where all of it is known, and then the chance `examination_K` that a viewer looks at each position."""

    window: Window
    log: LoggedData
    q_PK: np.ndarray
    logging: Mixture | None
    examination_K: np.ndarray | None

    def target(self, slate_RK: np.ndarray | None) -> Target:
        """The policy that shows `slate_RK`; None for the uniform random one."""
        if slate_RK is None:
            return self._uniform()
        row_RK = self.window.pool_rows(slate_RK)
        q_RK = np.where(
            (row_RK >= 0) & self.log.shown_RK, self.q_PK[np.maximum(row_RK, 0), np.arange(row_RK.shape[1])], 0.0
        )
        outside_R = ((slate_RK >= 0) & (row_RK < 0)).sum(axis=1) / np.maximum((slate_RK >= 0).sum(axis=1), 1)
        target = deterministic_target(
            self.log, slate_RK, examination_K=self.examination_K, baseline_RK=q_RK, outside_R=outside_R
        )
        to_go_RK = _from_here_on(q_RK)
        return replace(target, to_go_target_RK=to_go_RK, to_go_logged_RK=self._logged_to_go(to_go_RK))

    def _uniform(self) -> Target:
        size_R = self.window.pool_size_R
        owner_P = np.repeat(np.arange(len(size_R)), size_R)
        sums_KR = [np.bincount(owner_P, weights=q_P, minlength=len(size_R)) for q_P in self.q_PK.T]
        q_RK = np.where(self.log.shown_RK, np.stack(sums_KR, axis=1) / np.maximum(size_R, 1)[:, None], 0.0)
        target = uniform_target(self.log, examination_K=self.examination_K, baseline_RK=q_RK)
        to_go_RK = _from_here_on(q_RK)
        # At k any post that does not stand above is equally likely, not any post of the pool.
        above_RK = self._predicted_above()
        left_R1 = np.maximum(size_R[:, None] - np.arange(q_RK.shape[1]), 1)
        here_RK = np.where(self.log.shown_RK, (q_RK * size_R[:, None] - above_RK) / left_R1, 0.0)
        return replace(target, to_go_target_RK=here_RK + to_go_RK - q_RK, to_go_logged_RK=self._logged_to_go(to_go_RK))

    def _logged_to_go(self, to_go_RK: np.ndarray) -> np.ndarray:
        """Predicted rewards (R, K) of the logged post at k and of what the target shows below it."""
        below_RK = np.concatenate([to_go_RK[:, 1:], np.zeros_like(to_go_RK[:, :1])], axis=1)
        assert self.log.baseline_RK is not None
        return np.where(self.log.shown_RK, self.log.baseline_RK + below_RK, 0.0)

    def _predicted_above(self) -> np.ndarray:
        """Sum (R, K) of the predictions, at position k, of the logged posts that stand above k."""
        row_RK = self.window.pool_rows(self.log.post_RK)
        positions = row_RK.shape[1]
        total_RK = np.zeros(row_RK.shape)
        for k in range(1, positions):
            above_RK = row_RK[:, :k]
            total_RK[:, k] = np.where(above_RK >= 0, self.q_PK[np.maximum(above_RK, 0), k], 0.0).sum(axis=1)
        return total_RK


def _from_here_on(q_RK: np.ndarray) -> np.ndarray:
    """Sums (R, K) over the positions from k to the last."""
    return np.cumsum(q_RK[:, ::-1], axis=1)[:, ::-1]


def gather(window: Window, walked: Walked, probability_PT: np.ndarray, settings: ReplaySettings) -> Evidence:
    """The log with the regression's predictions, cross-fitted by viewer, and exposures where they can be known."""
    log = window.logged_data()
    inputs_PF = np.concatenate([walked.inputs_PF, probability_PT.astype(np.float32)], axis=1)
    row_RK = window.pool_rows(window.post_RK)
    request_N, position_N = np.nonzero(log.shown_RK)
    regression = RewardRegression(
        folds=settings.folds, trees=settings.regression_trees, seed=settings.seed, threads=settings.threads
    )
    regression.fit(inputs_PF[row_RK[log.shown_RK]], position_N, log.reward_RK[log.shown_RK], log.viewer_R[request_N])
    viewer_P = np.repeat(log.viewer_R, window.pool_size_R)
    positions = log.shown_RK.shape[1]
    q_PK = np.stack(
        [regression.predict(inputs_PF, np.full(len(viewer_P), k), viewer_P) for k in range(positions)], axis=1
    )
    logged_RK = np.where(log.shown_RK, q_PK[np.maximum(row_RK, 0), np.arange(positions)], 0.0)
    log, logging = replace(log, baseline_RK=logged_RK), mixture(window)
    if logging is None:
        return Evidence(window, log, q_PK, None, None)
    examination_K = examination_by_position(window)
    log = replace(log, exposure_RK=logging.exposure(window, examination_K), prefix_propensity_RK=logging.prefix(window))
    return Evidence(window, log, q_PK, logging, examination_K)
