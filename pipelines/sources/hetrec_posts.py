"""Taggings become posts: one per (user, artist, date), with a moment inside its day and a topic from its tags."""

from dataclasses import dataclass

import numpy as np

from contracts.clock import DAY, SECOND
from contracts.hashing import splitmix64
from pipelines.sources.foreign_files import Columns

HALF_DAY_US = DAY // 2


@dataclass(frozen=True)
class Posts:
    """Posts (P,) ordered by (created_at, user, artist); `post_id` is 1 + the position. Days count from 1970."""

    user_P: np.ndarray
    artist_P: np.ndarray
    day_P: np.ndarray
    created_at_P: np.ndarray
    topic_P: np.ndarray
    tags_P: list[np.ndarray]

    @property
    def post_id_P(self) -> np.ndarray:
        """1-based ids in the order of time."""
        return np.arange(1, len(self.day_P) + 1)


def moments_in_half_day(*columns_N: np.ndarray) -> np.ndarray:
    """Microseconds (N,) in [1 s, 12 h), a fixed hash of the integer columns (N,): stable, and blind to any outcome."""
    mixed_N = np.zeros(len(columns_N[0]), dtype=np.uint64)
    for column_N in columns_N:
        mixed_N = splitmix64(mixed_N ^ column_N.astype(np.uint64))
    return SECOND + (mixed_N % np.uint64(HALF_DAY_US - SECOND)).astype(np.int64)


def posts_of(taggings: Columns, tag_ids: np.ndarray) -> Posts:
    """Posts of the good taggings; `tag_ids` (T,) are all known tags."""
    user_N, artist_N, tag_N, day_N = (taggings.numbers[name] for name in ("userID", "artistID", "tagID", "day_number"))
    order = np.lexsort((tag_N, artist_N, user_N, day_N))
    user_N, artist_N, tag_N, day_N = (column[order] for column in (user_N, artist_N, tag_N, day_N))
    key = np.stack([day_N, user_N, artist_N], axis=1)
    first = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]).any(axis=1)])
    topic_P = _topics(tag_N, day_N, first, np.sort(tag_ids))
    user_P, artist_P, day_P = user_N[first], artist_N[first], day_N[first]
    created_at_P = day_P * DAY + HALF_DAY_US + moments_in_half_day(user_P, artist_P, day_P)
    tags_P = np.split(tag_N, first[1:])
    order = np.lexsort((artist_P, user_P, created_at_P))
    return Posts(
        user_P[order], artist_P[order], day_P[order], created_at_P[order], topic_P[order], [tags_P[i] for i in order]
    )


def _topics(tag_N: np.ndarray, day_N: np.ndarray, first: np.ndarray, tag_ids: np.ndarray) -> np.ndarray:
    """Per post, its tag with most uses on earlier days: uses of the same day or later would tell the future."""
    at_N = np.searchsorted(tag_ids, tag_N)
    uses_T = np.zeros(len(tag_ids), dtype=np.int64)
    earlier_N = np.zeros(len(tag_N), dtype=np.int64)
    day_starts = np.flatnonzero(np.r_[True, day_N[1:] != day_N[:-1]])
    for begin, end in zip(day_starts, np.r_[day_starts[1:], len(day_N)]):
        earlier_N[begin:end] = uses_T[at_N[begin:end]]
        np.add.at(uses_T, at_N[begin:end], 1)
    post_N = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(tag_N)]))
    order = np.lexsort((tag_N, -earlier_N, post_N))
    return tag_N[order][first]
