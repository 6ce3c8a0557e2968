"""Plackett-Luce orders: drawing them, and the exact probability that a post stands at a position.

A post of weight w arrives at an exponential time of rate w, and the order of arrival is the Plackett-Luce order (Luce
1959; the Gumbel trick takes minus the logarithm of these times). So a post stands at position k when k others arrived
before it: an integral over its time of a Poisson-binomial probability, in place of a sum over all orders of those above.

Shapes: N requests, M pool slots, K slate positions, Q quadrature nodes.
"""

from collections.abc import Iterator

import numpy as np

REQUESTS_AT_ONCE = 64
"""Few enough that their counts stay in the processor's cache."""
STEP = 0.35
"""Step of the trapezoid rule in log time. Its error falls like exp(-pi^2 / step) for such integrands: below 1e-11 here."""
LOST = 1e-11
"""Relative probability that is cut off at either end of log time."""


def draw_order(rng: np.random.Generator, logit_NM: np.ndarray) -> np.ndarray:
    """Slots (N, M) in a drawn order; slots of weight zero (logit -inf) come last."""
    noise_NM = rng.gumbel(size=logit_NM.shape)
    return np.argsort(-(logit_NM + noise_NM), axis=1, kind="stable")


def position_propensities(logit_NM: np.ndarray, slot_NK: np.ndarray) -> np.ndarray:
    """Marginal probability (N, K) that the slot at position k is put there by an order with weights exp(logit).

    `logit_NM`: -inf for an empty slot. `slot_NK`: -1 for an empty position, where the answer is 0. A slot's probabilities
    over all positions sum to one, and so do those of all slots at one position.
    """
    parts = [
        _propensities(logit_NM[first : first + REQUESTS_AT_ONCE], slot_NK[first : first + REQUESTS_AT_ONCE])
        for first in range(0, len(slot_NK), REQUESTS_AT_ONCE)
    ]
    return np.concatenate(parts) if parts else np.zeros(slot_NK.shape)


def _propensities(logit_NM: np.ndarray, slot_NK: np.ndarray) -> np.ndarray:
    positions = slot_NK.shape[1]
    top_N1 = np.maximum(logit_NM.max(axis=1, keepdims=True), -1e300)
    weight_NM = np.exp(logit_NM - top_N1)
    weight_NK = np.where(slot_NK >= 0, np.take_along_axis(weight_NM, np.maximum(slot_NK, 0), axis=1), 0.0)
    rest_NM = weight_NM.copy()
    row_R, place_R = np.nonzero(slot_NK >= 0)
    rest_NM[row_R, slot_NK[row_R, place_R]] = 0.0
    time_NQ, step_N = _nodes(weight_NM, weight_NK)
    # Count c of `above_CNQ`: the probability that c of the multiplied posts have arrived, up to the last position.
    above_CNQ = np.zeros((positions, *time_NQ.shape))
    above_CNQ[0] = 1.0
    for m in range(rest_NM.shape[1]):
        if rest_NM[:, m].any():
            above_CNQ = _with(above_CNQ, _arrived(rest_NM[:, m], time_NQ))
    arrived_KNQ = [_arrived(weight_NK[:, k], time_NQ) for k in range(positions)]
    found_NK = np.zeros(slot_NK.shape)
    for k, all_but_k_CNQ in _leave_one_out(above_CNQ, arrived_KNQ, 0, positions):
        density_NQ = weight_NK[:, k, None] * time_NQ * (1.0 - arrived_KNQ[k])
        found_NK[:, k] = (density_NQ * all_but_k_CNQ[k]).sum(axis=1) * step_N
    return np.where(slot_NK >= 0, np.minimum(found_NK, 1.0), 0.0)


def _nodes(weight_NM: np.ndarray, weight_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times (N, Q) evenly spaced in their logarithm, and that spacing (N,).

    They begin where hardly anything has arrived, and end where the lightest post of the slate has, or where so many have
    that it is past the slate: whichever of the two comes first.
    """
    positions = weight_NK.shape[1]
    total_N = weight_NM.sum(axis=1)
    # While the slate is not full, at least the lightest M - K + 1 posts have not arrived yet.
    lightest_NM = np.sort(np.where(weight_NM > 0, weight_NM, np.inf), axis=1)
    count_N = (weight_NM > 0).sum(axis=1)
    left_N = np.maximum(count_N - positions + 1, 1)
    sums_NM = np.cumsum(np.where(np.isfinite(lightest_NM), lightest_NM, 0.0), axis=1)
    slowest_N = np.take_along_axis(sums_NM, np.minimum(left_N, sums_NM.shape[1])[:, None] - 1, axis=1)[:, 0]
    some_N = count_N > 0
    low_N = np.log(LOST / np.where(some_N, total_N, 1.0))
    high_N = np.log((-np.log(LOST) + positions) / np.where(some_N, np.maximum(slowest_N, 1e-280), 1.0))
    nodes = int(np.ceil((high_N - low_N).max() / STEP)) + 1
    step_N = (high_N - low_N) / (nodes - 1)
    return np.exp(low_N[:, None] + step_N[:, None] * np.arange(nodes)), step_N


def _arrived(weight_N: np.ndarray, time_NQ: np.ndarray) -> np.ndarray:
    """Probability (N, Q) that a post of this weight has arrived by each time."""
    return -np.expm1(-weight_N[:, None] * time_NQ)


def _with(above_CNQ: np.ndarray, arrived_NQ: np.ndarray) -> np.ndarray:
    """The counts once one more post is among those that may arrive; counts past the last position are let go."""
    more_CNQ = above_CNQ * (1.0 - arrived_NQ)
    more_CNQ[1:] += above_CNQ[:-1] * arrived_NQ
    return more_CNQ


def _leave_one_out(
    above_CNQ: np.ndarray, arrived_KNQ: list[np.ndarray], low: int, high: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (k, counts over all posts but the k-th of the slate): halving, so each takes log K products and no division."""
    if high - low == 1:
        yield low, above_CNQ
        return
    middle = (low + high) // 2
    for (first, last), others in (((low, middle), range(middle, high)), ((middle, high), range(low, middle))):
        counts_CNQ = above_CNQ
        for k in others:
            counts_CNQ = _with(counts_CNQ, arrived_KNQ[k])
        yield from _leave_one_out(counts_CNQ, arrived_KNQ, first, last)
