"""Ranking metrics against scikit-learn and by hand, with one declared tie rule."""

import numpy as np
import pytest

from simulator.evaluation import ranking_metrics as metrics


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
