"""Which positions of a slate a person looks at: by position alone, or down the slate until something ends the scan.

Shapes: N requests, K slate positions, A tasks.
"""

from dataclasses import dataclass

import numpy as np

from contracts.tasks import TASK_NAMES

ENGAGING_A = np.array([name != "hide" for name in TASK_NAMES])
"""The actions that can end a scan: those of somebody who found something."""


@dataclass(frozen=True)
class Examination:
    """How a slate is looked at.

    By position: position k is looked at with probability (1 + k) ** -power, independently of all else (the position-based
    model; Craswell and others 2008). As a cascade: from the top, one by one; after each post the person goes on with
    probability `persistence`, times 1 - `stop_after_action` where they clicked, liked, commented or shared (the dependent
    click model, a cascade with more than one click; Guo and others 2009).
    """

    cascade: bool = False
    power: float = 0.4
    persistence: float = 0.95
    stop_after_action: float = 0.3

    def by_position(self, positions: int) -> np.ndarray:
        """Probability (K,) of a look by position alone; 1 everywhere in a cascade, where the scan decides."""
        if self.cascade:
            return np.ones(positions)
        return (1.0 + np.arange(positions)) ** -self.power

    def expected(self, chances_NKA: np.ndarray) -> np.ndarray:
        """Exact probability (N, K) of a look at each position, from the chances of actions on examined posts."""
        looks_K = self.by_position(chances_NKA.shape[1])
        if not self.cascade:
            return np.broadcast_to(looks_K, chances_NKA.shape[:2])
        nothing_NK = np.prod(1.0 - chances_NKA[:, :, ENGAGING_A], axis=2)
        goes_on_NK = self.persistence * (1.0 - self.stop_after_action * (1.0 - nothing_NK))
        return np.concatenate([np.ones((len(goes_on_NK), 1)), np.cumprod(goes_on_NK, axis=1)[:, :-1]], axis=1)

    def first_looks(self, rng: np.random.Generator, filled_NK: np.ndarray) -> np.ndarray:
        """Positions (N, K) that are looked at as far as actions have no say in it."""
        if self.cascade:
            return filled_NK
        return (rng.random(filled_NK.shape) < self.by_position(filled_NK.shape[1])) & filled_NK

    def after_actions(
        self, rng: np.random.Generator, looked_NK: np.ndarray, acted_NKA: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Looks (N, K) and actions (N, K, A) that remain once actions have ended scans."""
        if not self.cascade:
            return looked_NK, acted_NKA
        engaged_NK = acted_NKA[:, :, ENGAGING_A].any(axis=2)
        chance_NK = self.persistence * np.where(engaged_NK, 1.0 - self.stop_after_action, 1.0)
        goes_on_NK = rng.random(looked_NK.shape) < chance_NK
        reached_NK = np.ones(looked_NK.shape, bool)
        reached_NK[:, 1:] = np.logical_and.accumulate(goes_on_NK, axis=1)[:, :-1]
        viewed_NK = looked_NK & reached_NK
        return viewed_NK, acted_NKA & viewed_NK[:, :, None]
