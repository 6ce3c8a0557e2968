"""What happened in feeds: requests, pools, slates, looks and actions as arrays.

Shapes: N requests, M pool slots, K slate positions, A tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from contracts.tasks import TASKS
from simulator.environment.settings import EnvironmentSettings


@dataclass(frozen=True)
class Log:
    """Requests in time order, by index of users and posts; `acted_NKA` holds what happened."""

    user_N: np.ndarray
    at_N: np.ndarray
    session_N: np.ndarray
    pools_NM: np.ndarray
    slates_NK: np.ndarray
    propensities_NK: np.ndarray
    viewed_NK: np.ndarray
    acted_NKA: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["Log"]) -> "Log":
        """One log out of several."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def take(self, rows: np.ndarray) -> "Log":
        """The requests of an index."""
        return Log(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def empty(cls, settings: EnvironmentSettings) -> "Log":
        """No requests."""
        k, m, a = settings.slate_size, settings.pool_size, len(TASKS)
        none, pools, slates = np.zeros(0, np.int64), np.zeros((0, m), np.int64), np.zeros((0, k), np.int64)
        return cls(none, none, none, pools, slates, np.zeros((0, k)), np.zeros((0, k), bool), np.zeros((0, k, a), bool))
