"""A window's log made ready for the estimators: reward regression, exposures, and policies as targets.

Shapes: R requests, K positions, P pool entries of all requests, T tasks.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulator.evaluation import LoggedData, Target
from simulator.evaluation.logged_data import deterministic_target, uniform_target
from simulator.evaluation.reward_regression import RewardRegression
from simulator.replay.exposure import examination_by_position, logged_exposure
from simulator.replay.settings import ReplaySettings
from simulator.replay.walk import Walked
from simulator.replay.window import Window


@dataclass(frozen=True)
class Evidence:
    """A window's log ready for the estimators: the regression's reward `q_PK` of every pool entry at every position, and
    the chance `examination_K` that a viewer looks at each; None where the whole logging distribution is not known."""

    window: Window
    log: LoggedData
    q_PK: np.ndarray
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
        return deterministic_target(
            self.log, slate_RK, examination_K=self.examination_K, baseline_RK=q_RK, outside_R=outside_R
        )

    def _uniform(self) -> Target:
        size_R = self.window.pool_size_R
        owner_P = np.repeat(np.arange(len(size_R)), size_R)
        sums_KR = [np.bincount(owner_P, weights=q_P, minlength=len(size_R)) for q_P in self.q_PK.T]
        q_RK = np.where(self.log.shown_RK, np.stack(sums_KR, axis=1) / np.maximum(size_R, 1)[:, None], 0.0)
        return uniform_target(self.log, examination_K=self.examination_K, baseline_RK=q_RK)


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
    examination_K = examination_by_position(window)
    exposure_RK = logged_exposure(window, examination_K)
    log = replace(log, baseline_RK=logged_RK, exposure_RK=exposure_RK)
    return Evidence(window, log, q_PK, None if exposure_RK is None else examination_K)
