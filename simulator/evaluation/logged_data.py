"""Logged slates as dense arrays, and what a target policy would have done with the same requests.

Shapes: R requests, K slate positions (shorter slates are padded; `shown_RK` is false there).
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class LoggedData:
    """What the logging policy showed and what came of it.

    `viewer_R` user ids; `shown_RK` whether the position was filled; `post_RK` post ids (-1 where not shown);
    `reward_RK` total reward of the impression (0 where not shown); `propensity_RK` probability that the logging policy
    puts this post at this position (1 where not shown); `pool_R` how many posts the policy could choose from;
    `task_reward_RK` the same reward split by task; `baseline_RK` reward that a regression predicts for the logged post
    at its position, for the direct and doubly robust estimators; `exposure_RK` the examination that the logging policy
    gives the logged post over all positions, sum over k of examination_k x propensity of this post at k, where the
    whole distribution is known, for the position-based estimators; `prefix_propensity_RK` probability that the logging
    policy shows the first k + 1 posts exactly as logged, so the last column is that of the whole slate, for the
    estimators that let posts above act on those below.

    Raises ValueError when shapes differ or a propensity of a shown post lies outside (0, 1].
    """

    viewer_R: np.ndarray
    shown_RK: np.ndarray
    post_RK: np.ndarray
    reward_RK: np.ndarray
    propensity_RK: np.ndarray
    pool_R: np.ndarray
    task_reward_RK: dict[str, np.ndarray] = field(default_factory=dict)
    baseline_RK: np.ndarray | None = None
    exposure_RK: np.ndarray | None = None
    prefix_propensity_RK: np.ndarray | None = None

    def __post_init__(self) -> None:
        shape = self.shown_RK.shape
        arrays = {"post_RK": self.post_RK, "reward_RK": self.reward_RK, "propensity_RK": self.propensity_RK,
                  "baseline_RK": self.baseline_RK, "exposure_RK": self.exposure_RK,
                  "prefix_propensity_RK": self.prefix_propensity_RK, **self.task_reward_RK}  # fmt: skip
        for name, array in arrays.items():
            if array is not None and array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, not {shape}")
        for name, array in {"viewer_R": self.viewer_R, "pool_R": self.pool_R}.items():
            if array.shape != shape[:1]:
                raise ValueError(f"{name} has shape {array.shape}, not {shape[:1]}")
        _in_zero_to_one(self.propensity_RK[self.shown_RK], "propensities")
        if self.prefix_propensity_RK is not None:
            _in_zero_to_one(self.prefix_propensity_RK[self.shown_RK], "prefix propensities")

    @property
    def requests(self) -> int:
        """R."""
        return self.shown_RK.shape[0]

    def task(self, name: str) -> "LoggedData":
        """The same log with only the reward of one task, and without the baseline, which predicts the total."""
        return LoggedData(self.viewer_R, self.shown_RK, self.post_RK, self.task_reward_RK[name], self.propensity_RK,
                          self.pool_R, exposure_RK=self.exposure_RK, prefix_propensity_RK=self.prefix_propensity_RK)  # fmt: skip


def _in_zero_to_one(values_N: np.ndarray, name: str) -> None:
    wrong = ~((values_N > 0) & (values_N <= 1))
    if wrong.any():
        raise ValueError(f"{wrong.sum()} of {len(values_N)} {name} lie outside (0, 1], such as {values_N[wrong][0]}")


@dataclass(frozen=True)
class Target:
    """What a target policy does with the requests of a log.

    `probability_RK`: that it puts the *logged* post at the logged position. `baseline_RK`: the reward that the
    regression predicts at each position under the target's own choice, sum over posts of probability x prediction.
    `exposure_RK`: the examination that the target gives the logged post over all positions, like `LoggedData.exposure_RK`.
    `outside_R`: share of the target's slate that lies outside the logged pool, where the log can say nothing.
    `prefix_probability_RK`: that it shows the first k + 1 posts exactly as logged. `to_go_logged_RK`, `to_go_target_RK`:
    predicted sum of rewards from position k on, given the logged posts above it, with the logged post at k, and with the
    target's own choice at k; the target chooses below.
    """

    probability_RK: np.ndarray
    baseline_RK: np.ndarray | None = None
    exposure_RK: np.ndarray | None = None
    outside_R: np.ndarray | None = None
    prefix_probability_RK: np.ndarray | None = None
    to_go_logged_RK: np.ndarray | None = None
    to_go_target_RK: np.ndarray | None = None


def deterministic_target(log: LoggedData, slate_RK: np.ndarray, *, examination_K: np.ndarray | None = None,
                         baseline_RK: np.ndarray | None = None, outside_R: np.ndarray | None = None) -> Target:  # fmt: skip
    """The target that shows `slate_RK` (post ids, -1 for an empty position) with probability one.

    `examination_K`: chance that a viewer looks at each position; without it there is no exposure.
    """
    probability_RK = ((slate_RK == log.post_RK) & log.shown_RK).astype(np.float64)
    exposure_RK = None
    if examination_K is not None:
        place_RKK = (
            (log.post_RK[:, :, None] == slate_RK[:, None, :]) & log.shown_RK[:, :, None] & (slate_RK >= 0)[:, None, :]
        )
        exposure_RK = place_RKK @ examination_K
    prefix_RK = np.cumprod(probability_RK, axis=1)
    return Target(probability_RK, baseline_RK, exposure_RK, outside_R, prefix_probability_RK=prefix_RK)


def uniform_target(
    log: LoggedData, *, examination_K: np.ndarray | None = None, baseline_RK: np.ndarray | None = None
) -> Target:
    """The target that orders the pool uniformly at random: 1/pool at every position, exactly, no sampling."""
    probability_RK = np.where(log.shown_RK, 1.0 / np.maximum(log.pool_R, 1)[:, None], 0.0)
    exposure_RK = None
    if examination_K is not None:
        exposure_RK = np.where(log.shown_RK, ((log.shown_RK @ examination_K) / np.maximum(log.pool_R, 1))[:, None], 0.0)
    prefix_RK = np.where(log.shown_RK, uniform_prefix(log.pool_R, log.shown_RK.shape[1]), 0.0)
    return Target(probability_RK, baseline_RK, exposure_RK, prefix_probability_RK=prefix_RK)


def uniform_prefix(pool_R: np.ndarray, positions: int) -> np.ndarray:
    """Chance (R, positions) of any one order of k + 1 different posts when all orders of the pool are equally likely."""
    left_RK = np.maximum(pool_R[:, None] - np.arange(positions), 1)
    return np.cumprod(1.0 / left_RK, axis=1)
