"""Social recall: friends' posts by tie strength and freshness, with places kept for friends never contacted.

Shapes: N posts, F friends, K ranked posts.
"""

import numpy as np

from recall.posts import PostColumns, Ranked, first_of_each
from recall.settings import SocialSettings


def tie_strength(contacts_14d_F: np.ndarray, contacts_180d_F: np.ndarray, contacts_back_180d_F: np.ndarray,
                 mutual_friends_F: np.ndarray, special_care_F: np.ndarray, settings: SocialSettings) -> np.ndarray:  # fmt: skip
    """Strength (F,) >= 1 of the viewer's ties: 1 + weighted log1p of contacts and mutual friends, times special care.

    Counts are those of the `tie` family as of now: viewer -> friend for `contacts_*`, friend -> viewer for
    `contacts_back_*`. `special_care_F` is boolean. A friend without any contact still has strength 1.
    """
    strength_F = (
        1.0
        + settings.recent_weight * np.log1p(contacts_14d_F)
        + settings.lasting_weight * np.log1p(contacts_180d_F)
        + settings.back_weight * np.log1p(contacts_back_180d_F)
        + settings.mutual_weight * np.log1p(mutual_friends_F)
    )
    return np.where(np.asarray(special_care_F, bool), strength_F * settings.special_care_boost, strength_F)


def freshness(created_at_N: np.ndarray, now: int, half_life_us: int) -> np.ndarray:
    """Freshness (N,) in (0, 1]: 1 for a post of this moment, halved every `half_life_us` microseconds."""
    return np.exp2(-np.maximum(0, now - np.asarray(created_at_N, np.int64)) / half_life_us)


def rank_social(posts: PostColumns, friend_id_F: np.ndarray, strength_F: np.ndarray, contacted_F: np.ndarray, now: int,
                n: int, settings: SocialSettings) -> Ranked:  # fmt: skip
    """The `n` best of the posts whose author is among `friend_id_F`: strength ** exponent x freshness.

    Posts of one group add up (what three close friends write about is worth more than what one does) and take one place,
    that of the best of them. `strength_F` as of `tie_strength`; `contacted_F` (boolean) says whether the viewer ever contacted that friend.
    A share `quiet_share` of the places goes to friends never contacted, spread evenly down the list; where one side
    runs out the other fills. `posts` of other authors are left out.
    """
    friend_id_F = np.asarray(friend_id_F, np.int64)
    if not len(friend_id_F) or not len(posts):
        return Ranked.empty()
    order_F = np.argsort(friend_id_F, kind="stable")
    at_N = np.minimum(np.searchsorted(friend_id_F[order_F], posts.author_id_N), len(friend_id_F) - 1)
    friend_N = order_F[at_N]
    mine_M = np.flatnonzero(friend_id_F[friend_N] == posts.author_id_N)
    mine_M = mine_M[np.argsort(posts.post_id_N[mine_M], kind="stable")]  # sums must not depend on the order of rows
    posts, friend_M = posts.take(mine_M), friend_N[mine_M]
    score_M = np.asarray(strength_F, np.float64)[friend_M] ** settings.strength_exponent
    score_M = score_M * freshness(posts.created_at_N, now, settings.freshness_half_life_us)
    _, group_M = np.unique(posts.group_id_N, return_inverse=True)
    shared_M = np.bincount(group_M, weights=score_M)[group_M]
    order_M = np.lexsort((-posts.post_id_N, -posts.created_at_N, -score_M, -shared_M))
    order_M = order_M[first_of_each(posts.group_id_N[order_M], 1)]
    quiet_M = ~np.asarray(contacted_F, bool)[friend_M[order_M]]
    place_M = np.empty(len(order_M))
    place_M[~quiet_M] = np.arange(1, (~quiet_M).sum() + 1) / (1.0 - settings.quiet_share)
    place_M[quiet_M] = np.arange(1, quiet_M.sum() + 1) / max(settings.quiet_share, 1e-9)
    order_K = order_M[np.lexsort((quiet_M, place_M))][:n]
    return Ranked(posts.take(order_K), shared_M[order_K])
