"""The logging policy: a request-level mixture of a random and a chronological feed, with exact propensities.

Shapes: N requests, M pool slots (-1: empty), K slate positions.
"""

import numpy as np

POLICY_NAME = "epsilon-chronological"


def chronological_order(created_at_NM: np.ndarray, post_ids_NM: np.ndarray) -> np.ndarray:
    """Pool slots (N, M), newest first; ties by post_id, larger first; empty slots (-1) last."""
    empty_NM = post_ids_NM < 0
    return np.lexsort((-post_ids_NM, -np.where(empty_NM, 0, created_at_NM), empty_NM), axis=1)


def draw_slates(
    rng: np.random.Generator, chronological_NM: np.ndarray, pool_sizes_N: np.ndarray, slate_size: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pool slots of the slate (N, K), -1 past the pool's end, and whether the slate was drawn at random (N,)."""
    n, m = chronological_NM.shape
    filled_NM = np.arange(m) < pool_sizes_N[:, None]
    keys_NM = np.where(filled_NM, rng.random((n, m)), 2.0)
    shuffled_NM = np.take_along_axis(chronological_NM, np.argsort(keys_NM, axis=1, kind="stable"), axis=1)
    random_N = np.asarray(rng.random(n) < epsilon)
    slots_NK = np.where(random_N[:, None], shuffled_NM, chronological_NM)[:, :slate_size]
    return np.where(np.arange(slots_NK.shape[1]) < pool_sizes_N[:, None], slots_NK, -1), random_N


def mixture_propensities(
    slots_NK: np.ndarray, chronological_NM: np.ndarray, pool_sizes_N: np.ndarray, epsilon: float
) -> np.ndarray:
    """Marginal probability (N, K) that the pool slot at position k is put there; 0 at empty positions (-1).

    With n posts in the pool: epsilon / n + (1 - epsilon) * [chronological rank of the post == k].
    """
    k = slots_NK.shape[1]
    agrees_NK = slots_NK == chronological_NM[:, :k]
    propensities_NK = epsilon / np.maximum(pool_sizes_N, 1)[:, None] + (1.0 - epsilon) * agrees_NK
    return np.where(slots_NK >= 0, propensities_NK, 0.0)
