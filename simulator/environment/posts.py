"""Posts: who writes when, about what, for whom, how good it is, and what it passes on.

Shapes: P posts (indexed in the order of creation), T topics, D depth of an origin chain, C content dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.clock import DAY, HOUR, MINUTE, SECOND
from contracts.tables import POST_KINDS, VISIBILITIES
from simulator.environment.lookups import Graph, Shelf, expand
from simulator.environment.people import FOREVER, People
from simulator.environment.phrases import QUOTE_WORDS, TOPICS, texts_of
from simulator.environment.settings import EnvironmentSettings

CONTENT_DIMENSIONS = 16
DEEPEST_CHAIN = 4
SHARE, QUOTE = POST_KINDS.index("share"), POST_KINDS.index("quote")
PUBLIC, FRIENDS, LIST, PRIVATE = range(len(VISIBILITIES))


@dataclass(frozen=True)
class Posts:
    """All posts by index. `ancestors_PD`: origins from the nearest to the root, -1 past the root. `audience_L2`: post of
    visibility list and a user who may see it, one row each."""

    author_P: np.ndarray
    created_at_P: np.ndarray
    known_at_P: np.ndarray
    deleted_at_P: np.ndarray
    edited_at_P: np.ndarray
    kind_P: np.ndarray
    topic_P: np.ndarray
    visibility_P: np.ndarray
    quality_P: np.ndarray
    bait_P: np.ndarray
    ancestors_PD: np.ndarray
    audience_L2: np.ndarray
    embedding_PC: np.ndarray
    text_P: np.ndarray


def rhythm(rng: np.random.Generator, count: int, hour_weights: Sequence[float]) -> np.ndarray:
    """Moments of a day (count,) in microseconds, by the weights of its 24 UTC hours."""
    weights = np.asarray(hour_weights, np.float64)
    hour_N = rng.choice(24, count, p=weights / weights.sum())
    return hour_N * HOUR + rng.integers(0, HOUR, count)


def _origins(rng: np.random.Generator, people: People, graph: Graph, shelf: Shelf, author_P: np.ndarray,
             created_at_P: np.ndarray, topic_P: np.ndarray, kind_P: np.ndarray, visibility_P: np.ndarray,
             quality_P: np.ndarray) -> np.ndarray:  # fmt: skip
    """The post that each share or quote passes on (P,), -1 for other posts and where none was found.

    The best by taste and quality of a few recent posts of friends; mostly public ones.
    """
    origin_P = np.full(len(author_P), -1)
    sharing_S = np.flatnonzero((kind_P == SHARE) | (kind_P == QUOTE))
    tries = 6
    of_N = np.repeat(sharing_S, tries)
    low_N, high_N = graph.edge_range(author_P[of_N])
    has_N = high_N > low_N
    of_N, low_N, high_N = of_N[has_N], low_N[has_N], high_N[has_N]
    edge_N = low_N + np.floor(rng.random(len(of_N)) * (high_N - low_N)).astype(np.int64)
    at_N = created_at_P[of_N]
    friend_N = graph.edges.friend_E[edge_N]
    post_N = shelf.pick(rng, friend_N, at_N - 2 * DAY, at_N - MINUTE)
    seen_N = (visibility_P[post_N] == PUBLIC) | (
        (visibility_P[post_N] == FRIENDS) & graph.edges.mutual_E[edge_N] & (rng.random(len(of_N)) < 0.25)
    )
    fit_N = (post_N >= 0) & seen_N & graph.active(edge_N, at_N) & ~graph.hidden(author_P[of_N], friend_N, at_N)
    of_N, post_N = of_N[fit_N], post_N[fit_N]
    appeal_N = people.taste_UT[author_P[of_N], topic_P[post_N]] + quality_P[post_N]
    order_N = np.lexsort((post_N, appeal_N, of_N))
    origin_P[of_N[order_N]] = post_N[order_N]
    return origin_P


def _ancestors(origin_P: np.ndarray) -> np.ndarray:
    """Origin chains (P, DEEPEST_CHAIN); chains that would be deeper are cut at their newest link."""
    origin_P = origin_P.copy()
    while True:
        columns = [origin_P]
        for _ in range(DEEPEST_CHAIN):
            columns.append(np.where(columns[-1] >= 0, origin_P[columns[-1]], -1))
        deep_P = columns[-1] >= 0
        if not deep_P.any():
            return np.stack(columns[:-1], axis=1)
        origin_P[deep_P & ~deep_P[columns[1]]] = -1


def _texts(rng: np.random.Generator, kind_P: np.ndarray, topic_P: np.ndarray) -> np.ndarray:
    texts = [np.array(texts_of(topic), object) for topic in TOPICS]
    first_T = np.cumsum([0] + [len(group) for group in texts])
    size_P = np.diff(first_T)[topic_P]
    text_P = np.concatenate(texts)[first_T[topic_P] + np.floor(rng.random(len(topic_P)) * size_P).astype(np.int64)]
    words_P = np.array(QUOTE_WORDS, object)[rng.integers(0, len(QUOTE_WORDS), len(topic_P))]
    text_P = np.where(kind_P == QUOTE, words_P, text_P)
    text_P[kind_P == SHARE] = None
    return text_P


def _audiences(rng: np.random.Generator, graph: Graph, author_P: np.ndarray, created_at_P: np.ndarray,
               visibility_P: np.ndarray) -> np.ndarray:  # fmt: skip
    """Rows (L, 2) of a post of visibility list and one friend (user index) who may see it, by post."""
    post_S = np.flatnonzero(visibility_P == LIST)
    of_R, edge_R = expand(*graph.edge_range(author_P[post_S]))
    post_R = post_S[of_R]
    could_R = graph.edges.mutual_E[edge_R] & graph.active(edge_R, created_at_P[post_R])
    post_R, edge_R = post_R[could_R], edge_R[could_R]
    may_R = rng.random(len(post_R)) < 0.5
    return np.stack([post_R[may_R], graph.edges.friend_E[edge_R[may_R]]], axis=1)


def draw_posts(rng: np.random.Generator, settings: EnvironmentSettings, people: People, graph: Graph) -> Posts:
    """All posts of the log."""
    users, start, end = settings.users, settings.start_at, settings.end_at
    rate_U = rng.lognormal(0.0, settings.posting_sigma, users)
    rate_U *= settings.posts_per_day / rate_U.mean()
    counts_U = rng.poisson(np.minimum(rate_U, 12.0) * settings.days)
    author_P = np.repeat(np.arange(users), counts_U)
    created_at_P = (
        start + rng.integers(0, settings.days, len(author_P)) * DAY + rhythm(rng, len(author_P), settings.hour_weights)
    )
    late_P = rng.random(len(author_P)) < 0.03
    delay_P = np.where(
        late_P, rng.integers(MINUTE, HOUR, len(author_P)), rng.integers(SECOND, 8 * SECOND, len(author_P))
    )
    kept_P = (created_at_P > people.registered_at_U[author_P]) & (created_at_P + delay_P < end)
    order_P = np.flatnonzero(kept_P)[np.lexsort((author_P[kept_P], created_at_P[kept_P]))]
    author_P, created_at_P, delay_P = author_P[order_P], created_at_P[order_P], delay_P[order_P]
    count = len(author_P)

    liking_UT = people.taste_UT**1.3 + 0.02
    chance_UT = np.cumsum(liking_UT / liking_UT.sum(axis=1, keepdims=True), axis=1)
    drawn_P = rng.random(count)
    topic_P = np.zeros(count, np.int64)
    # Topic by topic: one column of all posts at a time instead of all columns at once.
    for topic in range(len(TOPICS) - 1):
        topic_P += drawn_P > chance_UT[author_P, topic]
    kind_P = rng.choice(len(POST_KINDS), count, p=settings.kind_shares)
    visibility_P = rng.choice(len(VISIBILITIES), count, p=settings.visibility_shares)
    skill_U = rng.normal(0.0, 0.6, users)
    quality_P = 1.0 / (1.0 + np.exp(-1.4 * (skill_U[author_P] + 0.9 * rng.standard_normal(count))))
    bait_T = np.array([topic.bait for topic in TOPICS])
    shelf = Shelf(author_P, created_at_P)
    origin_P = _origins(rng, people, graph, shelf, author_P, created_at_P, topic_P, kind_P, visibility_P, quality_P)
    ancestors_PD = _ancestors(origin_P)
    kind_P = np.where(((kind_P == SHARE) | (kind_P == QUOTE)) & (ancestors_PD[:, 0] < 0), 0, kind_P)
    root_P = root_of(ancestors_PD, np.arange(count))
    topic_P = topic_P[root_P]
    quality_P = np.where(kind_P == SHARE, quality_P[root_P], quality_P)
    bait_P = np.clip(bait_T[topic_P] + 0.08 * rng.standard_normal(count), 0.0, 1.0)[root_P]

    centre_TC = rng.standard_normal((len(TOPICS), CONTENT_DIMENSIONS))
    centre_TC /= np.linalg.norm(centre_TC, axis=1, keepdims=True)
    direction_C = rng.standard_normal(CONTENT_DIMENSIONS)
    direction_C /= np.linalg.norm(direction_C)
    noise_PC = 0.15 * rng.standard_normal((count, CONTENT_DIMENSIONS))
    embedding_PC = (centre_TC[topic_P] + 1.2 * (quality_P - 0.5)[:, None] * direction_C + noise_PC).astype(np.float32)

    gone_P = created_at_P + MINUTE + rng.exponential(DAY, count).astype(np.int64)
    deleted_P = np.where((rng.random(count) < 0.02) & (gone_P < end), gone_P, FOREVER)
    changed_P = created_at_P + delay_P + rng.exponential(2 * HOUR, count).astype(np.int64)
    edited_P = np.where((rng.random(count) < 0.02) & (changed_P < np.minimum(deleted_P, end)), changed_P, FOREVER)
    return Posts(
        author_P, created_at_P, created_at_P + delay_P, deleted_P, edited_P, kind_P, topic_P, visibility_P, quality_P,
        bait_P, ancestors_PD, _audiences(rng, graph, author_P, created_at_P, visibility_P), embedding_PC,
        _texts(rng, kind_P, topic_P),
    )  # fmt: skip


def root_of(ancestors_PD: np.ndarray, post_N: np.ndarray) -> np.ndarray:
    """The first post (N,) of each post's chain; the post itself where it passes nothing on."""
    root_N = post_N
    for depth in range(ancestors_PD.shape[1]):
        root_N = np.where(ancestors_PD[post_N, depth] >= 0, ancestors_PD[post_N, depth], root_N)
    return root_N


class Visibility:
    """Whether a viewer may see a post at a moment: every link of its origin chain must be visible."""

    def __init__(self, graph: Graph, posts: Posts):
        self.graph, self.posts = graph, posts
        self._listed = np.sort(posts.audience_L2[:, 0] * graph.users + posts.audience_L2[:, 1])

    def link(self, viewer_N: np.ndarray, post_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
        """Whether the post alone (N,) may be seen, whatever it passes on. Nobody but the author sees a private post."""
        posts = self.posts
        author_N, visibility_N = posts.author_P[post_N], posts.visibility_P[post_N]
        key_N = post_N * self.graph.users + viewer_N
        found_N = np.minimum(np.searchsorted(self._listed, key_N), max(len(self._listed) - 1, 0))
        listed_N = self._listed[found_N] == key_N if len(self._listed) else np.zeros(len(post_N), bool)
        friends_N = self.graph.friends(viewer_N, author_N, at_N)
        open_N = (
            (visibility_N == PUBLIC) | ((visibility_N == FRIENDS) & friends_N)
            | ((visibility_N == LIST) & listed_N & friends_N) | (viewer_N == author_N)
        )  # fmt: skip
        alive_N = (posts.deleted_at_P[post_N] > at_N) & (posts.known_at_P[post_N] < at_N)
        return open_N & alive_N & ~self.graph.hidden(viewer_N, author_N, at_N)

    def whole(self, viewer_N: np.ndarray, post_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
        """Whether the post and its whole origin chain (N,) may be seen."""
        seen_N = self.link(viewer_N, post_N, at_N)
        for depth in range(self.posts.ancestors_PD.shape[1]):
            origin_N = self.posts.ancestors_PD[post_N, depth]
            has_N = np.flatnonzero((origin_N >= 0) & seen_N)
            if not len(has_N):
                continue
            seen_N[has_N] &= self.link(viewer_N[has_N], origin_N[has_N], at_N[has_N])
        return seen_N
