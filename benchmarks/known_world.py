"""A world of few contexts and few posts, whose policies' true values are sums over every slate there is.

Shapes: C contexts, A posts, K positions, S slates (all orders of K posts out of A), R requests.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from simulator.evaluation import LoggedData, Target
from simulator.evaluation.reward_regression import viewer_folds


@dataclass(frozen=True)
class SampledLog:
    """A log drawn from the world: context and slate number of each request, what the estimators see, and the rewards
    (2 folds, C, S, K) that a regression on the other fold's viewers predicts."""

    context_R: np.ndarray
    slate_R: np.ndarray
    log: LoggedData
    q_FCSK: np.ndarray


@dataclass(frozen=True)
class KnownWorld:
    """`reward_CSK`: expected reward at each position of each slate; `logging_CS`: how the log chooses its slates.

    A viewer lives in one context, and likes everything more or less than others by a factor of 1 plus or minus `spread`.
    """

    slates_SK: np.ndarray
    reward_CSK: np.ndarray
    logging_CS: np.ndarray
    examination_K: np.ndarray
    spread: float

    @classmethod
    def make(cls, generator: np.random.Generator, *, contexts: int = 8, posts: int = 6, positions: int = 3,
             exploration: float = 0.5, fatigue: float = 1.0, spread: float = 0.4) -> "KnownWorld":  # fmt: skip
        """`fatigue`: factor on the reward of a post for each post above it of its own kind (odd or even): 1 keeps positions
        apart, as the item-position model has it. The log shows any slate with `exploration`, else what it takes for good."""
        slates_SK = np.array(list(permutations(range(posts), positions)))
        examination_K = (1.0 + np.arange(positions)) ** -0.4
        chance_CA = 0.7 * generator.random((contexts, posts))
        kind_SK = slates_SK % 2
        alike_SK = np.stack([(kind_SK[:, :k] == kind_SK[:, k : k + 1]).sum(axis=1) for k in range(positions)], axis=1)
        reward_CSK = chance_CA[:, slates_SK] * examination_K * fatigue**alike_SK
        guess_CS = reward_CSK.sum(axis=2) + generator.normal(0, 0.15, size=(contexts, len(slates_SK)))
        logging_CS = exploration / len(slates_SK) + (1 - exploration) * _softmax(6 * guess_CS)
        return cls(slates_SK, reward_CSK, logging_CS, examination_K, spread)

    def policies(self, count: int, generator: np.random.Generator) -> list[np.ndarray]:
        """`count` policies (C, S), from one that avoids what people like, over random, to one that seeks it."""
        value_CS = self.reward_CSK.sum(axis=2)
        return [
            _softmax(sharpness * (value_CS + generator.normal(0, 0.05, size=value_CS.shape)))
            for sharpness in np.linspace(-3.0, 9.0, count)
        ]

    def true_value(self, policy_CS: np.ndarray) -> float:
        """Expected sum of rewards of one request."""
        return float((policy_CS[:, :, None] * self.reward_CSK).sum() / len(policy_CS))

    def draw(self, requests: int, viewers: int, generator: np.random.Generator) -> SampledLog:
        """A log of `requests` by `viewers`, rewards 0 or 1, with its own cross-fitted regression as baseline."""
        contexts = len(self.logging_CS)
        context_V = generator.integers(contexts, size=viewers)
        level_V = 1 + self.spread * generator.choice([-1.0, 1.0], size=viewers)
        viewer_R = generator.integers(viewers, size=requests)
        context_R = context_V[viewer_R]
        cumulative_RS = np.cumsum(self.logging_CS, axis=1)[context_R]
        slate_R = np.minimum((cumulative_RS < generator.random((requests, 1))).sum(axis=1), len(self.slates_SK) - 1)
        chance_RK = self.reward_CSK[context_R, slate_R] * level_V[viewer_R][:, None]
        reward_RK = (generator.random(chance_RK.shape) < chance_RK).astype(float)
        post_RK = self.slates_SK[slate_R]
        log = LoggedData(
            viewer_R, np.ones(post_RK.shape, bool), post_RK, reward_RK, self._at_position(self.logging_CS)[context_R, slate_R],
            np.full(requests, self.slates_SK.max() + 1), exposure_RK=self._exposure(self.logging_CS)[context_R, slate_R],
            prefix_propensity_RK=self._prefixes(self.logging_CS)[context_R, slate_R],
        )  # fmt: skip
        q_FCSK = self._regression(context_R, log)
        log = replace(log, baseline_RK=q_FCSK[viewer_folds(viewer_R, 2), context_R, slate_R])
        return SampledLog(context_R, slate_R, log, q_FCSK)

    def _regression(self, context_R: np.ndarray, log: LoggedData) -> np.ndarray:
        """Predicted reward (2 folds, C, S, K): the mean by context, post and position over the viewers of the other fold."""
        contexts, posts, positions = len(self.logging_CS), self.slates_SK.max() + 1, self.slates_SK.shape[1]
        fold_R = viewer_folds(log.viewer_R, 2)
        cell_RK = (context_R[:, None] * posts + log.post_RK) * positions + np.arange(positions)
        tables = []
        for fold in range(2):
            rows = cell_RK[fold_R != fold].ravel()
            reward = log.reward_RK[fold_R != fold].ravel()
            cells = contexts * posts * positions
            # Five impressions of the overall mean keep an empty cell from saying zero.
            mean = reward.mean() if len(reward) else 0.0
            table = (np.bincount(rows, reward, cells) + 5 * mean) / (np.bincount(rows, minlength=cells) + 5)
            tables.append(
                table.reshape(contexts, posts, positions)[:, self.slates_SK.ravel(), :].reshape(
                    contexts, len(self.slates_SK), positions, positions
                )[:, :, np.arange(positions), np.arange(positions)]
            )
        return np.stack(tables)

    def target(self, sampled: SampledLog, policy_CS: np.ndarray) -> Target:
        """The policy as a target, with everything that any estimator may ask for."""
        at = (sampled.context_R, sampled.slate_R)
        q_FCSK = sampled.q_FCSK
        fold_R = viewer_folds(sampled.log.viewer_R, 2)
        chosen_FCK = np.einsum("cs,fcsk->fck", policy_CS, q_FCSK)
        to_go = [self._to_go(policy_CS, q_CSK) for q_CSK in q_FCSK]
        logged_FCSK, target_FCSK = (np.stack([pair[i] for pair in to_go]) for i in (0, 1))
        return Target(
            self._at_position(policy_CS)[at], chosen_FCK[fold_R, sampled.context_R], self._exposure(policy_CS)[at],
            prefix_probability_RK=self._prefixes(policy_CS)[at], to_go_logged_RK=logged_FCSK[fold_R, *at],
            to_go_target_RK=target_FCSK[fold_R, *at],
        )  # fmt: skip

    def continuations(self, sampled: SampledLog, policy_CS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """At each position of each request, given the logged posts above: the policy's chance of every post, (R, K, A), and
        the predicted rewards from there on if it stands there; both 0 for a post that stands above."""
        same_SSK, q_FCSK = self._same_start, sampled.q_FCSK
        fold_R, requests = viewer_folds(sampled.log.viewer_R, 2), np.arange(len(sampled.slate_R))
        to_go_FCSK = np.stack([self._to_go(policy_CS, q_CSK)[0] for q_CSK in q_FCSK])
        start_CSK = np.einsum("stk,ct->csk", same_SSK, policy_CS)
        positions, posts = self.slates_SK.shape[1], int(self.slates_SK.max()) + 1
        choice_RKA, q_RKA = (np.zeros((len(requests), positions, posts)) for _ in range(2))
        for k in range(positions):
            for post in range(posts):
                follows_RS = (same_SSK[sampled.slate_R, :, k] > 0) & (self.slates_SK[:, k] == post)
                possible_R, slate_R = follows_RS.any(axis=1), follows_RS.argmax(axis=1)
                reached_R = start_CSK[sampled.context_R, slate_R, k + 1] / start_CSK[sampled.context_R, slate_R, k]
                choice_RKA[:, k, post] = np.where(possible_R, reached_R, 0.0)
                q_RKA[:, k, post] = np.where(possible_R, to_go_FCSK[fold_R, sampled.context_R, slate_R, k], 0.0)
        return choice_RKA, q_RKA

    @cached_property
    def _same_start(self) -> np.ndarray:
        """Whether two slates begin with the same k posts, (S, S, K + 1)."""
        same_SSK = np.cumprod(self.slates_SK[:, None, :] == self.slates_SK[None, :, :], axis=2).astype(np.float64)
        return np.concatenate([np.ones_like(same_SSK[:, :, :1]), same_SSK], axis=2)

    def _prefixes(self, policy_CS: np.ndarray) -> np.ndarray:
        """Chance of the first k + 1 posts of each slate, (C, S, K)."""
        return np.minimum(np.einsum("stk,ct->csk", self._same_start[:, :, 1:], policy_CS), 1.0)

    def _at_position(self, policy_CS: np.ndarray) -> np.ndarray:
        """Chance of each slate's post at its position, whatever stands elsewhere, (C, S, K)."""
        same_SSK = self.slates_SK[:, None, :] == self.slates_SK[None, :, :]
        return np.minimum(np.einsum("stk,ct->csk", same_SSK, policy_CS), 1.0)

    def _exposure(self, policy_CS: np.ndarray) -> np.ndarray:
        """Examination that the policy gives to each slate's posts wherever it puts them, (C, S, K)."""
        seen_SA = np.zeros((len(self.slates_SK), self.slates_SK.max() + 1))
        seen_SA[np.arange(len(seen_SA))[:, None], self.slates_SK] = self.examination_K
        return (policy_CS @ seen_SA)[:, self.slates_SK]

    def _to_go(self, policy_CS: np.ndarray, q_CSK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predicted rewards from k on under the policy, given the slate's first k + 1 posts, and its first k, (C, S, K)."""
        left_CSK = np.cumsum(q_CSK[:, :, ::-1], axis=2)[:, :, ::-1]
        both = [np.empty_like(left_CSK), np.empty_like(left_CSK)]
        for k in range(left_CSK.shape[2]):
            for to_go_CSK, given in zip(both, (k + 1, k)):
                start_SS = self._same_start[:, :, given].T
                to_go_CSK[:, :, k] = (policy_CS * left_CSK[:, :, k]) @ start_SS / (policy_CS @ start_SS)
        return both[0], both[1]


def _softmax(score_CS: np.ndarray) -> np.ndarray:
    raised_CS = np.exp(score_CS - score_CS.max(axis=1, keepdims=True))
    return raised_CS / raised_CS.sum(axis=1, keepdims=True)
