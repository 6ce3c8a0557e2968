"""Fast answers over sorted arrays: which edge joins two people, who is hidden from whom, an author's recent posts.

Shapes: N queries, R expanded rows, D origin chain depth.
"""

import numpy as np

from simulator.environment.people import Blocks, Edges


def expand(low_N: np.ndarray, high_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For half-open ranges (N,): the query (R,) and the index (R,) of every element of every range."""
    counts_N = np.maximum(high_N - low_N, 0)
    query_R = np.repeat(np.arange(len(low_N)), counts_N)
    starts_N = np.cumsum(counts_N) - counts_N
    return query_R, np.arange(len(query_R)) - starts_N[query_R] + low_N[query_R]


def rank_within(group_N: np.ndarray) -> np.ndarray:
    """0, 1, 2 … inside each run of equal values of a sorted array (N,)."""
    if not len(group_N):
        return np.zeros(0, np.int64)
    first_N = np.concatenate([[True], group_N[1:] != group_N[:-1]])
    return np.arange(len(group_N)) - np.maximum.accumulate(np.where(first_N, np.arange(len(group_N)), 0))


class Graph:
    """Edges and blocks as of any moment."""

    def __init__(self, users: int, edges: Edges, blocks: Blocks):
        self.users = users
        self.edges = edges
        self._edge_key_E = edges.user_E * users + edges.friend_E
        self._first_U = np.searchsorted(edges.user_E, np.arange(users + 1))
        kind_B, user_B, target_B = blocks.kind_B, blocks.user_B, blocks.target_B
        viewer = np.concatenate(
            [user_B[kind_B == 0], target_B[kind_B == 0], user_B[kind_B == 1], target_B[kind_B == 2]]
        )
        author = np.concatenate(
            [target_B[kind_B == 0], user_B[kind_B == 0], target_B[kind_B == 1], user_B[kind_B == 2]]
        )
        of = np.concatenate(
            [
                np.flatnonzero(kind_B == 0),
                np.flatnonzero(kind_B == 0),
                np.flatnonzero(kind_B == 1),
                np.flatnonzero(kind_B == 2),
            ]
        )
        order = np.argsort(viewer * users + author)
        self._hidden_key = (viewer * users + author)[order]
        self._hidden_since = blocks.since_B[of][order]
        self._hidden_until = blocks.ended_at_B[of][order]

    def edge_range(self, user_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Half-open ranges (N,) of edges that leave each user."""
        return self._first_U[user_N], self._first_U[user_N + 1]

    def edge_of(self, user_N: np.ndarray, other_N: np.ndarray) -> np.ndarray:
        """The edge (N,) user -> other, -1 where there never is one."""
        key_N = user_N * self.users + other_N
        if not len(self._edge_key_E):
            return np.full(len(key_N), -1)
        at_N = np.minimum(np.searchsorted(self._edge_key_E, key_N), len(self._edge_key_E) - 1)
        return np.where(self._edge_key_E[at_N] == key_N, at_N, -1)

    def active(self, edge_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
        """Whether an edge (N,) is known and not ended at a moment (N,)."""
        return (self.edges.known_at_E[edge_N] < at_N) & (self.edges.ended_at_E[edge_N] > at_N)

    def friends(self, user_N: np.ndarray, other_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
        """Whether the two are friends in both directions (N,): a one-way follow is not enough for friends-only posts."""
        if not len(self._edge_key_E):
            return np.zeros(len(user_N), bool)
        edge_N = self.edge_of(user_N, other_N)
        return (edge_N >= 0) & self.edges.mutual_E[edge_N] & self.active(edge_N, at_N)

    def hidden(self, viewer_N: np.ndarray, author_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
        """Whether a block of any kind keeps the author's posts from the viewer (N,)."""
        if not len(self._hidden_key):
            return np.zeros(len(viewer_N), bool)
        key_N = viewer_N * self.users + author_N
        found_N = np.minimum(np.searchsorted(self._hidden_key, key_N), len(self._hidden_key) - 1)
        during_N = (self._hidden_since[found_N] <= at_N) & (self._hidden_until[found_N] > at_N)
        return (self._hidden_key[found_N] == key_N) & during_N


class Shelf:
    """Each author's posts in time order. Posts are indexed in the order of their creation."""

    def __init__(self, author_P: np.ndarray, created_at_P: np.ndarray):
        self.post_P = np.lexsort((np.arange(len(author_P)), author_P))
        self._base = int(created_at_P.min()) if len(created_at_P) else 0
        self._span = (int(created_at_P.max()) - self._base + 2) if len(created_at_P) else 2
        self._key_P = (author_P * self._span + (created_at_P - self._base))[self.post_P]

    def _place(self, author_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._key_P, author_N * self._span + np.clip(at_N - self._base, 0, self._span - 1))

    def between(self, author_N: np.ndarray, after_N: np.ndarray, before_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Half-open ranges (N,) of `post_P` with after <= created_at < before."""
        return self._place(author_N, after_N), self._place(author_N, before_N)

    def pick(
        self, rng: np.random.Generator, author_N: np.ndarray, after_N: np.ndarray, before_N: np.ndarray
    ) -> np.ndarray:
        """One post (N,) of each author at random from the span, -1 where there is none."""
        low_N, high_N = self.between(author_N, after_N, before_N)
        at_N = low_N + np.floor(rng.random(len(low_N)) * np.maximum(high_N - low_N, 1)).astype(np.int64)
        return np.where(high_N > low_N, self.post_P[np.minimum(at_N, len(self.post_P) - 1)], -1)
