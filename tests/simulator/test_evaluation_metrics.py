"""Ranking metrics against scikit-learn and by hand, with one declared tie rule."""

import numpy as np
import pytest

from simulator.evaluation import ranking_metrics as metrics
from simulator.evaluation.slices import FEATURES, slice_masks, sliced_metrics


@pytest.fixture
def rows(rng):
    n = 600
    return {
        "label": (rng.random(n) < 0.3).astype(int),
        "score": rng.integers(0, 12, n) / 12,  # many ties
        "group": rng.integers(0, 60, n),
        "post": rng.permutation(n),
    }


def test_auc_and_log_loss_are_those_of_scikit_learn(rows):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    assert metrics.auc(rows["label"], rows["score"]) == pytest.approx(
        sklearn_metrics.roc_auc_score(rows["label"], rows["score"]), rel=1e-12
    )
    probability = np.clip(rows["score"], 0.01, 0.99)
    assert metrics.log_loss(rows["label"], probability) == pytest.approx(
        sklearn_metrics.log_loss(rows["label"], probability), rel=1e-9
    )


def test_ndcg_is_that_of_scikit_learn_where_there_are_no_ties(rng):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    gain_GN, score_GN = rng.integers(0, 5, (40, 9)).astype(float), rng.random((40, 9))
    group = np.repeat(np.arange(40), 9)
    got = metrics.ndcg(gain_GN.ravel(), score_GN.ravel(), group, np.arange(360), k=5)
    assert got == pytest.approx(sklearn_metrics.ndcg_score(gain_GN, score_GN, k=5), rel=1e-12)


def test_shuffled_rows_give_the_same_figures_in_spite_of_ties(rows, rng):
    def figures(order):
        label, score, group, post = (rows[name][order] for name in ("label", "score", "group", "post"))
        return [
            metrics.auc(label, score), metrics.grouped_auc(label, score, group), metrics.ndcg(label, score, group, post, 5),
            metrics.mrr(label, score, group, post), metrics.calibration_error(label, score), metrics.log_loss(label, score),
        ]  # fmt: skip

    assert figures(rng.permutation(600)) == pytest.approx(figures(np.arange(600)), rel=1e-12)


def test_a_tie_goes_to_the_lower_post_id_for_ndcg_and_mrr():
    label, score, group = np.array([0, 1]), np.array([0.5, 0.5]), np.array([7, 7])
    assert metrics.mrr(label, score, group, np.array([1, 2])) == 0.5
    assert metrics.mrr(label, score, group, np.array([2, 1])) == 1.0
    assert metrics.ndcg(label, score, group, np.array([1, 2]), 2) == pytest.approx(1 / np.log2(3))


def test_grouped_auc_leaves_out_viewers_with_one_kind_of_label():
    label = np.array([1, 0, 1, 1, 0, 1])
    score = np.array([0.9, 0.1, 0.2, 0.3, 0.9, 0.1])
    viewer = np.array([1, 1, 2, 2, 3, 3])
    assert metrics.grouped_auc(label, score, viewer) == 0.5  # viewer 1 right, viewer 2 left out, viewer 3 wrong
    assert metrics.grouped_auc(label[2:4], score[2:4], viewer[2:4]) is None


def test_calibration_error_is_zero_for_true_rates_and_the_gap_for_shifted_ones():
    probability = np.repeat([0.2, 0.6], 500)
    label = np.concatenate([np.repeat([1, 0], [100, 400]), np.repeat([1, 0], [300, 200])])
    assert metrics.calibration_error(label, probability) == pytest.approx(0.0, abs=1e-12)
    assert metrics.calibration_error(label, probability + 0.1) == pytest.approx(0.1)


def test_metrics_of_nothing_are_none():
    empty = np.zeros(0)
    assert metrics.auc(empty, empty) is None
    assert metrics.log_loss(empty, empty) is None
    assert metrics.calibration_error(empty, empty) is None
    assert metrics.mrr(empty, empty, empty, empty) is None
    assert metrics.ndcg(empty, empty, empty, empty, 5) is None


def test_grouped_auc_is_the_mean_of_each_viewers_auc_weighed_by_impressions(rows):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    inside = [rows["group"] == viewer for viewer in np.unique(rows["group"])]
    both = [mask for mask in inside if 0 < rows["label"][mask].sum() < mask.sum()]
    aucs = [sklearn_metrics.roc_auc_score(rows["label"][mask], rows["score"][mask]) for mask in both]
    expected = np.average(aucs, weights=[mask.sum() for mask in both])
    assert metrics.grouped_auc(rows["label"], rows["score"], rows["group"]) == pytest.approx(expected, rel=1e-12)


def test_calibration_bins_are_those_of_scikit_learn(rng):
    calibration = pytest.importorskip("sklearn.calibration")
    probability = rng.random(1000)
    label = (rng.random(1000) < probability**1.5).astype(int)
    observed, predicted = calibration.calibration_curve(label, probability, n_bins=10, strategy="quantile")
    curve = metrics.reliability(label, probability)
    assert curve["observed"] == pytest.approx(observed)
    assert curve["predicted"] == pytest.approx(predicted)
    assert metrics.calibration_error(label, probability) == pytest.approx(
        np.mean(np.abs(observed - predicted)), rel=1e-9
    )


def test_mrr_of_one_positive_a_request_is_scikit_learns_label_ranking_precision(rng):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    score_GN = rng.random((50, 8))
    label_GN = np.eye(8, dtype=int)[rng.integers(0, 8, 50)]
    got = metrics.mrr(label_GN.ravel(), score_GN.ravel(), np.repeat(np.arange(50), 8), np.arange(400))
    assert got == pytest.approx(sklearn_metrics.label_ranking_average_precision_score(label_GN, score_GN), rel=1e-12)


def test_recall_at_k_of_one_positive_a_request_is_scikit_learns_top_k_accuracy(rng):
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    score_GN, truth_G = rng.random((60, 8)), rng.integers(0, 8, 60)
    label_GN = np.eye(8, dtype=int)[truth_G]
    rows = (label_GN.ravel(), score_GN.ravel(), np.repeat(np.arange(60), 8), np.arange(480))
    expected = sklearn_metrics.top_k_accuracy_score(truth_G, score_GN, k=3, labels=np.arange(8))
    assert metrics.recall_at(*rows, 3) == pytest.approx(expected)
    assert metrics.recall_at(np.zeros(480), *rows[1:], 3) is None


def features_of(**columns):
    n = len(next(iter(columns.values())))
    return {name: np.asarray(columns.get(name, np.zeros(n)), float) for name in FEATURES}


def test_slices_hold_whom_they_name():
    features = features_of(
        viewer_tenure_days=[1, 100, 100, 100, 100], is_friend=[0, 1, 1, 1, 1], friendship_days=[0, 3, 400, 400, 90],
        post_age_hours=[1, 30, 30, 30, 5], tie_days_since_contact=[365, 1, 60, 2, 2], tie_contacts_14d=[0, 4, 0, 3, 0.4],
        back_contacts_14d=[0, 0, 0.2, 3, 0.3])  # fmt: skip
    masks = slice_masks(features, np.array([0, 1, 1, 2, 0]))
    held = {name: np.flatnonzero(mask).tolist() for name, mask in masks.items()}
    assert held == {"new viewers": [0], "new friends": [1], "new posts": [0, 4], "old friends": [2], "weak ties": [2, 4],
                    "not friends": [0], "position 1": [0, 4], "position 2": [1, 2], "position 3": [3]}  # fmt: skip


def test_a_model_that_is_blind_to_one_slice_shows_there_and_not_in_the_others(rng):
    n = 4000
    label = (rng.random(n) < 0.3).astype(float)
    fresh = rng.random(n) < 0.25
    score = np.where(fresh, rng.random(n), np.clip(0.4 * label + 0.6 * rng.random(n), 0, 1))
    ids = (rng.integers(0, 200, n), np.arange(n) // 8, np.arange(n))
    found = sliced_metrics({"new posts": fresh, "other": ~fresh, "none": np.zeros(n, bool)}, label, score, *ids)
    assert found["new posts"]["auc"] == pytest.approx(0.5, abs=0.05)
    assert found["other"]["auc"] > 0.75
    assert found["none"] == {"impressions": 0, "positives": 0}
