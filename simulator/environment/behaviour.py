"""How people behave: the probability of every action on every post of a slate, from hidden but fixed quantities.

docs/environment.md states the formulas. Shapes: N requests, K slate positions, R examined places (one position of one
request each), U users, P posts, E edges, T topics, A tasks.
"""

from dataclasses import dataclass, fields

import numpy as np

from contracts.clock import DAY, HOUR
from contracts.tables import POST_KINDS
from contracts.tasks import TASK_NAMES
from simulator.environment.examination import Examination

HIDE = TASK_NAMES.index("hide")
REQUESTS_AT_ONCE = 4096
"""Requests whose probabilities are worked out together: enough for fast columns, few enough for the processor's cache."""
IN_WINDOW = 0.995
"""Share of actions that come inside the attribution window; the others come after it and do not count."""

FIRST_CONTACT = float(np.log(2.0))
"""Contact of every edge when the log begins: halfway between none and all there can be, as kept = 1 - exp(-contact)."""
DAYS_IN_KEY = 1_024

# Per post kind, in the order of POST_KINDS: text, photo, video, share, quote, link.
EVENING_BY_KIND = np.array([-0.9, 0.6, 1.1, 0.1, -0.4, -1.1])
"""How much an evening draws people to the kind (and a morning away from it)."""
TIE_BY_KIND = np.array([0.65, 0.95, 0.3, 0.3, 0.5, 0.05])
"""How much a like of the kind is about the person rather than the topic."""
TALK_BY_KIND = np.array([1.0, 0.55, 0.25, 0.2, 1.3, 0.2])
"""How much the kind invites comments."""
PASS_ON_BY_KIND = np.array([[0.4, 0.5, 1.7, 0.8, 0.5, 2.0], [0.9, 1.3, 0.7, 1.3, 1.2, 0.5]])
"""How much the kind invites shares: from strangers (row 0), from friends (row 1)."""


@dataclass(frozen=True)
class Latents:
    """What behaviour depends on besides time: fixed for the whole log, but for ties where they live.

    `style_UA`: a person's readiness per task. `tie_E` by sorted `tie_key_E` = user * U + author. `origin_author_P`:
    author at the root of the origin chain. Quality, bait, talk, taste and tie lie between 0 and 1. From
    `examination_power` on: the settings of those names. Where ties live (`tie_growth` above 0), `contact_H` is an edge's
    contact when a day begins, by sorted `contact_key_H` = edge * DAYS_IN_KEY + day, for days after such with contact.
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
    examination_power: np.ndarray
    life_hours_by_kind: np.ndarray
    task_levels_A: np.ndarray
    tie_slopes_A: np.ndarray
    cascade: np.ndarray
    persistence: np.ndarray
    stop_after_action: np.ndarray
    start_at: np.ndarray
    tie_growth: np.ndarray
    tie_half_life_days: np.ndarray
    contact_key_H: np.ndarray
    contact_H: np.ndarray

    @property
    def examination(self) -> Examination:
        """How these people look at slates."""
        return Examination(
            bool(self.cascade), float(self.examination_power), float(self.persistence), float(self.stop_after_action)
        )

    def ties(
        self, user_N: np.ndarray, author_N: np.ndarray, at_N: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tie strength of pairs at moments (UTC us; None: when the log begins), and whether an edge ever joins them.

        Without an edge it is 0.03, in one community 0.08.
        """
        weak_N = np.where(self.community_U[user_N] == self.community_U[author_N], 0.08, 0.03)
        if not len(self.tie_key_E):
            return weak_N, np.zeros(weak_N.shape, bool)
        key_N = user_N * len(self.user_ids_U) + author_N
        edge_N = np.minimum(np.searchsorted(self.tie_key_E, key_N), len(self.tie_key_E) - 1)
        joined_N = self.tie_key_E[edge_N] == key_N
        if at_N is None or not self.tie_growth:
            return np.where(joined_N, self.tie_E[edge_N], weak_N), joined_N
        day_N = np.broadcast_to((at_N - self.start_at) // DAY, edge_N.shape)
        tie_N = weak_N.copy()
        tie_N[joined_N] = self.tie_of_edges(edge_N[joined_N], day_N[joined_N])
        return tie_N, joined_N

    def tie_of_edges(self, edge_N: np.ndarray, day_N: np.ndarray) -> np.ndarray:
        """Tie strength (N,) of edges on days of the log (from 0): logit(tie) = logit(tie at first) + growth x (kept -
        kept at first), where kept = 1 - exp(-contact)."""
        first_N = self.tie_E[edge_N]
        if not self.tie_growth:
            return first_N
        gone_N = np.exp(-contact_of(self, edge_N, day_N))
        logit_N = np.log(first_N / (1.0 - first_N)) + self.tie_growth * (np.exp(-FIRST_CONTACT) - gone_N)
        return 1.0 / (1.0 + np.exp(-logit_N))


LATENT_NAMES = tuple(field.name for field in fields(Latents))


def contact_of(latents: Latents, edge_N: np.ndarray, day_N: np.ndarray) -> np.ndarray:
    """Contact (N,) of edges when days begin: the last record's, or the first contact, halved every half-life since."""
    kept_a_day = 0.5 ** (1.0 / latents.tie_half_life_days)
    contact_N, since_N = np.full(len(edge_N), FIRST_CONTACT), np.zeros(len(edge_N), np.int64)
    if len(latents.contact_key_H):
        at_N = np.searchsorted(latents.contact_key_H, edge_N * DAYS_IN_KEY + day_N, side="right") - 1
        key_N = latents.contact_key_H[np.maximum(at_N, 0)]
        found_N = (at_N >= 0) & (key_N // DAYS_IN_KEY == edge_N)
        contact_N = np.where(found_N, latents.contact_H[np.maximum(at_N, 0)], contact_N)
        since_N = np.where(found_N, key_N % DAYS_IN_KEY, 0)
    return contact_N * kept_a_day ** (day_N - since_N)


def contentment(
    latents: Latents, user_N: np.ndarray, post_NK: np.ndarray, requested_at_N: np.ndarray, viewed_NK: np.ndarray
) -> np.ndarray:
    """What looking did to each viewer, summed over the viewed posts of each request (N,): closeness and taste please,
    bait that comes from no friend is regretted, whether or not it was clicked."""
    summed_N = np.zeros(len(post_NK))
    for first in range(0, len(post_NK), REQUESTS_AT_ONCE):
        batch = slice(first, first + REQUESTS_AT_ONCE)
        request_R, position_R = np.nonzero(viewed_NK[batch])
        post_R = post_NK[batch][request_R, position_R]
        m = read_moods(latents, user_N[batch], requested_at_N[batch], request_R, post_R)
        close = m.tie**1.2
        felt_R = close * (0.5 + 0.5 * m.quality) + (1 - close) * (m.taste * m.quality - m.bait)
        summed_N[batch] = np.bincount(request_R, felt_R, len(summed_N[batch]))
    return summed_N


def _earlier_equal(values_NK: np.ndarray, filled_NK: np.ndarray) -> np.ndarray:
    """How many earlier filled positions (N, K) hold the same value."""
    same_NKK = (values_NK[:, :, None] == values_NK[:, None, :]) & filled_NK[:, None, :]
    return np.tril(same_NKK, -1).sum(axis=2)


@dataclass(frozen=True)
class Moods:
    """What the formulas read for each examined place (R,); `style` (R, A)."""

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


def read_moods(
    latents: Latents, user_N: np.ndarray, requested_at_N: np.ndarray, request_R: np.ndarray, post_R: np.ndarray
) -> Moods:
    """The quantities of places, by indices: of the request `request_R` (into N) and the post `post_R`."""
    hour_N = (requested_at_N % DAY) / HOUR
    evening_N = np.cos(2 * np.pi * (hour_N - 20.0) / 24.0)
    weekend_N = (requested_at_N // DAY + 3) % 7 >= 5
    user_R, topic_R = user_N[request_R], latents.topic_P[post_R]
    tie_R, joined_R = latents.ties(user_R, latents.author_P[post_R], requested_at_N[request_R])
    return Moods(
        taste=latents.taste_UT[user_R, topic_R], tie=tie_R, joined=joined_R,
        quality=latents.quality_P[post_R], bait=latents.bait_P[post_R], talk=latents.talk_T[topic_R],
        public=latents.public_P[post_R], kind=latents.kind_P[post_R],
        age_hours=np.maximum(requested_at_N[request_R] - latents.created_at_P[post_R], 0) / HOUR,
        evening=evening_N[request_R], weekend=weekend_N[request_R], style=latents.style_UA[user_R],
    )  # fmt: skip


def examined_probabilities(moods: Moods, latents: Latents) -> np.ndarray:
    """Probability (R, A) of each task in the order of TASK_NAMES once the post is examined, before slate fatigue."""
    m = moods
    fresh, fresh_hours = 0.5 ** (m.age_hours / latents.life_hours_by_kind[m.kind]), 0.5 ** (m.age_hours / 10.0)
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
    probabilities_RA = np.stack([click, like, comment, share, hide], axis=-1) * m.style * latents.task_levels_A
    if latents.tie_slopes_A.any():
        probabilities_RA *= np.exp(latents.tie_slopes_A * close[..., None])
    return probabilities_RA


def place_probabilities(
    latents: Latents,
    user_N: np.ndarray,
    post_NK: np.ndarray,
    requested_at_N: np.ndarray,
    request_R: np.ndarray,
    position_R: np.ndarray,
) -> np.ndarray:
    """Probability (R, A) that the post of each filled place is acted on once it is examined, whenever the action comes.

    By indices; -1 in `post_NK` is an empty position. The same author (at the origin or here) or topic earlier in the
    slate tires.
    """
    filled_NK = post_NK >= 0
    safe_NK = np.maximum(post_NK, 0)
    moods = read_moods(latents, user_N, requested_at_N, request_R, safe_NK[request_R, position_R])
    authors_R = _earlier_equal(latents.origin_author_P[safe_NK], filled_NK)[request_R, position_R]
    topics_R = _earlier_equal(latents.topic_P[safe_NK], filled_NK)[request_R, position_R]
    chances_RA = examined_probabilities(moods, latents)
    chances_RA[:, :HIDE] *= (0.6**authors_R * 0.85**topics_R)[:, None]
    chances_RA[:, HIDE] *= (1.0 + 0.9 * authors_R) * (1.0 + 0.25 * topics_R)
    return np.clip(chances_RA, 0.0, 0.9)


def slate_probabilities(
    latents: Latents, user_N: np.ndarray, post_NK: np.ndarray, requested_at_N: np.ndarray
) -> np.ndarray:
    """Probability (N, K, A) that the post at each position is acted on once it is examined; 0 at empty positions (-1)."""
    chances_NKA = np.zeros((*post_NK.shape, len(TASK_NAMES)))
    for first in range(0, len(post_NK), REQUESTS_AT_ONCE):
        batch = slice(first, first + REQUESTS_AT_ONCE)
        request_R, position_R = np.nonzero(post_NK[batch] >= 0)
        chances_NKA[first + request_R, position_R] = place_probabilities(
            latents, user_N[batch], post_NK[batch], requested_at_N[batch], request_R, position_R
        )
    return chances_NKA


def respond(
    rng: np.random.Generator,
    latents: Latents,
    user_N: np.ndarray,
    post_NK: np.ndarray,
    requested_at_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """What happens to slates: which positions are looked at (N, K), and what is done there (N, K, A)."""
    examination = latents.examination
    looked_NK = examination.first_looks(rng, post_NK >= 0)
    acted_NKA = np.zeros((*post_NK.shape, len(TASK_NAMES)), bool)
    for first in range(0, len(post_NK), REQUESTS_AT_ONCE):
        batch = slice(first, first + REQUESTS_AT_ONCE)
        request_R, position_R = np.nonzero(looked_NK[batch])
        chances_RA = place_probabilities(
            latents, user_N[batch], post_NK[batch], requested_at_N[batch], request_R, position_R
        )
        drawn_NKA = rng.random(acted_NKA[batch].shape)
        acted_NKA[first + request_R, position_R] = drawn_NKA[request_R, position_R] < chances_RA
    return examination.after_actions(rng, looked_NK, acted_NKA)


assert TASK_NAMES == ("click", "like", "comment", "share", "hide")
assert len(POST_KINDS) == len(EVENING_BY_KIND)
