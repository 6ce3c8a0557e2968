"""The reward regression never answers for a viewer that it was fitted on."""

import numpy as np
import pytest

from contracts.errors import BadInput
from simulator.evaluation.reward_regression import RewardRegression, viewer_folds


def test_a_viewers_own_rewards_never_reach_his_own_predictions(rng):
    """Planted: viewer 7's rewards are raised a thousandfold; only predictions for viewers of the other folds may move."""
    n = 3000
    viewer, position = rng.integers(0, 40, n), rng.integers(0, 4, n)
    inputs = rng.random((n, 3))
    reward = inputs[:, 0] / (1 + position)
    raised = np.where(viewer == 7, reward + 1000, reward)
    before = (
        RewardRegression(trees=10, threads=1).fit(inputs, position, reward, viewer).predict(inputs, position, viewer)
    )
    after = (
        RewardRegression(trees=10, threads=1).fit(inputs, position, raised, viewer).predict(inputs, position, viewer)
    )
    same_fold = viewer_folds(viewer, 2) == viewer_folds(np.array([7]), 2)
    assert np.array_equal(before[same_fold], after[same_fold])
    assert not np.array_equal(before[~same_fold], after[~same_fold])


def test_regression_learns_position_and_inputs(rng):
    viewer, position, inputs = rng.integers(0, 40, 6000), rng.integers(0, 4, 6000), rng.random((6000, 3))
    reward = inputs[:, 0] / (1 + position) + rng.normal(0, 0.1, 6000)
    q = RewardRegression(threads=1).fit(inputs, position, reward, viewer).predict(inputs, position, viewer)
    assert np.corrcoef(q, inputs[:, 0] / (1 + position))[0, 1] > 0.95


def test_one_viewer_is_too_few():
    with pytest.raises(BadInput, match="1 viewers are too few"):
        RewardRegression(threads=1).fit(np.zeros((5, 1)), np.zeros(5), np.zeros(5), np.ones(5, int))
