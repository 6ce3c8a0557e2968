"""Posts as columns, and ranked posts: what every recall path takes and gives.

Shapes: N posts, K ranked posts.
"""

from dataclasses import dataclass

import numpy as np

NO_ID = -1
"""Stands for an absent subject or origin in int64 columns; ids are never negative."""

_PARTITION = 6
"""How many times the wanted rows are sorted at first; all of them only where doubles leave too few."""


def channel_ids(author_id_N: np.ndarray, subject_id_N: np.ndarray) -> np.ndarray:
    """The channel (N,) int64 of posts: what a post is about when it says so, else who wrote it.

    `subject_id_N` holds NO_ID where a post has no subject. A subject's channel is `~subject_id` (negative), an author's
    is `author_id`, so the two never meet. A new post belongs to its channel at once; that is how it is found before
    anybody touched it.
    """
    subject_id_N = np.asarray(subject_id_N, np.int64)
    return np.where(subject_id_N == NO_ID, np.asarray(author_id_N, np.int64), ~subject_id_N)


def group_ids(post_id_N: np.ndarray, root_post_id_N: np.ndarray, subject_id_N: np.ndarray) -> np.ndarray:
    """The group (N,) int64 of posts that show a person the same thing: one subject, or one original and its shares.

    `root_post_id_N` is the first post of the chain that a share or quote goes back to, NO_ID for an original.
    """
    root_post_id_N, subject_id_N = np.asarray(root_post_id_N, np.int64), np.asarray(subject_id_N, np.int64)
    origin_N = np.where(root_post_id_N == NO_ID, np.asarray(post_id_N, np.int64), root_post_id_N)
    return np.where(subject_id_N == NO_ID, origin_N, ~subject_id_N)


@dataclass(frozen=True)
class PostColumns:
    """Posts that a viewer may see, one array (N,) int64 per field; `created_at_N` in UTC microseconds.

    Who makes the columns answers for visibility: a path ranks what it is given and adds nothing.
    """

    post_id_N: np.ndarray
    author_id_N: np.ndarray
    channel_id_N: np.ndarray
    group_id_N: np.ndarray
    created_at_N: np.ndarray

    def __len__(self) -> int:
        return len(self.post_id_N)

    def take(self, index_K: np.ndarray) -> "PostColumns":
        """The rows `index_K` (or those where a boolean mask is true), in that order."""
        return PostColumns(self.post_id_N[index_K], self.author_id_N[index_K], self.channel_id_N[index_K],
                           self.group_id_N[index_K], self.created_at_N[index_K])  # fmt: skip

    @classmethod
    def empty(cls) -> "PostColumns":
        """No posts."""
        return cls(*(np.zeros(0, np.int64) for _ in range(5)))

    @classmethod
    def concatenate(cls, parts: "list[PostColumns]") -> "PostColumns":
        """All rows of `parts`, in order."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


@dataclass(frozen=True)
class Ranked:
    """A path's answer: posts (K,) best first, and the path's own score (K,), comparable only inside the path."""

    posts: PostColumns
    score_K: np.ndarray

    def __len__(self) -> int:
        return len(self.score_K)

    @classmethod
    def empty(cls) -> "Ranked":
        """Nothing found."""
        return cls(PostColumns.empty(), np.zeros(0))


def best_first(posts: PostColumns, score_N: np.ndarray) -> np.ndarray:
    """Row order (N,) by the one tie rule of recall: higher score, then newer, then larger post id."""
    return np.lexsort((-posts.post_id_N, -posts.created_at_N, -np.asarray(score_N, np.float64)))


def top(posts: PostColumns, score_N: np.ndarray, n: int) -> Ranked:
    """The `n` best rows by `best_first`, one per group: a second post of the same thing takes no place."""
    score_N = np.asarray(score_N, np.float64)
    if len(score_N) > _PARTITION * n > 0:
        cut = -np.partition(-score_N, _PARTITION * n - 1)[_PARTITION * n - 1]
        upper_M = np.flatnonzero(score_N >= cut)
        found = _sorted_top(posts.take(upper_M), score_N[upper_M], n)
        if len(found) == n:
            return found
    return _sorted_top(posts, score_N, n)


def _sorted_top(posts: PostColumns, score_N: np.ndarray, n: int) -> Ranked:
    order_N = best_first(posts, score_N)
    order_K = order_N[first_of_each(posts.group_id_N[order_N], 1)][:n]
    return Ranked(posts.take(order_K), score_N[order_K])


def first_of_each(key_K: np.ndarray, limit: int) -> np.ndarray:
    """Mask (K,): true for the first `limit` rows of every key, in the given order."""
    order_K = np.argsort(key_K, kind="stable")
    sorted_K = key_K[order_K]
    starts = np.flatnonzero(np.r_[True, sorted_K[1:] != sorted_K[:-1]]) if len(key_K) else np.zeros(0, np.int64)
    nth_K = np.arange(len(key_K)) - np.repeat(starts, np.diff(np.r_[starts, len(key_K)]))
    kept_K = np.zeros(len(key_K), bool)
    kept_K[order_K] = nth_K < limit
    return kept_K
