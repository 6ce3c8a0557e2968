"""The merge of recall paths: weighted reciprocal-rank fusion without doubles, which remembers who brought what.

Shapes: K merged posts, P paths, G groups of posts that show the same thing. Cormack, Clarke and Büttcher, "Reciprocal
rank fusion outperforms Condorcet and individual rank learning methods", SIGIR 2009.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recall.posts import PostColumns, Ranked, best_first, first_of_each
from recall.settings import MergeSettings

ABSENT = np.iinfo(np.int64).max
"""The place of a post in a path that did not bring it."""


@dataclass(frozen=True)
class Merged:
    """Candidates (K,) best first; `brought_KP[k, p]` says whether path `paths[p]` brought candidate k's group."""

    posts: PostColumns
    score_K: np.ndarray
    paths: tuple[str, ...]
    brought_KP: np.ndarray

    def __len__(self) -> int:
        return len(self.score_K)


def fuse(place_GP: np.ndarray, weight_P: np.ndarray, constant: float) -> np.ndarray:
    """Fused score (G,): sum over paths of weight / (constant + 1 + place); `place_GP` from 0, ABSENT adds nothing."""
    share_GP = np.where(place_GP == ABSENT, 0.0, 1.0 / (constant + 1.0 + np.minimum(place_GP, 2**52)))
    return share_GP @ weight_P


def merge_paths(ranked: Mapping[str, Ranked], settings: MergeSettings, total: int | None = None) -> Merged:
    """The `total` best candidates of all paths (default: the settings').

    Each path enters with its first `quota` groups. Of posts that show the same thing (one subject; one original and its
    shares) one stays: the one with the best fused score of its own. Order: score, then newer, then larger post id; the
    order of rows inside equal ranks and of the mapping's keys does not matter. A path without a weight has none.
    """
    paths = tuple(sorted(ranked))
    weight_P = np.array([settings.weights.get(path, 0.0) for path in paths], np.float64)
    entries, path_parts, place_parts = [], [], []
    for p, path in enumerate(paths):
        kept = ranked[path].posts.take(first_of_each(ranked[path].posts.group_id_N, 1))
        kept = kept.take(np.arange(min(len(kept), settings.quota.get(path, len(kept)))))
        entries.append(kept)
        path_parts.append(np.full(len(kept), p))
        place_parts.append(np.arange(len(kept)))
    posts = PostColumns.concatenate(entries)
    if not len(posts):
        return Merged(posts, np.zeros(0), paths, np.zeros((0, len(paths)), bool))
    came_by_E, came_at_E = np.concatenate(path_parts), np.concatenate(place_parts)
    groups_G, group_E = np.unique(posts.group_id_N, return_inverse=True)
    place_GP = np.full((len(groups_G), len(paths)), ABSENT)
    place_GP[group_E, came_by_E] = came_at_E
    score_G = fuse(place_GP, weight_P, settings.constant)

    _, first_D, post_E = np.unique(posts.post_id_N, return_index=True, return_inverse=True)
    place_DP = np.full((len(first_D), len(paths)), ABSENT)
    place_DP[post_E, came_by_E] = came_at_E
    own_D, distinct = fuse(place_DP, weight_P, settings.constant), posts.take(first_D)
    order_D = best_first(distinct, own_D)
    kept_G = order_D[first_of_each(distinct.group_id_N[order_D], 1)]
    chosen = distinct.take(kept_G)
    at_G = np.searchsorted(groups_G, chosen.group_id_N)
    order_K = best_first(chosen, score_G[at_G])[: settings.total if total is None else total]
    at_K = at_G[order_K]
    return Merged(chosen.take(order_K), score_G[at_K], paths, place_GP[at_K] != ABSENT)
