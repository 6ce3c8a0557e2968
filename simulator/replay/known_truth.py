"""The true value of each policy, which only a log from the behaviour environment has.

Shapes: R requests, K positions.
"""

from typing import Any, Protocol

import numpy as np

from contracts.workspace import Workspace
from simulator.replay.judgement import PolicySlates
from simulator.replay.settings import ReplaySettings
from simulator.replay.window import Window

_CHUNK = 500


class SlateTruth(Protocol):
    """What `simulator.environment.Truth` offers."""

    def slate_values(self, user_ids_N: np.ndarray, post_ids_NK: np.ndarray, requested_at_N: np.ndarray) -> np.ndarray:
        """Expected reward (N,) of showing each slate; post id -1 is an empty position."""

    def greedy_slates(
        self, user_ids_N: np.ndarray, pools_NM: np.ndarray, requested_at_N: np.ndarray, slate_size: int
    ) -> np.ndarray:
        """Slates (N, slate_size) filled from the top by the truly best next post of each pool (-1: no post)."""


def load_truth(workspace: Workspace) -> SlateTruth | None:
    """The environment's truth, or None for a log that real people made."""
    if not workspace.truth.is_dir():
        return None
    from simulator.environment import Truth

    return Truth.load(workspace)


def add_truth(entries: list[dict[str, Any]], policies: list[PolicySlates], truth: SlateTruth, window: Window, baseline: str,
              settings: ReplaySettings) -> dict[str, float]:  # fmt: skip
    """Puts into each entry its policy's true mean value per request, the true gain over `baseline`, and whether the
    headline interval covers the value (over the very requests that were replayed). Returns the true value of the
    slates as logged, and the ceiling: that of an all-knowing policy that fills each slate from the top."""
    values = {policy.name: true_value(policy.slate_RK, truth, window, settings) for policy in policies}
    for entry in entries:
        known, base = values[entry["name"]], values[baseline]
        headline = entry["headline"]
        entry["truth"] = {
            "value": known,
            "relative": None if entry["name"] == baseline or base <= 0 else known / base - 1,
        }
        entry["covered"] = bool(headline["low"] <= known <= headline["high"]) if headline else None
        for estimate in entry["estimates"].values():
            estimate["covered"] = bool(estimate["low"] <= known <= estimate["high"])
    return {"logged": true_value(window.post_RK, truth, window, settings), "ceiling": _ceiling(truth, window)}


def true_value(slate_RK: np.ndarray | None, truth: SlateTruth, window: Window, settings: ReplaySettings) -> float:
    """Mean true value per request; for the uniform random policy the mean over seeded random orderings of each pool."""
    if slate_RK is not None:
        return float(truth.slate_values(window.viewer_R, slate_RK, window.requested_at_R).mean())
    generator = np.random.default_rng([settings.seed, 1])
    draws = [random_slates(window, generator) for _ in range(settings.truth_orderings)]
    return float(
        np.mean([truth.slate_values(window.viewer_R, slate_RK, window.requested_at_R).mean() for slate_RK in draws])
    )


def random_slates(window: Window, generator: np.random.Generator) -> np.ndarray:
    """A uniformly random ordering of each pool, cut to the length of the logged slate, (R, K)."""
    size_R = window.pool_size_R
    owner_P = np.repeat(np.arange(len(size_R)), size_R)
    order = np.lexsort((generator.random(len(window.pool_P)), owner_P))
    rank_P = np.arange(len(order)) - window.pool_start_R[owner_P]
    slate_RK = np.full(window.post_RK.shape, -1, np.int64)
    inside = rank_P < window.post_RK.shape[1]
    slate_RK[owner_P[inside], rank_P[inside]] = window.pool_P[order][inside]
    return np.where(window.shown_RK, slate_RK, -1)


def _ceiling(truth: SlateTruth, window: Window) -> float:
    requests, size_R = len(window.request_R), window.pool_size_R
    pools_RM = np.full((requests, int(size_R.max())), -1, np.int64)
    owner_P = np.repeat(np.arange(requests), size_R)
    pools_RM[owner_P, np.arange(len(owner_P)) - window.pool_start_R[owner_P]] = window.pool_P
    total = 0.0
    for at in range(0, requests, _CHUNK):
        rows = slice(at, at + _CHUNK)
        viewer, moment = window.viewer_R[rows], window.requested_at_R[rows]
        slates = truth.greedy_slates(viewer, pools_RM[rows], moment, window.post_RK.shape[1])
        total += float(truth.slate_values(viewer, np.where(window.shown_RK[rows], slates, -1), moment).sum())
    return total / requests
