"""How people behave: the probability of every action on every post of a slate, from hidden but fixed quantities.

docs/environment.md states the formulas. Shapes: N requests, K slate positions, U users, P posts, E edges, T topics.
"""

from dataclasses import dataclass, fields

import numpy as np

from contracts.clock import DAY, HOUR
from contracts.tables import POST_KINDS
from contracts.tasks import TASK_NAMES

EXAMINATION_POWER = 0.4
IN_WINDOW = 0.995
"""Share of actions that come inside the attribution window; the others come after it and do not count."""

# Per post kind, in the order of POST_KINDS: text, photo, video, share, quote, link.
EVENING_BY_KIND = np.array([-0.9, 0.6, 1.1, 0.1, -0.4, -1.1])
"""How much an evening draws people to the kind (and a morning away from it)."""
TIE_BY_KIND = np.array([0.65, 0.95, 0.3, 0.3, 0.5, 0.05])
"""How much a like of the kind is about the person rather than the topic."""
TALK_BY_KIND = np.array([1.0, 0.55, 0.25, 0.2, 1.3, 0.2])
"""How much the kind invites comments."""
PASS_ON_BY_KIND = np.array([[0.4, 0.5, 1.7, 0.8, 0.5, 2.0], [0.9, 1.3, 0.7, 1.3, 1.2, 0.5]])
"""How much the kind invites shares: from strangers (row 0), from friends (row 1)."""
LIFE_HOURS_BY_KIND = np.array([8.0, 30.0, 90.0, 36.0, 10.0, 120.0])
"""Half-life of interest in the kind."""


@dataclass(frozen=True)
class Latents:
    """What behaviour depends on besides time: all of it fixed for the whole log.

    `style_UA`: a person's readiness per task. `tie_E` by sorted `tie_key_E` = user * U + author. `origin_author_P`:
    author at the root of the origin chain. Quality, bait, talk, taste and tie lie between 0 and 1.
    """

    user_ids_U: np.ndarray
    taste_UT: np.ndarray
    style_UA: np.ndarray
    community_U: np.ndarray
    post_ids_P: np.ndarray
    author_P: np.ndarray
    origin_author_P: np.ndarray
    created_at_P: np.ndarray
    kind_P: np.ndarray
    topic_P: np.ndarray
    public_P: np.ndarray
    quality_P: np.ndarray
    bait_P: np.ndarray
    talk_T: np.ndarray
    tie_key_E: np.ndarray
    tie_E: np.ndarray

    def ties(self, user_N: np.ndarray, author_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tie strength of pairs, and whether an edge ever joins them; without one 0.03, in one community 0.08."""
        weak_N = np.where(self.community_U[user_N] == self.community_U[author_N], 0.08, 0.03)
        if not len(self.tie_key_E):
            return weak_N, np.zeros(weak_N.shape, bool)
        key_N = user_N * len(self.user_ids_U) + author_N
        at_N = np.minimum(np.searchsorted(self.tie_key_E, key_N), len(self.tie_key_E) - 1)
        joined_N = self.tie_key_E[at_N] == key_N
        return np.where(joined_N, self.tie_E[at_N], weak_N), joined_N


LATENT_NAMES = tuple(field.name for field in fields(Latents))


def examination(positions: int) -> np.ndarray:
    """Probability (K,) that a person looks at each position: 1 / (1 + k) ** EXAMINATION_POWER."""
    return (1.0 + np.arange(positions)) ** -EXAMINATION_POWER


def _earlier_equal(values_NK: np.ndarray, filled_NK: np.ndarray) -> np.ndarray:
    """How many earlier filled positions (N, K) hold the same value."""
    same_NKK = (values_NK[:, :, None] == values_NK[:, None, :]) & filled_NK[:, None, :]
    return np.tril(same_NKK, -1).sum(axis=2)


@dataclass(frozen=True)
class Moods:
    """What the formulas read for each slot (N, K)."""

    taste: np.ndarray
    tie: np.ndarray
    joined: np.ndarray
    quality: np.ndarray
    bait: np.ndarray
    talk: np.ndarray
    public: np.ndarray
    kind: np.ndarray
    age_hours: np.ndarray
    evening: np.ndarray
    weekend: np.ndarray
    style: np.ndarray


def read_moods(latents: Latents, user_N: np.ndarray, post_NK: np.ndarray, requested_at_N: np.ndarray) -> Moods:
    """The quantities of every slot, by indices; slots of -1 hold those of post 0 and are masked by the caller."""
    post_NK = np.maximum(post_NK, 0)
    topic_NK = latents.topic_P[post_NK]
    user_NK = np.broadcast_to(user_N[:, None], post_NK.shape)
    hour_N = (requested_at_N % DAY) / HOUR
    weekday_N = (requested_at_N // DAY + 3) % 7
    tie_NK, joined_NK = latents.ties(user_NK, latents.author_P[post_NK])
    return Moods(
        taste=latents.taste_UT[user_NK, topic_NK], tie=tie_NK, joined=joined_NK,
        quality=latents.quality_P[post_NK], bait=latents.bait_P[post_NK], talk=latents.talk_T[topic_NK],
        public=latents.public_P[post_NK], kind=latents.kind_P[post_NK],
        age_hours=np.maximum(requested_at_N[:, None] - latents.created_at_P[post_NK], 0) / HOUR,
        evening=np.cos(2 * np.pi * (hour_N - 20.0) / 24.0)[:, None], weekend=(weekday_N >= 5)[:, None],
        style=latents.style_UA[user_NK],
    )  # fmt: skip


def examined_probabilities(moods: Moods) -> np.ndarray:
    """Probability (N, K, A) of each task in the order of TASK_NAMES once the post is examined, before slate fatigue."""
    m = moods
    fresh, fresh_hours = 0.5 ** (m.age_hours / LIFE_HOURS_BY_KIND[m.kind]), 0.5 ** (m.age_hours / 10.0)
    close = m.tie**1.2
    by_kind = m.evening * EVENING_BY_KIND[m.kind]
    by_person = m.evening * np.where(m.joined, -1.0, 1.0)
    good = m.quality**1.5

    curiosity = close * (0.4 + 0.6 * m.quality) + (1 - close) * m.taste**1.3 * (0.2 + 1.2 * good)
    click = 0.6 * np.exp(0.9 * by_kind) * (0.4 + 0.6 * fresh) * curiosity + 0.3 * m.bait * (1 - close)

    person = TIE_BY_KIND[m.kind]
    warmth = person * close * (0.6 + 0.4 * m.quality) + (1 - person) * m.taste**1.4 * good
    like = 1.15 * np.exp(0.6 * by_person + 0.5 * by_kind) * (0.25 + 0.75 * fresh) * warmth * (1 - 0.8 * m.bait)

    chat = close * (0.1 + 0.9 * fresh_hours) * (0.4 + 0.6 * m.talk)
    debate = 0.8 * (1 - close) * m.talk * m.taste**2 * m.quality
    comment = 0.55 * TALK_BY_KIND[m.kind] * (chat * np.exp(-0.9 * m.evening) + debate * np.exp(1.2 * m.evening))

    outing = np.where(m.weekend, 1.0, -1.0) * EVENING_BY_KIND[m.kind]
    passing = np.where(m.public, 0.55, 0.03) * PASS_ON_BY_KIND[m.joined.astype(np.int64), m.kind]
    appeal = m.taste**1.5 * m.quality**2 * (0.35 + 0.65 * fresh)
    share = passing * appeal * np.exp(0.9 * outing + 0.5 * by_kind - 0.4 * by_person) * (1 - 0.8 * m.bait)

    cold = (1 - m.taste) ** 3 * (1 - close) ** 5
    regret = m.bait * (1 - close) ** 2 * (0.2 + 1.2 * m.taste) * (1.2 - m.quality) * np.exp(-0.9 * m.evening)
    hide = 0.04 * np.exp(-1.2 * by_kind) * cold * (1.35 - m.quality) * (1.6 - 1.4 * fresh) + 0.11 * regret
    return np.stack([click, like, comment, share, hide], axis=-1) * m.style


def slate_probabilities(
    latents: Latents, user_N: np.ndarray, post_NK: np.ndarray, requested_at_N: np.ndarray
) -> np.ndarray:
    """Probability (N, K, A) that the post at a position is examined and acted on, whenever the action comes.

    By indices; empty slots (-1) get 0. The same author (at the origin or here) or topic earlier in the slate tires.
    """
    filled_NK = post_NK >= 0
    moods = read_moods(latents, user_N, post_NK, requested_at_N)
    safe_NK = np.maximum(post_NK, 0)
    authors_NK = _earlier_equal(latents.origin_author_P[safe_NK], filled_NK)
    topics_NK = _earlier_equal(latents.topic_P[safe_NK], filled_NK)
    engaged_NK = 0.6**authors_NK * 0.85**topics_NK
    tired_NK = (1.0 + 0.9 * authors_NK) * (1.0 + 0.25 * topics_NK)
    factor_NKA = np.stack([engaged_NK] * (len(TASK_NAMES) - 1) + [tired_NK], axis=-1)
    probabilities_NKA = np.clip(examined_probabilities(moods) * factor_NKA, 0.0, 0.9)
    return probabilities_NKA * examination(post_NK.shape[1])[:, None] * filled_NK[:, :, None]


assert TASK_NAMES == ("click", "like", "comment", "share", "hide")
assert len(POST_KINDS) == len(EVENING_BY_KIND)
