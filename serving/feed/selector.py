"""The reranker: which posts take which place, so that neighbours differ and some places are kept for exploration.

Shapes: N candidates, K places.
"""

import math

import numpy as np

from serving.feed.candidates import Candidates, Run, feature
from serving.feed.scorers import best_first
from serving.settings import FeedSettings


class TopN:
    """The best scores, nothing else."""

    name = "top"
    reads = ("score", "created_at", "post_id")

    def select(self, run: Run, candidates: Candidates, size: int) -> tuple[np.ndarray, np.ndarray]:
        order = best_first(candidates, candidates["score"])[:size]
        return order, np.zeros(len(order), bool)


class DiverseSelector:
    """Place by place the best score times what is left of it beside the posts already placed.

    * No post of an author within `author_gap` places of another of theirs; authors of the originals count as well, so
      a post that many pass on does not fill the slate. Where nobody else is left the rule yields.
    * Scores shrink by `author_decay` per earlier post of the author, `topic_decay` per post of the topic in the last
      places, and by `content_decay` ** (largest cosine of embeddings there).
    * Of the first k places at least `friend_share` * k, rounded up, go to friends' posts while there are any: it is a
      friend feed, and strangers' popular posts would outbid friends' everyday ones.
    * One post per group (one subject; one original and its shares).
    * Places `explore_first`, then every `explore_every`: the best of old friends', new friends' and new posts. Places
      are given out here, after all filters, so an exploration slot is the place that the person sees.

    Scores may be negative: they are moved and scaled to [0, 1] over the candidates first.
    """

    name = "rerank"
    reads = (
        "score", "created_at", "post_id", "author_id", "root_author_id", "group_id", "topic", "document", "inputs_NF",
    )  # fmt: skip

    def __init__(self, settings: FeedSettings):
        self.settings = settings

    def select(self, run: Run, candidates: Candidates, size: int) -> tuple[np.ndarray, np.ndarray]:
        # The worst candidates cannot be placed; leaving them out keeps the loop short.
        order = best_first(candidates, candidates["score"])
        deep = max(6 * size, 60)
        of_friend_N = feature(candidates["inputs_NF"], "is_friend")[order] > 0
        head = order[(np.arange(len(order)) < deep) | (of_friend_N & (np.cumsum(of_friend_N) <= 2 * size))]
        slate = _Slate(candidates.take(head), self.settings)
        while len(slate.placed) < size and slate.place_next():
            pass
        return head[slate.placed], np.array(slate.explored, bool)


class _Slate:
    """The slate while it is filled; `candidates` come best first, so the first of equals wins."""

    def __init__(self, candidates: Candidates, settings: FeedSettings):
        self.settings = settings
        self.placed: list[int] = []
        self.explored: list[bool] = []
        score_N = candidates["score"]
        spread = float(score_N.max() - score_N.min()) if len(score_N) else 0.0
        self.base_N = (score_N - score_N.min()) / spread if spread > 0 else np.ones(len(score_N))
        self.author_N, self.root_N = candidates["author_id"], candidates["root_author_id"]
        self.group_N, self.topic_N = candidates["group_id"], candidates["topic"]
        self.open_N = np.ones(len(score_N), bool)
        self.explorable_N = explorable(candidates["inputs_NF"], settings) if settings.explore_every else self.open_N
        self.friend_N = feature(candidates["inputs_NF"], "is_friend") > 0
        self.cosine_NN = _cosines([one.embedding for one in candidates["document"]])

    def place_next(self) -> bool:
        """Fills the next place; False when no candidate is left."""
        if not self.open_N.any():
            return False
        allowed_N = self.open_N & ~self._too_near()
        if not allowed_N.any():
            allowed_N = self.open_N
        exploring = self._is_exploration_place() and bool((allowed_N & self.explorable_N).any())
        if exploring:
            allowed_N = allowed_N & self.explorable_N
        elif self._owes_friends() and (allowed_N & self.friend_N).any():
            allowed_N = allowed_N & self.friend_N
        best = int(np.argmax(np.where(allowed_N, self._worth(), -np.inf)))
        self.placed.append(best)
        self.explored.append(exploring)
        self.open_N = self.open_N & (self.group_N != self.group_N[best])
        return True

    def _is_exploration_place(self) -> bool:
        beyond = len(self.placed) - self.settings.explore_first
        return self.settings.explore_every > 0 and beyond >= 0 and beyond % self.settings.explore_every == 0

    def _owes_friends(self) -> bool:
        placed = int(self.friend_N[self.placed].sum())
        return placed < math.ceil(self.settings.friend_share * (len(self.placed) + 1) - 1e-9)

    def _shares_author(self, row: int) -> np.ndarray:
        """Who has the author or the original's author of `row` as one of theirs (N,)."""
        near_N = np.zeros(len(self.base_N), bool)
        for author in {int(self.author_N[row]), int(self.root_N[row])}:
            near_N |= (self.author_N == author) | (self.root_N == author)
        return near_N

    def _too_near(self) -> np.ndarray:
        near_N = np.zeros(len(self.base_N), bool)
        for row in self.placed[-self.settings.author_gap :] if self.settings.author_gap else []:
            near_N |= self._shares_author(row)
        return near_N

    def _worth(self) -> np.ndarray:
        settings, worth_N = self.settings, self.base_N.copy()
        for row in self.placed:
            worth_N[self._shares_author(row)] *= settings.author_decay
        last = self.placed[-settings.similar_window :]
        for row in last:
            worth_N[self.topic_N == self.topic_N[row]] *= settings.topic_decay
        if self.cosine_NN is not None and last:
            worth_N *= settings.content_decay ** np.maximum(0.0, self.cosine_NN[:, last].max(axis=1))
        return worth_N


def explorable(inputs_NF: np.ndarray, settings: FeedSettings) -> np.ndarray:
    """Who may fill an exploration slot (N,): posts of friends not met for long, of new friends, and posts few have seen."""
    friend_N = feature(inputs_NF, "is_friend") > 0
    old_N = friend_N & (feature(inputs_NF, "tie_days_since_contact") >= settings.old_friend_days)
    new_N = friend_N & (feature(inputs_NF, "friendship_days") <= settings.new_friend_days)
    few_N = feature(inputs_NF, "post_views_2d") < settings.new_post_views
    return old_N | new_N | (few_N & (feature(inputs_NF, "post_age_hours") <= settings.new_post_hours))


def _cosines(embeddings: list[bytes]) -> np.ndarray | None:
    """Cosines (N, N), 0 beside a post without an embedding; None where there are none, or of several widths."""
    sizes = {len(one) for one in embeddings} - {0}
    if len(sizes) != 1:
        return None
    absent = bytes(sizes.pop())
    content_NE = np.frombuffer(b"".join(one or absent for one in embeddings), "<f4").reshape(len(embeddings), -1)
    content_NE = content_NE / np.maximum(np.linalg.norm(content_NE, axis=1, keepdims=True), 1e-12)
    return content_NE @ content_NE.T
