"""Ranking metrics with declared tie rules, so that the order of the input never moves a figure.

AUC counts a tied pair as half. NDCG orders by score, then by ascending post id. Calibration bins are cut between
distinct probabilities. Legend: N rows, V viewers, T tasks.
"""

import numpy as np

from contracts.tasks import TASK_NAMES
from ranking.data import Samples, group_sizes


def auc(labels_N: np.ndarray, scores_N: np.ndarray) -> float:
    """Probability that a positive scores above a negative; NaN without both."""
    return grouped_auc(labels_N, scores_N, np.zeros(len(labels_N), int))


def grouped_auc(labels_N: np.ndarray, scores_N: np.ndarray, groups_N: np.ndarray) -> float:
    """Mean AUC within groups (GAUC), weighted by rows, over groups with both classes; NaN when there is none.

    Zhu et al. 2017, "Optimized Cost per Click in Taobao Display Advertising".
    """
    order_N = np.lexsort((scores_N, groups_N))
    labels_N, scores_N, groups_N = labels_N[order_N], scores_N[order_N], groups_N[order_N]
    rows = np.arange(len(labels_N))
    new_group_N = np.r_[True, groups_N[1:] != groups_N[:-1]] if len(rows) else np.zeros(0, bool)
    new_tie_N = new_group_N | np.r_[True, scores_N[1:] != scores_N[:-1]] if len(rows) else new_group_N
    tie_of_N = np.cumsum(new_tie_N) - 1
    tie_starts = rows[new_tie_N]
    tie_sizes = np.diff(np.r_[tie_starts, len(rows)])
    group_of_N = np.cumsum(new_group_N) - 1
    group_starts = rows[new_group_N]
    group_sizes_V = np.diff(np.r_[group_starts, len(rows)])
    # Mid-ranks from 1 within each group.
    ranks_N = (tie_starts + (tie_sizes - 1) / 2)[tie_of_N] - group_starts[group_of_N] + 1
    positives_V = np.bincount(group_of_N, weights=labels_N)
    negatives_V = group_sizes_V - positives_V
    rank_sums_V = np.bincount(group_of_N, weights=ranks_N * labels_N)
    both_V = (positives_V > 0) & (negatives_V > 0)
    if not both_V.any():
        return float("nan")
    wins_V = rank_sums_V[both_V] - positives_V[both_V] * (positives_V[both_V] + 1) / 2
    return float(np.average(wins_V / (positives_V[both_V] * negatives_V[both_V]), weights=group_sizes_V[both_V]))


def log_loss(labels_N: np.ndarray, probabilities_N: np.ndarray) -> float:
    """Mean negative log likelihood, natural logarithm; probabilities are kept 1e-12 away from 0 and 1."""
    safe_N = np.clip(probabilities_N, 1e-12, 1 - 1e-12)
    return float(-np.mean(labels_N * np.log(safe_N) + (1 - labels_N) * np.log1p(-safe_N)))


def calibration_error(labels_N: np.ndarray, probabilities_N: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error over bins of equal mass: mean |label rate - mean probability|, weighted by rows."""
    edges = np.unique(np.quantile(probabilities_N, np.linspace(0, 1, bins + 1)[1:-1], method="lower"))
    bin_N = np.searchsorted(edges, probabilities_N, side="left")
    rows_B = np.bincount(bin_N, minlength=len(edges) + 1)
    gap_B = np.bincount(bin_N, labels_N - probabilities_N, minlength=len(edges) + 1)
    return float(np.abs(gap_B).sum() / max(rows_B.sum(), 1))


def ndcg(request_ids_N: np.ndarray, post_ids_N: np.ndarray, gains_N: np.ndarray, scores_N: np.ndarray, k: int) -> float:
    """Mean NDCG@k over requests whose gains differ (elsewhere every order is ideal); NaN when there is none.

    DCG = sum of gain / log2(2 + rank), gains >= 0 and linear.
    """
    dcg_G = _dcg(request_ids_N, np.lexsort((post_ids_N, -scores_N, request_ids_N)), gains_N, k)
    best_G = _dcg(request_ids_N, np.lexsort((post_ids_N, -gains_N, request_ids_N)), gains_N, k)
    worst_G = _dcg(request_ids_N, np.lexsort((post_ids_N, gains_N, request_ids_N)), gains_N, k)
    differs_G = best_G > worst_G
    return float((dcg_G[differs_G] / best_G[differs_G]).mean()) if differs_G.any() else float("nan")


def order_skill(
    request_ids_N: np.ndarray, post_ids_N: np.ndarray, gains_N: np.ndarray, scores_N: np.ndarray, k: int
) -> float:
    """(DCG@k - DCG@k of a random order) / (best DCG@k - that of a random order), summed over requests first.

    0: no better than chance, 1: the best order. Unlike NDCG it does not move when a constant is added to all gains.
    Rows of one request lie together. NaN when no order matters.
    """
    sizes_G = group_sizes(request_ids_N)
    if not len(sizes_G):
        return float("nan")
    discounts_R = np.where(np.arange(sizes_G.max()) < k, 1.0 / np.log2(np.arange(sizes_G.max()) + 2.0), 0.0)
    request_N = np.repeat(np.arange(len(sizes_G)), sizes_G)
    random = (np.bincount(request_N, weights=gains_N) / sizes_G * np.cumsum(discounts_R)[sizes_G - 1]).sum()
    reached = _dcg(request_ids_N, np.lexsort((post_ids_N, -scores_N, request_ids_N)), gains_N, k).sum()
    best = _dcg(request_ids_N, np.lexsort((post_ids_N, -gains_N, request_ids_N)), gains_N, k).sum()
    return float((reached - random) / (best - random)) if best - random > 1e-12 * max(abs(best), 1.0) else float("nan")


def _dcg(request_ids_N: np.ndarray, order_N: np.ndarray, gains_N: np.ndarray, k: int) -> np.ndarray:
    sizes_G = group_sizes(request_ids_N[order_N])
    request_N = np.repeat(np.arange(len(sizes_G)), sizes_G)
    rank_N = np.arange(len(order_N)) - np.repeat(np.cumsum(sizes_G) - sizes_G, sizes_G)
    discounts_N = np.where(rank_N < k, 1.0 / np.log2(rank_N + 2.0), 0.0)
    return np.bincount(request_N, weights=gains_N[order_N] * discounts_N)


def task_metrics(samples: Samples, probabilities_NT: np.ndarray, tasks_T: np.ndarray) -> dict[str, dict[str, float]]:
    """Per learnt task: auc, gauc (per viewer), log_loss, calibration_error, positives, rate, mean_probability."""
    metrics = {}
    for column in np.flatnonzero(tasks_T):
        known_N = np.isfinite(samples.labels_NT[:, column])
        labels_N, probabilities_N = samples.labels_NT[known_N, column], probabilities_NT[known_N, column]
        metrics[TASK_NAMES[column]] = {
            "auc": auc(labels_N, probabilities_N),
            "gauc": grouped_auc(labels_N, probabilities_N, samples.user_ids_N[known_N]),
            "log_loss": log_loss(labels_N, probabilities_N),
            "calibration_error": calibration_error(labels_N, probabilities_N),
            "positives": int(labels_N.sum()),
            "rate": float(labels_N.mean()),
            "mean_probability": float(probabilities_N.mean()),
        }
    return metrics
