"""Scores: the models' stages, and the simple orders that they are judged against.

Shapes: N candidates, T tasks. Every scorer adds `score` (N,), of which higher is better; the last one decides.
"""

from typing import Protocol

import numpy as np

from serving.feed.candidates import Candidates, Run, feature
from serving.feed.value import ValueModel


class Prerank(Protocol):
    """What scores rows of model inputs (N, F) by one number (N,); `ranking.scorers.PrerankScorer` does."""

    def score(self, inputs_NF: np.ndarray) -> np.ndarray: ...


class Ranker(Protocol):
    """What gives calibrated probabilities (N, T) of rows of model inputs; `ranking.scorers.RankerScorer` does."""

    def probabilities(self, inputs_NF: np.ndarray) -> np.ndarray: ...


def best_first(candidates: Candidates, score_N: np.ndarray) -> np.ndarray:
    """Row order (N,) by the one tie rule: higher score, then newer, then larger post id."""
    return np.lexsort((-candidates["post_id"], -candidates["created_at"], -score_N))


class PrerankStage:
    """The pre-ranker; keeps the `keep` best. Falls back to the number of recall paths, then newest."""

    name = "prerank"
    reads: tuple[str, ...] = ("inputs_NF", "created_at", "post_id")
    adds: tuple[str, ...] = ("prerank", "score")

    def __init__(self, model: Prerank, keep: int):
        self.model, self.keep = model, keep

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        return self._cut(candidates, self.model.score(candidates["inputs_NF"]))

    def fallback(self, run: Run, candidates: Candidates) -> Candidates:
        return self._cut(candidates, candidates["brought_NP"].sum(axis=1).astype(np.float64))

    def _cut(self, candidates: Candidates, score_N: np.ndarray) -> Candidates:
        candidates = candidates.adding(prerank=score_N, score=score_N)
        return (
            candidates.take(best_first(candidates, score_N)[: self.keep]) if len(candidates) > self.keep else candidates
        )


class RankStage:
    """The ranker's probabilities. Falls back to the order so far, of which the value stage then makes the score."""

    name = "rank"
    reads: tuple[str, ...] = ("inputs_NF",)
    adds: tuple[str, ...] = ("probability_NT",)

    def __init__(self, model: Ranker):
        self.model = model

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        return candidates.adding(probability_NT=self.model.probabilities(candidates["inputs_NF"]))

    def fallback(self, run: Run, candidates: Candidates) -> Candidates:
        return candidates


class ValueStage:
    """The value model over the probabilities; where there are none, the score so far stands."""

    name = "value"
    reads: tuple[str, ...] = ("probability_NT", "inputs_NF")
    adds: tuple[str, ...] = ("score",)

    def __init__(self, model: ValueModel):
        self.model = model

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        if "probability_NT" not in candidates:
            return candidates
        return candidates.adding(score=self.model.values(candidates["probability_NT"], candidates["inputs_NF"]))

    def fallback(self, run: Run, candidates: Candidates) -> Candidates:
        return candidates


class _Simple:
    """A scorer that cannot be late: its own fallback."""

    adds: tuple[str, ...] = ("score",)

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        raise NotImplementedError

    def fallback(self, run: Run, candidates: Candidates) -> Candidates:
        return self.score(run, candidates)


class Chronological(_Simple):
    """Newest first."""

    name = "chronological"
    reads: tuple[str, ...] = ("created_at",)

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        return candidates.adding(score=candidates["created_at"].astype(np.float64))


class Popularity(_Simple):
    """Decayed likes, comments and shares per view, smoothed towards one in ten of ten views."""

    name = "popularity"
    reads: tuple[str, ...] = ("inputs_NF",)

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        inputs_NF = candidates["inputs_NF"]
        engaged_N = sum(feature(inputs_NF, f"post_{name}_2d") for name in ("likes", "comments", "shares"))
        return candidates.adding(score=(engaged_N + 1.0) / (feature(inputs_NF, "post_views_2d") + 10.0))


class Shuffled(_Simple):
    """A uniformly random order from a generator that is passed in."""

    name = "random"
    reads: tuple[str, ...] = ()

    def __init__(self, rng: np.random.Generator):
        self.rng = rng

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        return candidates.adding(score=self.rng.random(len(candidates)))


class MergedOrder(_Simple):
    """The order of the recall paths' merge: weighted reciprocal-rank fusion."""

    name = "merged"
    reads: tuple[str, ...] = ("fused",)

    def score(self, run: Run, candidates: Candidates) -> Candidates:
        return candidates.adding(score=candidates["fused"])
