"""How well each policy's order of the logged slates agrees with what viewers did: NDCG by request.

Only viewed impressions count, with their reward as gain. Shapes: R requests, K positions, P pool entries, N rows.
"""

from typing import Any

import numpy as np

from contracts.features import INPUT_NAMES
from serving.feed import ValueModel
from serving.feed.candidates import Candidates, Query, Run
from serving.feed.scorers import Popularity
from serving.store.memory import MemoryStore
from simulator.evaluation.ranking_metrics import ndcg
from simulator.replay.models import TrainedModels
from simulator.replay.settings import ReplaySettings
from simulator.replay.walk import Walked
from simulator.replay.window import Window

TOP = 8


def add_ndcg(entries: list[dict[str, Any]], window: Window, walked: Walked, probability_PT: np.ndarray, models: TrainedModels,
             value_model: ValueModel, settings: ReplaySettings) -> None:  # fmt: skip
    """Puts NDCG@8 of each policy's scores, before reranking, into its entry; for random the mean of seeded draws."""
    scores = policy_scores(walked, probability_PT, models, value_model)
    generator = np.random.default_rng([settings.seed, 3])
    for entry in entries:
        if entry["name"] == "random":
            draws = [_ndcg(generator.random(len(window.pool_P)), window) for _ in range(settings.truth_orderings)]
            entry["ndcg"] = None if None in draws else float(np.mean([x for x in draws if x is not None]))
        else:
            entry["ndcg"] = _ndcg(scores[entry["name"]], window)


def policy_scores(
    walked: Walked, probability_PT: np.ndarray, models: TrainedModels, value_model: ValueModel
) -> dict[str, np.ndarray]:
    """Each policy's score (P,) of every pool entry, by the very scorers that serve."""
    inputs_PF = walked.inputs_PF.astype(np.float64)
    pool = Candidates({"inputs_NF": inputs_PF})
    run = Run(Query(0, 0), MemoryStore())
    return {
        "chronological": -inputs_PF[:, INPUT_NAMES.index("post_age_hours")],
        "popularity": Popularity().score(run, pool)["score"],
        "prerank": models.prerank.score(inputs_PF),
        "full": value_model.values(probability_PT, inputs_PF),
        "full, untuned": ValueModel.for_tasks(models.ranker.tasks).values(probability_PT, inputs_PF),
    }


def _ndcg(score_P: np.ndarray, window: Window) -> float | None:
    row_RK = window.pool_rows(window.post_RK)
    counted_RK = window.viewed_RK & (row_RK >= 0)
    request_N, _ = np.nonzero(counted_RK)
    return ndcg(window.reward_RK[counted_RK], score_P[row_RK[counted_RK]], request_N, window.post_RK[counted_RK], TOP)
