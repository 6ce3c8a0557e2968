"""Metrics equal their definitions and never move with the order of the input."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from ranking.calibration import fit_platt
from ranking.gates import gate_report
from ranking.metrics import auc, calibration_error, grouped_auc, log_loss, ndcg, order_skill


@pytest.fixture
def tied(rng: np.random.Generator):
    labels_N = rng.integers(0, 2, 500).astype(float)
    return labels_N, np.round(labels_N * 0.3 + rng.random(500), 1), np.sort(rng.integers(0, 40, 500))


def test_auc_counts_ties_as_half(tied):
    labels_N, scores_N, _ = tied
    assert auc(labels_N, scores_N) == pytest.approx(roc_auc_score(labels_N, scores_N), abs=1e-12)
    assert auc(np.array([0.0, 1.0]), np.zeros(2)) == 0.5
    assert np.isnan(auc(np.ones(3), np.arange(3.0)))


def test_gauc_is_the_row_weighted_mean_of_viewers_aucs(tied):
    labels_N, scores_N, users_N = tied
    parts = [(labels_N[users_N == u], scores_N[users_N == u]) for u in np.unique(users_N)]
    parts = [part for part in parts if 0 < part[0].sum() < len(part[0])]
    expected = np.average([roc_auc_score(*part) for part in parts], weights=[len(part[0]) for part in parts])
    assert grouped_auc(labels_N, scores_N, users_N) == pytest.approx(expected, abs=1e-12)


def test_ndcg_breaks_ties_by_post_id_and_leaves_out_requests_without_a_choice():
    requests_N, posts_N = np.array([1, 1, 1, 2, 2]), np.array([10, 11, 12, 13, 14])
    gains_N = np.array([0.0, 3.0, 1.0, 5.0, 5.0])
    by_id = ndcg(requests_N, posts_N, gains_N, np.zeros(5), 3)
    assert by_id == pytest.approx(ndcg_score([gains_N[:3]], [[3, 2, 1]], k=3), abs=1e-12)
    assert ndcg(requests_N, posts_N, gains_N, gains_N, 3) == 1.0


def test_shuffled_rows_give_the_same_figures(tied, rng: np.random.Generator):
    labels_N, scores_N, users_N = tied
    order = rng.permutation(500)
    posts_N = np.arange(500)
    together = order[np.argsort(users_N[order], kind="stable")]
    assert grouped_auc(labels_N[order], scores_N[order], users_N[order]) == grouped_auc(labels_N, scores_N, users_N)
    assert ndcg(users_N[together], posts_N[together], labels_N[together], scores_N[together], 5) == pytest.approx(
        ndcg(users_N, posts_N, labels_N, scores_N, 5), abs=1e-12
    )
    chances_N = np.clip(scores_N / 2, 0.01, 0.99)
    assert calibration_error(labels_N[order], chances_N[order]) == pytest.approx(
        calibration_error(labels_N, chances_N), abs=1e-12
    )


def test_order_skill_is_zero_by_chance_one_at_best_and_ignores_a_constant(rng: np.random.Generator):
    requests_N, posts_N = np.repeat(np.arange(4000), 6), np.arange(24_000)
    gains_N, chance_N = rng.exponential(1.0, 24_000), rng.random(24_000)
    assert order_skill(requests_N, posts_N, gains_N, gains_N, 4) == pytest.approx(1.0)
    assert order_skill(requests_N, posts_N, gains_N, chance_N, 4) == pytest.approx(0.0, abs=0.02)
    noisy_N = gains_N + chance_N
    shifted = order_skill(requests_N, posts_N, gains_N + 8, noisy_N, 4)
    assert shifted == pytest.approx(order_skill(requests_N, posts_N, gains_N, noisy_N, 4), abs=1e-9)
    assert np.isnan(order_skill(requests_N, posts_N, np.ones(24_000), chance_N, 4))


def test_calibration_error_sees_a_shifted_forecast(rng: np.random.Generator):
    chances_N = rng.uniform(0.05, 0.6, 40_000)
    labels_N = (rng.random(40_000) < chances_N).astype(float)
    assert calibration_error(labels_N, chances_N) < 0.01
    assert calibration_error(labels_N, chances_N + 0.1) == pytest.approx(0.1, abs=0.01)
    assert log_loss(labels_N, chances_N) < log_loss(labels_N, chances_N + 0.1)


def test_platt_makes_the_mean_probability_the_label_rate(rng: np.random.Generator):
    logits_N = rng.normal(0, 2, 5000)
    labels_N = (rng.random(5000) < 1 / (1 + np.exp(-(0.5 * logits_N - 2)))).astype(float)
    slope, intercept = fit_platt(logits_N, labels_N)
    assert slope == pytest.approx(0.5, abs=0.06) and intercept == pytest.approx(-2, abs=0.15)
    assert (1 / (1 + np.exp(-(slope * logits_N + intercept)))).mean() == pytest.approx(labels_N.mean(), abs=1e-8)


@pytest.mark.parametrize("labels", [np.r_[np.ones(5), np.zeros(495)], np.r_[np.ones(250), np.zeros(250)]])
def test_platt_never_turns_the_order_round(labels: np.ndarray):
    logits_N = np.arange(500.0) / 100
    slope, intercept = fit_platt(logits_N, labels)
    assert slope == 1.0
    assert (1 / (1 + np.exp(-(logits_N + intercept)))).mean() == pytest.approx(labels.mean(), abs=1e-8)


def test_a_collapsed_gate_an_idle_expert_and_a_shared_head_are_named(rng: np.random.Generator):
    shares_NTE = np.full((200, 5, 4), [0.98, 0.01, 0.005, 0.005])
    logits_NT = rng.normal(size=(200, 5))
    logits_NT[:, 3] = logits_NT[:, 2]
    report, warnings = gate_report(shares_NTE, logits_NT, np.ones(5, bool))
    text = "; ".join(warnings)
    assert (
        "the gate of click collapsed: 98%" in text
        and "expert 3 is idle" in text
        and "comment and share score alike" in text
    )
    assert report["gate_entropy"]["hide"] < 0.1
    healthy = gate_report(np.full((200, 5, 4), 0.25), rng.normal(size=(200, 5)), np.ones(5, bool))
    assert healthy[1] == [] and healthy[0]["gate_entropy"]["like"] == 1.0
