"""Estimators that look at slates from the top down, in a world where a post takes from the like posts below it."""

import dataclasses

import numpy as np
import pytest

from benchmarks.known_world import KnownWorld
from simulator.evaluation import ESTIMATORS, SLATE_ESTIMATORS, LoggedData, Target, value

ALL = {**ESTIMATORS, **SLATE_ESTIMATORS}
NAMES = ("ips", "sips", "snsips", "rips", "snrips", "cascade_dr", "sncascade_dr")


@pytest.fixture(scope="module")
def tired() -> dict[str, tuple[np.ndarray, float]]:
    """Estimates of 150 logs by each estimator, and the true value, where every like post above takes four fifths of the reward."""
    generator = np.random.default_rng(5)
    world = KnownWorld.make(generator, contexts=4, posts=4, exploration=0.8, fatigue=0.2, spread=0.0)
    policy_CS = world.policies(10, generator)[9]
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(150):
        sampled = world.draw(1500, 300, generator)
        target = world.target(sampled, policy_CS)
        for name in NAMES:
            found[name].append(value(ALL[name](sampled.log, target)))
    return {name: (np.array(estimates), world.true_value(policy_CS)) for name, estimates in found.items()}


@pytest.mark.parametrize("name", ["sips", "snsips", "rips", "snrips", "cascade_dr", "sncascade_dr"])
def test_mean_estimate_is_the_brute_force_value_where_posts_above_act_on_those_below(tired, name):
    estimates, truth = tired[name]
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / np.sqrt(len(estimates)) + 0.001


def test_item_position_estimator_is_wrong_where_posts_above_act_on_those_below(tired):
    estimates, truth = tired["ips"]
    assert abs(estimates.mean() - truth) > 8 * estimates.std() / np.sqrt(len(estimates))


def test_cascade_dr_varies_less_than_cascade_weights_alone_and_those_less_than_whole_slates(tired):
    assert tired["cascade_dr"][0].var() < tired["rips"][0].var() < tired["sips"][0].var()


def test_cascade_dr_with_a_perfect_forecast_and_no_noise_is_exact():
    """Rewards are their expectations; then the correction is nothing and the estimate is the mean over the contexts drawn."""
    generator = np.random.default_rng(6)
    world = KnownWorld.make(generator, contexts=1, posts=4, fatigue=0.5, spread=0.0)
    policy_CS = world.policies(3, generator)[2]
    sampled = world.draw(200, 50, generator)
    logged, chosen = world._to_go(policy_CS, world.reward_CSK)
    at = (sampled.context_R, sampled.slate_R)
    log = dataclasses.replace(sampled.log, reward_RK=world.reward_CSK[at])
    target = dataclasses.replace(
        world.target(sampled, policy_CS), to_go_logged_RK=logged[at], to_go_target_RK=chosen[at]
    )
    # w (r - Q(logged)) + w Q(target) below telescopes: what a post was forecast to earn below is what is earned below.
    assert value(ALL["cascade_dr"](log, target)) == pytest.approx(world.true_value(policy_CS), rel=1e-12)


def test_self_normalised_cascade_of_constants_is_their_sum_whatever_the_weights():
    """Each of both weights is divided by its own mean: then what is the same in all requests comes out as it is."""
    generator = np.random.default_rng(8)
    world = KnownWorld.make(generator, contexts=2, posts=4)
    sampled = world.draw(100, 20, generator)
    target = world.target(sampled, world.policies(3, generator)[2])
    ones_RK = np.ones_like(sampled.log.reward_RK)
    log = dataclasses.replace(sampled.log, reward_RK=1.5 * ones_RK)
    target = dataclasses.replace(target, to_go_logged_RK=ones_RK, to_go_target_RK=2 * ones_RK)
    assert value(ALL["sncascade_dr"](log, target)) == pytest.approx(3 * 0.5 + 3 * 2.0, rel=1e-12)
    assert abs(value(ALL["cascade_dr"](log, target)) - 7.5) > 0.01


def test_whole_slate_weight_of_a_shorter_slate_is_that_of_its_last_post():
    log = LoggedData(
        np.array([1, 2]), np.array([[True, True], [True, False]]), np.array([[7, 8], [9, -1]]), np.array([[1.0, 2.0], [4.0, 0.0]]),
        np.array([[0.5, 0.5], [0.5, 1.0]]), np.array([2, 2]), prefix_propensity_RK=np.array([[0.5, 0.25], [0.5, np.nan]]),
    )  # fmt: skip
    target = Target(np.ones((2, 2)), prefix_probability_RK=np.array([[1.0, 1.0], [1.0, 0.0]]))
    assert value(ALL["sips"](log, target)) == pytest.approx((4 * 3.0 + 2 * 4.0) / 2)
    assert value(ALL["rips"](log, target)) == pytest.approx((2 * 1.0 + 4 * 2.0 + 2 * 4.0) / 2)


def test_replay_is_the_mean_reward_of_the_requests_that_agree_and_right_for_a_uniform_log():
    generator = np.random.default_rng(2)
    world = KnownWorld.make(generator, contexts=2, posts=4, exploration=1.0, fatigue=0.5, spread=0.0)
    best_C = world.reward_CSK.sum(axis=2).argmax(axis=1)
    always_CS = np.zeros_like(world.logging_CS)
    always_CS[np.arange(2), best_C] = 1.0
    sampled = world.draw(20_000, 2000, generator)
    agreeing = sampled.slate_R == best_C[sampled.context_R]
    estimate = value(
        ALL["replay"](sampled.log, Target(world._at_position(always_CS)[sampled.context_R, sampled.slate_R]))
    )
    assert estimate == pytest.approx(sampled.log.reward_RK[agreeing].sum(axis=1).mean(), rel=1e-12)
    assert estimate == pytest.approx(world.true_value(always_CS), rel=0.1)


def test_replay_of_a_policy_that_varies_is_refused_with_a_count_and_an_example():
    log = LoggedData(np.array([1, 2]), np.ones((2, 1), bool), np.ones((2, 1), int), np.ones((2, 1)), np.full((2, 1), 0.5),
                     np.array([2, 2]))  # fmt: skip
    with pytest.raises(ValueError, match=r"1 of 2 probabilities lie between 0 and 1, such as 0.25"):
        SLATE_ESTIMATORS["replay"](log, Target(np.array([[1.0], [0.25]])))


@pytest.mark.parametrize(
    ("name", "missing"), [("sips", "from the top down"), ("cascade_dr", "predictions of the rewards")]
)
def test_without_what_it_needs_an_estimator_is_refused_with_a_sentence(name, missing):
    one = np.ones((1, 1))
    log = LoggedData(np.array([1]), one > 0, one.astype(int), one, one, np.array([1]))
    with pytest.raises(ValueError, match=missing):
        SLATE_ESTIMATORS[name](log, Target(one))


def test_a_prefix_propensity_of_zero_cannot_enter():
    with pytest.raises(ValueError, match=r"1 of 1 prefix propensities lie outside \(0, 1\], such as 0.0"):
        LoggedData(np.array([1]), np.ones((1, 1), bool), np.ones((1, 1), int), np.ones((1, 1)), np.ones((1, 1)), np.array([1]),
                   prefix_propensity_RK=np.zeros((1, 1)))  # fmt: skip
