"""What a policy is: for requests with pools it chooses slates, and says how likely it was to put each post where it did.

Shapes: N requests, M pool slots (-1: empty), K slate positions, A tasks.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from contracts.errors import BadInput
from simulator.environment.plackett_luce import draw_order, position_propensities


@dataclass(frozen=True)
class Requests:
    """Feeds to fill, of distinct viewers, as ids: `pool_NM` post ids in ascending order, -1 past the pool's end (authors
    and moments there are -1 too). Moments are UTC microseconds."""

    user_id_N: np.ndarray
    requested_at_N: np.ndarray
    pool_NM: np.ndarray
    author_id_NM: np.ndarray
    created_at_NM: np.ndarray
    slate_size: int


@dataclass(frozen=True)
class Chosen:
    """`slot_NK`: the pool slot at each position, each at most once, -1 past the slate's end. `propensity_NK`: the exact
    marginal probability that the policy puts that post there; 0 past the slate's end."""

    slot_NK: np.ndarray
    propensity_NK: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """A day's feeds as a policy may learn from them: post ids by position (-1: empty), who looked where and did what."""

    user_id_N: np.ndarray
    requested_at_N: np.ndarray
    post_id_NK: np.ndarray
    viewed_NK: np.ndarray
    acted_NKA: np.ndarray


class Policy(Protocol):
    """Anything that fills feeds."""

    @property
    def name(self) -> str:
        """What the log calls it."""

    def choose(self, rng: np.random.Generator, requests: Requests) -> Chosen:
        """Slates for requests; draws by `rng` alone, so that a seed gives the same log."""

    def observe(self, outcome: Outcome) -> None:
        """Learns from a day that is over; within a day nothing is known of it, as later requests may be drawn first."""


class Scorer(Protocol):
    """Scores pools; the larger the better."""

    @property
    def name(self) -> str:
        """What the log calls it, with a word for the exploration before it."""

    def scores(self, requests: Requests) -> np.ndarray:
        """Scores (N, M); those of empty slots do not matter."""

    def observe(self, outcome: Outcome) -> None:
        """Learns from a day that is over."""


@dataclass(frozen=True)
class EpsilonGreedy:
    """The best scores first; with probability `epsilon` the whole slate is a uniformly random ordering instead."""

    scorer: Scorer
    epsilon: float

    @property
    def name(self) -> str:
        """In the log; without exploration the scorer's own."""
        return f"epsilon-{self.scorer.name}" if self.epsilon else self.scorer.name

    def choose(self, rng: np.random.Generator, requests: Requests) -> Chosen:
        """See `mixture_propensities`."""
        order_NM = score_order(self.scorer.scores(requests), requests.pool_NM)
        sizes_N = (requests.pool_NM >= 0).sum(axis=1)
        slot_NK, _ = draw_slates(rng, order_NM, sizes_N, requests.slate_size, self.epsilon)
        return Chosen(slot_NK, mixture_propensities(slot_NK, order_NM, sizes_N, self.epsilon))

    def observe(self, outcome: Outcome) -> None:
        """Passes it on."""
        self.scorer.observe(outcome)


@dataclass(frozen=True)
class PlackettLuce:
    """Posts drawn one after the other with probability proportional to exp(score / `temperature`) among those left."""

    scorer: Scorer
    temperature: float

    @property
    def name(self) -> str:
        """In the log."""
        return f"plackett-luce-{self.scorer.name}"

    def choose(self, rng: np.random.Generator, requests: Requests) -> Chosen:
        """See `simulator.environment.plackett_luce`."""
        filled_NM = requests.pool_NM >= 0
        logit_NM = np.where(filled_NM, self.scorer.scores(requests) / self.temperature, -np.inf)
        order_NM = draw_order(rng, logit_NM)[:, : requests.slate_size]
        slot_NK = np.where(np.arange(order_NM.shape[1]) < filled_NM.sum(axis=1)[:, None], order_NM, -1)
        return Chosen(slot_NK, position_propensities(logit_NM, slot_NK))

    def observe(self, outcome: Outcome) -> None:
        """Passes it on."""
        self.scorer.observe(outcome)


def check_chosen(name: str, requests: Requests, chosen: Chosen) -> None:
    """`BadInput` with a count and an example where a policy's slates do not come from the pools, once each and from the top
    without gaps, or its propensities are no probabilities above 0."""
    slot_NK, filled_NK = chosen.slot_NK, chosen.slot_NK >= 0
    n, m = requests.pool_NM.shape
    if len(slot_NK) != n or slot_NK.shape[1] > requests.slate_size or slot_NK.shape != chosen.propensity_NK.shape:
        raise BadInput(
            f"policy {name} answered {n} requests of {requests.slate_size} posts with slates {slot_NK.shape}"
        )
    inside_NK = slot_NK < m
    post_NK = np.take_along_axis(requests.pool_NM, np.where(filled_NK & inside_NK, slot_NK, 0), axis=1)
    sorted_NK = np.sort(slot_NK, axis=1)
    again_NK = np.zeros(slot_NK.shape, bool)
    again_NK[:, 1:] = (sorted_NK[:, 1:] == sorted_NK[:, :-1]) & (sorted_NK[:, 1:] >= 0)
    gap_NK = np.zeros(slot_NK.shape, bool)
    gap_NK[:, 1:] = filled_NK[:, 1:] & ~filled_NK[:, :-1]
    sure_NK = (chosen.propensity_NK > 0) & (chosen.propensity_NK <= 1.0 + 1e-9)
    for fault, bad_NK in (("a slot outside the pool", filled_NK & (~inside_NK | (post_NK < 0))), ("a post twice", again_NK),
                          ("a gap above a post", gap_NK), ("a propensity that is not in (0, 1]", filled_NK & ~sure_NK)):  # fmt: skip
        bad_N = bad_NK.any(axis=1)
        if bad_N.any():
            user = requests.user_id_N[bad_N.argmax()]
            raise BadInput(f"policy {name} has {fault} in {int(bad_N.sum())} of {n} slates, as in that of user {user}")


def score_order(score_NM: np.ndarray, post_ids_NM: np.ndarray) -> np.ndarray:
    """Pool slots (N, M), best score first; ties by post_id, larger first; empty slots (-1) last."""
    empty_NM = post_ids_NM < 0
    return np.lexsort((-post_ids_NM, -np.where(empty_NM, 0, score_NM), empty_NM), axis=1)


def draw_slates(
    rng: np.random.Generator, order_NM: np.ndarray, pool_sizes_N: np.ndarray, slate_size: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pool slots of the slate (N, K), -1 past the pool's end, and whether the slate was drawn at random (N,)."""
    n, m = order_NM.shape
    filled_NM = np.arange(m) < pool_sizes_N[:, None]
    keys_NM = np.where(filled_NM, rng.random((n, m)), 2.0)
    shuffled_NM = np.take_along_axis(order_NM, np.argsort(keys_NM, axis=1, kind="stable"), axis=1)
    random_N = np.asarray(rng.random(n) < epsilon)
    slots_NK = np.where(random_N[:, None], shuffled_NM, order_NM)[:, :slate_size]
    return np.where(np.arange(slots_NK.shape[1]) < pool_sizes_N[:, None], slots_NK, -1), random_N


def mixture_propensities(
    slots_NK: np.ndarray, order_NM: np.ndarray, pool_sizes_N: np.ndarray, epsilon: float
) -> np.ndarray:
    """Marginal probability (N, K) that the pool slot at position k is put there; 0 at empty positions (-1).

    With n posts in the pool: epsilon / n + (1 - epsilon) * [rank of the post by score == k].
    """
    k = slots_NK.shape[1]
    agrees_NK = slots_NK == order_NM[:, :k]
    propensities_NK = epsilon / np.maximum(pool_sizes_N, 1)[:, None] + (1.0 - epsilon) * agrees_NK
    return np.where(slots_NK >= 0, propensities_NK, 0.0)
