"""Logs drawn again and again from the behaviour environment, whose slates tire people: what that does to each estimator.

The people, posts, requests and pools of one simulated log are the population. A log takes viewers from it by chance, shows
them what the logging policy might have shown, and lets them act as the environment says.

Shapes: N requests of the population, M pool slots, K positions, R requests of one log.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.coverage_study import Row, Tally, judge_log, rows
from contracts.tables import POSTS, REQUESTS
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, Truth, simulate
from simulator.evaluation import LoggedData, Target
from simulator.evaluation.logged_data import deterministic_target

K = 8
EXPLORATION = 0.6
EXAMINATION_K = (1.0 + np.arange(K)) ** -0.4
NAMES = ("ips", "snips", "dm", "dr", "sndr", "pbm", "pbm_dr", "switch_dr", "dros")


@dataclass(frozen=True)
class Population:
    """Requests with a whole slate in their pool. Pools are newest first, -1 padded; `worth_NM` is what each post would earn
    alone at the top, `guess_NM` a forecast of it that is off by about a third and too low by a fifth."""

    truth: Truth
    viewer_N: np.ndarray
    requested_at_N: np.ndarray
    pool_NM: np.ndarray
    worth_NM: np.ndarray
    guess_NM: np.ndarray

    @classmethod
    def make(cls, workspace: Workspace, settings: EnvironmentSettings, generator: np.random.Generator) -> "Population":
        """Simulates a log and keeps its requests."""
        simulate(workspace, settings)
        truth = Truth.load(workspace)
        table = workspace.lake.read(REQUESTS, ["user_id", "requested_at", "candidates"])
        posts = workspace.lake.read(POSTS, ["post_id", "created_at"])
        post_ids = posts["post_id"].to_numpy()
        order = np.argsort(post_ids)
        created = dict(zip(post_ids[order].tolist(), posts["created_at"].to_numpy()[order].tolist()))
        pools = table["candidates"].to_pylist()
        kept = [i for i, pool in enumerate(pools) if len(pool) >= K]
        width = max(len(pools[i]) for i in kept)
        pool_NM = np.full((len(kept), width), -1, np.int64)
        for row, i in enumerate(kept):
            newest = sorted(pools[i], key=lambda post: (-created[post], -post))
            pool_NM[row, : len(newest)] = newest
        viewer_N, at_N = (table[name].to_numpy()[kept] for name in ("user_id", "requested_at"))
        worth_NM = truth.slate_values(
            np.repeat(viewer_N, width), pool_NM.reshape(-1, 1), np.repeat(at_N, width)
        ).reshape(pool_NM.shape)
        guess_NM = 0.8 * worth_NM * np.exp(0.3 * generator.normal(size=worth_NM.shape))
        return cls(truth, viewer_N, at_N, pool_NM, worth_NM, guess_NM)

    def policies(self, generator: np.random.Generator) -> list[np.ndarray]:
        """Ten policies as pool columns (N, K): newest first, and orders by worth under ever less noise."""
        scale = self.worth_NM[self.pool_NM >= 0].std()
        chosen = [np.tile(np.arange(K), (len(self.pool_NM), 1))]
        for noise in (30.0, 6.0, 4.0, 3.0, 2.2, 1.6, 1.1, 0.7, 0.2):
            score_NM = self.worth_NM / scale + noise * generator.normal(size=self.worth_NM.shape)
            chosen.append(np.argsort(np.where(self.pool_NM >= 0, -score_NM, np.inf), axis=1)[:, :K])
        return chosen

    def true_value(self, column_NK: np.ndarray) -> float:
        """Mean over the population of the exact value of the policy's slates."""
        slate_NK = np.take_along_axis(self.pool_NM, column_NK, axis=1)
        return float(self.truth.slate_values(self.viewer_N, slate_NK, self.requested_at_N).mean())

    def draw(self, viewers: int, generator: np.random.Generator) -> tuple[np.ndarray, LoggedData]:
        """Population row of each request, and the log: `viewers` taken with replacement, each a viewer of its own."""
        order = np.argsort(self.viewer_N, kind="stable")
        ids, start = np.unique(self.viewer_N[order], return_index=True)
        bounds = np.append(start, len(order))
        taken = generator.integers(len(ids), size=viewers)
        row_R = np.concatenate([order[bounds[i] : bounds[i + 1]] for i in taken])
        viewer_R = np.repeat(np.arange(viewers), (bounds[taken + 1] - bounds[taken]))
        pool_RM = self.pool_NM[row_R]
        shuffled_RM = np.argsort(np.where(pool_RM >= 0, generator.random(pool_RM.shape), np.inf), axis=1)
        newest_R1 = generator.random((len(row_R), 1)) >= EXPLORATION
        column_RK = np.where(newest_R1, np.arange(K), shuffled_RM[:, :K])
        post_RK = np.take_along_axis(pool_RM, column_RK, axis=1)
        chances = self.truth.action_probabilities(self.viewer_N[row_R], post_RK, self.requested_at_N[row_R])
        reward_RK = np.zeros(post_RK.shape)
        for task, name in zip(TASKS, TASK_NAMES):
            reward_RK += task.worth * (generator.random(post_RK.shape) < chances[name])
        size_R = (pool_RM >= 0).sum(axis=1)
        newest_place_RK = column_RK == np.arange(K)
        propensity_RK = EXPLORATION / size_R[:, None] + (1 - EXPLORATION) * newest_place_RK
        shown_there_RK = np.where(column_RK < K, EXAMINATION_K[np.minimum(column_RK, K - 1)], 0.0)
        exposure_RK = EXPLORATION * EXAMINATION_K.sum() / size_R[:, None] + (1 - EXPLORATION) * shown_there_RK
        baseline_RK = np.take_along_axis(self.guess_NM[row_R], column_RK, axis=1) * EXAMINATION_K
        log = LoggedData(viewer_R, np.ones(post_RK.shape, bool), post_RK, reward_RK, propensity_RK, size_R,
                         baseline_RK=baseline_RK, exposure_RK=exposure_RK)  # fmt: skip
        return row_R, log

    def target(self, row_R: np.ndarray, log: LoggedData, column_NK: np.ndarray) -> Target:
        """The policy as a target on the drawn requests."""
        slate_RK = np.take_along_axis(self.pool_NM[row_R], column_NK[row_R], axis=1)
        q_RK = np.take_along_axis(self.guess_NM[row_R], column_NK[row_R], axis=1) * EXAMINATION_K
        return deterministic_target(log, slate_RK, examination_K=EXAMINATION_K, baseline_RK=q_RK)


def environment_study(*, logs: int, users: int, viewers: int, resamples: int, seed: int) -> dict[str, Row]:
    """Ten policies on a small friend network; intervals of a poor, a middling and a good one."""
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        settings = EnvironmentSettings(users=users, days=14, seed=seed)
        population = Population.make(Workspace(Path(folder)), settings, generator)
    policies = population.policies(generator)
    truth_P = np.array([population.true_value(column_NK) for column_NK in policies])
    judged, tally = (1, 5, 9), Tally([], [], [])
    for _ in range(logs):
        row_R, log = population.draw(viewers, generator)
        targets = [population.target(row_R, log, column_NK) for column_NK in policies]
        judge_log(tally, log, targets, truth_P, NAMES, judged, resamples, generator)
    return rows(tally, truth_P, NAMES, judged)
