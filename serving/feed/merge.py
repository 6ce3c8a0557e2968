"""The merge of the recall paths after the filters: fused order, one post per group, who brought what.

Shapes: N candidates, P recall paths.
"""

from collections.abc import Mapping

import numpy as np

from recall.merge import merge_paths
from recall.posts import Ranked
from recall.settings import MergeSettings
from serving.feed.candidates import PATHS, Candidates, Run


class Merge:
    """Keeps the `total` best candidates of weighted reciprocal-rank fusion and adds `fused`, their fused score.

    It comes after the filters: what a viewer may not see must not stand in for the visible posts of its group.
    """

    name = "merge"
    adds: tuple[str, ...] = ("fused",)

    def __init__(self, settings: MergeSettings, total: int):
        self.settings, self.total = settings, total

    def merge(self, run: Run, candidates: Candidates, ranked: Mapping[str, Ranked]) -> Candidates:
        ids = candidates["post_id"]
        kept = {}
        for path, part in ranked.items():
            inside = np.isin(part.posts.post_id_N, ids)
            kept[path] = Ranked(part.posts.take(inside), part.score_K[inside])
        merged = merge_paths(kept, self.settings, self.total)
        rows = np.searchsorted(
            ids, merged.posts.post_id_N
        )  # ids are in order: `gathered` sorts, filters keep the order
        brought_KP = np.zeros((len(rows), len(PATHS)), bool)
        for column, path in enumerate(merged.paths):
            brought_KP[:, PATHS.index(path)] = merged.brought_KP[:, column]
        return candidates.take(rows).adding(fused=merged.score_K, brought_NP=brought_KP)


class Pool:
    """A logged pool as it is: every post of it stays, in one rank."""

    name = "pool"
    adds: tuple[str, ...] = ("fused",)

    def merge(self, run: Run, candidates: Candidates, ranked: Mapping[str, Ranked]) -> Candidates:
        return candidates.adding(fused=np.zeros(len(candidates)))
