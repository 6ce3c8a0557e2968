"""Collaborative recall: which channels (subjects, else authors) a viewer's likes point to, then their live posts.

Shapes: M interactions, U users, C channels of one user, T all list entries, N posts, K ranked posts.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from recall.posts import PostColumns, Ranked, best_first, first_of_each
from recall.settings import CollaborativeSettings
from recall.social import freshness


@dataclass(frozen=True)
class ChannelLists:
    """Per user a list of channels, best first: user u's entries are `offset_U1[u]:offset_U1[u + 1]` of the (T,) columns."""

    user_id_U: np.ndarray
    offset_U1: np.ndarray
    channel_id_T: np.ndarray
    score_T: np.ndarray

    def of(self, user_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Channels (C,) int64 and scores (C,) float32 in (0, 1] of a user; both empty for an unknown user."""
        at = int(np.searchsorted(self.user_id_U, user_id))
        if at == len(self.user_id_U) or self.user_id_U[at] != user_id:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        rows = slice(self.offset_U1[at], self.offset_U1[at + 1])
        return self.channel_id_T[rows], self.score_T[rows]


def train_channels(user_id_M: np.ndarray, channel_id_M: np.ndarray, weight_M: np.ndarray, occurred_at_M: np.ndarray,
                   as_of: int, settings: CollaborativeSettings, seed: int) -> ChannelLists:  # fmt: skip
    """Each user's channels from interactions known before `as_of`; the same input gives the same lists.

    Subject channels (negative ids) that the user already has are left out: they are no discovery. Author channels that
    the user already has stay in, since it is the author's next post that is new.
    """
    if not len(user_id_M):
        return ChannelLists(
            np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
        )
    from implicit.als import AlternatingLeastSquares
    from implicit.nearest_neighbours import BM25Recommender
    from scipy.sparse import csr_matrix
    from threadpoolctl import threadpool_limits

    weight_M = np.asarray(weight_M, np.float64)
    if settings.interaction_half_life_us:
        weight_M = weight_M * freshness(occurred_at_M, as_of, settings.interaction_half_life_us)
    user_id_U, user_M = np.unique(user_id_M, return_inverse=True)
    channel_id_H, channel_M = np.unique(channel_id_M, return_inverse=True)
    seen = csr_matrix((weight_M, (user_M, channel_M)), shape=(len(user_id_U), len(channel_id_H)), dtype=np.float32)
    seen.sum_duplicates()
    seen.data = np.log1p(seen.data)
    own = seen[:, np.flatnonzero(channel_id_H < 0)]
    with threadpool_limits(1), warnings.catch_warnings():
        # The library weighs its matrix into another layout itself, and then warns of it.
        warnings.filterwarnings("ignore", "Method expects CSR input")
        if settings.model == "als":
            model = AlternatingLeastSquares(
                factors=settings.factors, iterations=settings.iterations, alpha=settings.alpha,
                regularization=settings.regularization, random_state=seed, num_threads=1,
            )  # fmt: skip
        else:
            model = BM25Recommender(K=settings.neighbours, num_threads=1)
        model.fit(seen, show_progress=False)
        wanted = settings.channels_per_user + int(np.diff(own.indptr).max(initial=0))
        wanted = min(wanted, len(channel_id_H))
        found_UT, score_UT = model.recommend(
            np.arange(len(user_id_U)), seen, N=wanted, filter_already_liked_items=False
        )
    return _lists(user_id_U, channel_id_H, seen, found_UT, score_UT, settings.channels_per_user)


def _lists(user_id_U, channel_id_H, seen, found_UT, score_UT, limit: int) -> ChannelLists:
    owned = np.zeros(found_UT.shape, bool)
    for u in range(len(user_id_U)):
        owned[u] = np.isin(found_UT[u], seen.indices[seen.indptr[u] : seen.indptr[u + 1]])
    channel_UT = channel_id_H[np.maximum(found_UT, 0)]
    kept_UT = (found_UT >= 0) & (score_UT > 0) & ~(owned & (channel_UT < 0))
    kept_UT &= np.cumsum(kept_UT, axis=1) <= limit
    best_U1 = np.maximum(np.where(kept_UT, score_UT, 0).max(axis=1, initial=0, keepdims=True), 1e-12)
    offset_U1 = np.r_[0, np.cumsum(kept_UT.sum(axis=1))].astype(np.int64)
    return ChannelLists(user_id_U, offset_U1, channel_UT[kept_UT], (score_UT / best_U1)[kept_UT].astype(np.float32))


def rank_collaborative(posts: PostColumns, channel_id_C: np.ndarray, score_C: np.ndarray, now: int, n: int,
                       settings: CollaborativeSettings) -> Ranked:  # fmt: skip
    """The `n` best of the posts whose channel is among the viewer's: channel score x freshness.

    One channel brings at most `posts_per_channel`, one group one post. Posts of other channels are left out.
    """
    if not len(channel_id_C) or not len(posts):
        return Ranked.empty()
    order_C = np.argsort(channel_id_C, kind="stable")
    at_N = np.minimum(np.searchsorted(channel_id_C[order_C], posts.channel_id_N), len(channel_id_C) - 1)
    entry_N = order_C[at_N]
    mine_M = np.flatnonzero(channel_id_C[entry_N] == posts.channel_id_N)
    posts = posts.take(mine_M)
    score_M = np.asarray(score_C, np.float64)[entry_N[mine_M]]
    score_M = score_M * freshness(posts.created_at_N, now, settings.freshness_half_life_us)
    order_M = best_first(posts, score_M)
    order_M = order_M[first_of_each(posts.group_id_N[order_M], 1)]
    order_K = order_M[first_of_each(posts.channel_id_N[order_M], settings.posts_per_channel)][:n]
    return Ranked(posts.take(order_K), score_M[order_K])
