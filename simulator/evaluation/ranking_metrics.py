"""Ranking and probability metrics with one declared tie rule: AUC counts a tie as half; an order is by falling score,
then by rising post id. So the order of the input never moves a figure.

Shapes: N impressions. `group_N` is a request or viewer id. A metric with nothing to measure is None.
"""

import numpy as np


def auc(label_N: np.ndarray, score_N: np.ndarray) -> float | None:
    """Probability that a positive scores above a negative, ties counting half (Mann and Whitney 1947)."""
    positives = int(np.sum(label_N > 0))
    negatives = len(label_N) - positives
    if positives == 0 or negatives == 0:
        return None
    rank_sum = _mid_ranks(score_N)[label_N > 0].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def grouped_auc(label_N: np.ndarray, score_N: np.ndarray, group_N: np.ndarray) -> float | None:
    """GAUC: AUC inside each group that has both labels, weighted by its impressions (Zhu et al. 2017)."""
    if len(label_N) == 0:
        return None
    order = np.lexsort((score_N, group_N))
    _, start, group_of = np.unique(group_N[order], return_index=True, return_inverse=True)
    positive = label_N[order] > 0
    size_G = np.bincount(group_of)
    positives_G = np.bincount(group_of, weights=positive)
    pairs_G = positives_G * (size_G - positives_G)
    kept_G = pairs_G > 0
    if not kept_G.any():
        return None
    # Equal scores of one group share the mean of their ranks; a new run begins where group or score changes.
    ranks = np.arange(len(order)) - start[group_of] + 1.0
    score = score_N[order]
    new_run = np.concatenate([[True], (np.diff(group_of) != 0) | (np.diff(score) != 0)])
    run_of = np.cumsum(new_run) - 1
    shared = (np.bincount(run_of, weights=ranks) / np.bincount(run_of))[run_of]
    rank_sum_G = np.bincount(group_of, weights=np.where(positive, shared, 0.0))
    auc_G = (rank_sum_G - positives_G * (positives_G + 1) / 2)[kept_G] / pairs_G[kept_G]
    return float(np.sum(auc_G * size_G[kept_G]) / size_G[kept_G].sum())


def log_loss(label_N: np.ndarray, probability_N: np.ndarray) -> float | None:
    """Mean negative log likelihood in nats; probabilities are kept 1e-12 away from 0 and 1."""
    if len(label_N) == 0:
        return None
    p = np.clip(probability_N.astype(np.float64), 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(label_N > 0, np.log(p), np.log1p(-p))))


def reliability(label_N: np.ndarray, probability_N: np.ndarray, bins: int = 10) -> dict[str, list[float]]:
    """Reliability curve over bins of equal count: mean prediction, observed rate, impressions per bin.

    Equal predictions fall in one bin, whatever the order of the rows.
    """
    if len(label_N) == 0:
        return {"predicted": [], "observed": [], "impressions": []}
    edges = np.unique(np.quantile(probability_N, np.linspace(0, 1, bins + 1)[1:-1]))
    bin_N = np.searchsorted(edges, probability_N, side="left")
    count_B = np.bincount(bin_N, minlength=len(edges) + 1)
    predicted_B = np.bincount(bin_N, weights=probability_N, minlength=len(count_B))
    observed_B = np.bincount(bin_N, weights=(label_N > 0).astype(float), minlength=len(count_B))
    kept = count_B > 0
    return {
        "predicted": (predicted_B[kept] / count_B[kept]).tolist(),
        "observed": (observed_B[kept] / count_B[kept]).tolist(),
        "impressions": count_B[kept].tolist(),
    }


def calibration_error(label_N: np.ndarray, probability_N: np.ndarray, bins: int = 10) -> float | None:
    """Expected calibration error: mean over impressions of |observed rate - mean prediction| of their bin."""
    curve = reliability(label_N, probability_N, bins)
    count_B = np.array(curve["impressions"])
    if count_B.sum() == 0:
        return None
    gap_B = np.abs(np.array(curve["observed"]) - np.array(curve["predicted"]))
    return float(np.sum(gap_B * count_B) / count_B.sum())


def ndcg(gain_N: np.ndarray, score_N: np.ndarray, group_N: np.ndarray, post_id_N: np.ndarray, k: int) -> float | None:
    """Mean NDCG@k over the groups that have a gain above zero (Järvelin and Kekäläinen 2002), gains as they are.

    Negative gains count as zero, so that the ideal order is well defined.
    """
    gain_N = np.maximum(gain_N.astype(np.float64), 0.0)
    group, reached = _dcg(gain_N, score_N, group_N, post_id_N, k)
    _, ideal = _dcg(gain_N, gain_N, group_N, post_id_N, k)
    kept = ideal > 0
    return float(np.mean(reached[kept] / ideal[kept])) if len(group) and kept.any() else None


def mrr(label_N: np.ndarray, score_N: np.ndarray, group_N: np.ndarray, post_id_N: np.ndarray) -> float | None:
    """Mean reciprocal rank of the first positive over the groups that have one."""
    order, rank_N, group_of = _ranked(score_N, group_N, post_id_N)
    hits = label_N[order] > 0
    if not hits.any():
        return None
    best = np.full(group_of.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(best, group_of[hits], rank_N[hits])
    first = best[best < np.iinfo(np.int64).max]
    return float(np.mean(1.0 / (first + 1)))


def recall_at(
    label_N: np.ndarray, score_N: np.ndarray, group_N: np.ndarray, post_id_N: np.ndarray, k: int
) -> float | None:
    """Mean over the groups with a positive of the share of their positives among the first k."""
    if not np.any(label_N > 0):
        return None
    order, rank_N, group_of = _ranked(score_N, group_N, post_id_N)
    positive = label_N[order] > 0
    positives_G = np.bincount(group_of, weights=positive)
    reached_G = np.bincount(group_of, weights=positive & (rank_N < k))
    kept = positives_G > 0
    return float(np.mean(reached_G[kept] / positives_G[kept]))


def task_metrics(label_N: np.ndarray, probability_N: np.ndarray, viewer_N: np.ndarray, request_N: np.ndarray,
                 post_id_N: np.ndarray, *, k: int = 8, few: int = 3) -> dict:  # fmt: skip
    """All metrics of one task's calibrated probabilities over viewed impressions; recall is among the first `few`, since
    among as many as a slate shows it is always 1."""
    return {
        "impressions": len(label_N),
        "positives": int(np.sum(label_N > 0)),
        "auc": auc(label_N, probability_N),
        "gauc": grouped_auc(label_N, probability_N, viewer_N),
        "log_loss": log_loss(label_N, probability_N),
        "calibration_error": calibration_error(label_N, probability_N),
        f"ndcg@{k}": ndcg(label_N, probability_N, request_N, post_id_N, k),
        "mrr": mrr(label_N, probability_N, request_N, post_id_N),
        f"recall@{few}": recall_at(label_N, probability_N, request_N, post_id_N, few),
        "reliability": reliability(label_N, probability_N),
    }


def _mid_ranks(score_N: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal scores sharing the mean of theirs."""
    _, inverse, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2.0)[inverse]


def _ranked(
    score_N: np.ndarray, group_N: np.ndarray, post_id_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row order by (group, falling score, rising post id); the rank in its group and the dense group of each such row."""
    order = np.lexsort((post_id_N, -score_N, group_N))
    _, start, group_of = np.unique(group_N[order], return_index=True, return_inverse=True)
    return order, np.arange(len(order)) - start[group_of], group_of


def _dcg(
    gain_N: np.ndarray, score_N: np.ndarray, group_N: np.ndarray, post_id_N: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    if len(gain_N) == 0:
        return np.zeros(0, np.int64), np.zeros(0)
    order, rank_N, group_of = _ranked(score_N, group_N, post_id_N)
    parts = np.where(rank_N < k, gain_N[order] / np.log2(rank_N + 2), 0.0)
    return np.unique(group_of), np.bincount(group_of, weights=parts)
