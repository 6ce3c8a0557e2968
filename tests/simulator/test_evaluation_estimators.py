"""Estimators against a world whose truth is summed by brute force."""

import dataclasses

import numpy as np
import pytest

from simulator.evaluation import ESTIMATORS, LoggedData, Target, value
from tests.simulator.slate_world import SlateWorld

TARGET_EXPLORATION = 0.1


@pytest.fixture(scope="module")
def world() -> SlateWorld:
    return SlateWorld.make(np.random.default_rng(5))


def many_estimates(world: SlateWorld, name: str, logs: int, requests: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    estimates = []
    for _ in range(logs):
        context_R, log = world.log(requests, viewers=100, generator=generator)
        target = world.target(context_R, log, TARGET_EXPLORATION)
        log, target = world.with_baseline(context_R, log, target, TARGET_EXPLORATION, blur=0.6)
        log, target = world.with_exposure(context_R, log, target, TARGET_EXPLORATION)
        estimates.append(value(ESTIMATORS[name](log, target)))
    return np.array(estimates)


@pytest.mark.parametrize("name", ["ips", "clipped_ips", "snips", "dr", "sndr", "pbm", "pbm_dr"])
def test_mean_estimate_over_many_logs_is_the_brute_force_value(world, name):
    # Viewers' contexts are drawn evenly, so every log has the same expected value; 4 standard errors of 300 logs.
    estimates = many_estimates(world, name, logs=300, requests=400, seed=11)
    truth = world.true_value(TARGET_EXPLORATION)
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / np.sqrt(len(estimates)) + 0.002


def test_a_wrong_propensity_moves_ips_away_from_the_truth(world):
    context_R, log = world.log(100_000, viewers=1000, generator=np.random.default_rng(2))
    target = world.target(context_R, log, TARGET_EXPLORATION)
    wrong = dataclasses.replace(log, propensity_RK=np.full_like(log.propensity_RK, 1 / 5))
    truth = world.true_value(TARGET_EXPLORATION)
    assert abs(value(ESTIMATORS["ips"](log, target)) - truth) < 0.03
    assert abs(value(ESTIMATORS["ips"](wrong, target)) - truth) > 0.1


def test_direct_method_inherits_the_regressions_fault_and_dr_repairs_it(world):
    truth = world.true_value(TARGET_EXPLORATION)
    direct = many_estimates(world, "dm", logs=20, requests=2000, seed=3).mean()
    assert direct == pytest.approx(0.6 * truth, rel=0.05)
    assert many_estimates(world, "dr", logs=20, requests=2000, seed=3).mean() == pytest.approx(truth, rel=0.05)


def test_dr_varies_less_than_ips(world):
    assert (
        many_estimates(world, "dr", 200, 400, seed=4).var() < 0.8 * many_estimates(world, "ips", 200, 400, seed=4).var()
    )


def test_a_post_that_speaks_for_every_position_varies_less_than_one_that_speaks_for_its_own(world):
    by_position, own = (many_estimates(world, name, 200, 400, seed=4).var() for name in ("pbm", "ips"))
    assert by_position < 0.7 * own


def test_position_based_estimator_is_wrong_where_position_decides_more_than_looking(world):
    """Planted: only the first position earns anything, whatever the examination says; item-position still holds."""
    context_R, log = world.log(50_000, viewers=500, generator=np.random.default_rng(2))
    log = dataclasses.replace(log, reward_RK=log.reward_RK * [1.0, 0.0, 0.0])
    log, target = world.with_exposure(
        context_R, log, world.target(context_R, log, TARGET_EXPLORATION), TARGET_EXPLORATION
    )
    own, by_position = (value(ESTIMATORS[name](log, target)) for name in ("ips", "pbm"))
    assert abs(by_position - own) > 0.05


def test_logging_policy_itself_is_worth_its_mean_reward(world):
    _, log = world.log(500, viewers=50, generator=np.random.default_rng(6))
    itself = Target(log.propensity_RK)
    for name in ("ips", "snips"):
        assert value(ESTIMATORS[name](log, itself)) == pytest.approx(log.reward_RK.sum(axis=1).mean(), rel=1e-12)


def test_shorter_slates_count_only_their_own_positions():
    log = LoggedData(
        viewer_R=np.array([1, 2]), shown_RK=np.array([[True, True], [True, False]]), post_RK=np.array([[7, 8], [9, -1]]),
        reward_RK=np.array([[1.0, 4.0], [2.0, 0.0]]), propensity_RK=np.array([[0.5, 0.5], [0.5, 1.0]]), pool_R=np.array([2, 2]),
    )  # fmt: skip
    target = Target(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert value(ESTIMATORS["ips"](log, target)) == pytest.approx((2 * 1.0 + 2 * 4.0) / 2)
    # Position 0 exists in both requests and only the first has weight; position 1 exists in one request of two.
    assert value(ESTIMATORS["snips"](log, target)) == pytest.approx(1.0 + 0.5 * 4.0)


def test_dr_without_a_regression_is_refused_with_a_sentence():
    log = LoggedData(
        np.array([1]), np.ones((1, 1), bool), np.ones((1, 1), int), np.ones((1, 1)), np.ones((1, 1)), np.array([1])
    )
    with pytest.raises(ValueError, match="needs the baseline predictions"):
        ESTIMATORS["dr"](log, Target(np.ones((1, 1))))


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.2, np.nan])
def test_a_propensity_outside_zero_to_one_cannot_enter(wrong):
    with pytest.raises(ValueError, match=r"1 of 2 propensities lie outside \(0, 1\]"):
        LoggedData(
            np.array([1]),
            np.ones((1, 2), bool),
            np.ones((1, 2), int),
            np.ones((1, 2)),
            np.array([[wrong, 0.5]]),
            np.array([2]),
        )
