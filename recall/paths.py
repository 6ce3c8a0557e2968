"""The trained paths as of one moment: channel lists, item-item lists to compare with, and post and viewer vectors.

Shapes: M positives, N posts, U viewers, D width of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recall.collaborative import ChannelLists, train_channels
from recall.log import Positives, RecallLog
from recall.settings import RecallSettings

if TYPE_CHECKING:
    from recall.two_tower import TrainedTowers


@dataclass(frozen=True)
class TrainedPaths:
    """All that is learned, from rows known before `as_of` alone; vectors of all posts, also those made later."""

    as_of: int
    channels: ChannelLists
    item_item: ChannelLists | None
    towers: TrainedTowers
    vector_ND: np.ndarray
    user_id_U: np.ndarray
    viewer_UD: np.ndarray

    def viewer_vector(self, user_id: int) -> np.ndarray:
        """The viewer's vector (D,), the mean viewer's for one who registered later."""
        at = int(np.searchsorted(self.user_id_U, user_id))
        found = at < len(self.user_id_U) and self.user_id_U[at] == user_id
        return self.viewer_UD[at] if found else self.viewer_UD.mean(axis=0)


def train_paths(log: RecallLog, as_of: int, settings: RecallSettings, *, item_item: bool = False) -> TrainedPaths:
    """Trains what needs training on the positives known before `as_of`, and on nothing else.

    `item_item`: also the item-item lists that reports compare with.
    """
    from recall.two_tower import PostInputs, train_towers

    known = log.positives.before(as_of)
    columns = (known.user_id_M, log.posts.channel_id_N[known.post_M], known.weight_M, known.occurred_at_M, as_of)
    channels = train_channels(*columns, settings.collaborative, settings.seed)
    other = settings.collaborative.model_copy(update={"model": "item-item"})
    compared = train_channels(*columns, other, settings.seed) if item_item else None
    liked = _distinct(known, log.posts.group_id_N).take(slice(-settings.vector.max_positives, None))
    posts = PostInputs(log.posts.channel_id_N, log.topic_N, log.kind_N, log.content_NE)
    viewers = np.union1d(log.user_id_U[log.registered_known_at_U < as_of], liked.user_id_M)
    towers = train_towers(liked.user_id_M, liked.post_M, np.sqrt(liked.weight_M), log.posts.group_id_N[liked.post_M], posts,
                          viewers, settings.vector, settings.seed)  # fmt: skip
    return TrainedPaths(as_of, channels, compared, towers, towers.embed(posts), viewers, towers.viewer_UD)


def _distinct(known: Positives, group_id_N: np.ndarray) -> Positives:
    """The first positive of each (viewer, group), with the group's total weight, still ordered by known_at."""
    pair_M2 = np.stack([known.user_id_M, group_id_N[known.post_M]], axis=1)
    _, first, code_M = np.unique(pair_M2, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(code_M.ravel(), weights=known.weight_M, minlength=len(first))
    order = np.argsort(first, kind="stable")
    kept = known.take(first[order])
    return Positives(kept.user_id_M, kept.post_M, kept.kind_M, total[order], kept.occurred_at_M, kept.known_at_M)
