"""A tiny world whose policies' true values can be summed by brute force over every slate there is."""

from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from simulator.evaluation import LoggedData, Target

CONTEXTS, POOL, POSITIONS = 4, 5, 3


@dataclass
class SlateWorld:
    """Click chance of each post in each context, examination by position, one logging and one target slate each."""

    chance_CA: np.ndarray
    examination_K: np.ndarray
    logging_slate_CK: np.ndarray
    target_slate_CK: np.ndarray
    exploration: float = 0.6

    @classmethod
    def make(cls, generator: np.random.Generator) -> "SlateWorld":
        chance_CA = generator.beta(1.0, 2.0, size=(CONTEXTS, POOL))
        logging = np.stack([generator.permutation(POOL)[:POSITIONS] for _ in range(CONTEXTS)])
        target = np.argsort(-chance_CA, axis=1)[:, :POSITIONS]
        return cls(chance_CA, np.array([1.0, 0.7, 0.5]), logging, target)

    def slate_probability(
        self, context: int, slate: tuple[int, ...], exploration: float, greedy_K: np.ndarray
    ) -> float:
        return exploration / len(list(permutations(range(POOL), POSITIONS))) + (1 - exploration) * (
            slate == tuple(greedy_K)
        )

    def true_value(self, exploration: float) -> float:
        """Of the policy that shows the target slate, or with `exploration` any slate; summed over all 60 slates."""
        total = 0.0
        for context in range(CONTEXTS):
            for slate in permutations(range(POOL), POSITIONS):
                reward = sum(self.examination_K[k] * self.chance_CA[context, post] for k, post in enumerate(slate))
                total += self.slate_probability(context, slate, exploration, self.target_slate_CK[context]) * reward
        return total / CONTEXTS

    def log(self, requests: int, viewers: int, generator: np.random.Generator) -> tuple[np.ndarray, LoggedData]:
        """Context of each request and the log; a viewer's requests share a context, so they hang together."""
        viewer_R = generator.integers(viewers, size=requests)
        context_R = viewer_R % CONTEXTS
        explore_R = generator.random(requests) < self.exploration
        shuffled_RA = np.argsort(generator.random((requests, POOL)), axis=1)[:, :POSITIONS]
        post_RK = np.where(explore_R[:, None], shuffled_RA, self.logging_slate_CK[context_R])
        chance_RK = self.chance_CA[context_R[:, None], post_RK] * self.examination_K
        reward_RK = (generator.random(chance_RK.shape) < chance_RK).astype(float)
        propensity_RK = self.exploration / POOL + (1 - self.exploration) * (post_RK == self.logging_slate_CK[context_R])
        log = LoggedData(
            viewer_R, np.ones_like(post_RK, bool), post_RK, reward_RK, propensity_RK, np.full(requests, POOL)
        )
        return context_R, log

    def target(self, context_R: np.ndarray, log: LoggedData, exploration: float) -> Target:
        probability_RK = exploration / POOL + (1 - exploration) * (log.post_RK == self.target_slate_CK[context_R])
        return Target(probability_RK)

    def with_baseline(self, context_R: np.ndarray, log: LoggedData, target: Target, exploration: float,
                      blur: float) -> tuple[LoggedData, Target]:  # fmt: skip
        """Baselines from the true chances times `blur`: right in shape, wrong in level."""
        q_CA = self.chance_CA * blur
        logged_RK = q_CA[context_R[:, None], log.post_RK] * self.examination_K
        greedy_RK = q_CA[context_R[:, None], self.target_slate_CK[context_R]] * self.examination_K
        mean_RK = q_CA[context_R].mean(axis=1, keepdims=True) * self.examination_K
        target_RK = exploration * mean_RK + (1 - exploration) * greedy_RK
        logged = LoggedData(log.viewer_R, log.shown_RK, log.post_RK, log.reward_RK, log.propensity_RK, log.pool_R,
                            baseline_RK=logged_RK)  # fmt: skip
        return logged, Target(target.probability_RK, target_RK)

    def with_exposure(
        self, context_R: np.ndarray, log: LoggedData, target: Target, exploration: float
    ) -> tuple[LoggedData, Target]:
        """Exposure of the logged posts under the log and under the target, from the two mixtures in closed form."""

        def exposure(explored: float, slate_CK: np.ndarray) -> np.ndarray:
            place_RKK = log.post_RK[:, :, None] == slate_CK[context_R][:, None, :]
            return explored * self.examination_K.sum() / POOL + (1 - explored) * (place_RKK @ self.examination_K)

        logged = replace(log, exposure_RK=exposure(self.exploration, self.logging_slate_CK))
        return logged, replace(target, exposure_RK=exposure(exploration, self.target_slate_CK))
