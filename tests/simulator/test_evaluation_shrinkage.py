"""Estimators with a hyperparameter, and the rule that picks it without looking at the truth."""

import dataclasses

import numpy as np
import pytest

from benchmarks.known_world import KnownWorld
from simulator.evaluation import ESTIMATORS, FAMILIES, LoggedData, Target, slope, value


@pytest.fixture(scope="module")
def drawn():
    generator = np.random.default_rng(5)
    world = KnownWorld.make(generator, contexts=4, posts=4, exploration=0.2, spread=0.0)
    policy_CS = world.policies(10, generator)[9]
    sampled = world.draw(3000, 600, generator)
    return sampled.log, world.target(sampled, policy_CS), world.true_value(policy_CS)


@pytest.mark.parametrize(
    ("family", "hyperparameter", "limit"),
    [("clipped_ips", np.inf, "ips"), ("clipped_dr", np.inf, "dr"), ("clipped_dr", 0.0, "dm"), ("switch_dr", np.inf, "dr"),
     ("switch_dr", 0.0, "dm"), ("dros", np.inf, "dr"), ("dros", 0.0, "dm"), ("dros", 1e12, "dr"), ("sg_ips", 0.0, "ips"),
     ("sg_dr", 0.0, "dr")],
)  # fmt: skip
def test_at_its_limits_a_family_is_the_plain_estimator(drawn, family, hyperparameter, limit):
    log, target, _ = drawn
    limited = value(FAMILIES[family].estimator(log, target, hyperparameter))
    assert limited == pytest.approx(value(ESTIMATORS[limit](log, target)), rel=1e-9)


def test_one_impression_by_hand():
    """Weight 4, reward 1, prediction .5 logged and .7 for the target."""
    log = LoggedData(np.array([1]), np.ones((1, 1), bool), np.ones((1, 1), int), np.ones((1, 1)), np.full((1, 1), 0.25),
                     np.array([4]), baseline_RK=np.full((1, 1), 0.5))  # fmt: skip
    target = Target(np.ones((1, 1)), np.full((1, 1), 0.7))
    by_hand = {("clipped_ips", 3.0): 3.0, ("clipped_dr", 3.0): 0.7 + 3 * 0.5, ("switch_dr", 3.9): 0.7, ("switch_dr", 4.0): 0.7 + 4 * 0.5,
               ("dros", 10.0): 0.7 + 40 / 26 * 0.5, ("sg_ips", 0.1): 4 / 1.3, ("sg_dr", 0.1): 0.7 + 4 / 1.3 * 0.5}  # fmt: skip
    for (family, hyperparameter), expected in by_hand.items():
        assert value(FAMILIES[family].estimator(log, target, hyperparameter)) == pytest.approx(expected, rel=1e-12)


def test_a_post_that_the_target_never_shows_has_no_weight_even_with_the_heaviest_shrinkage(drawn):
    log, target, _ = drawn
    never = dataclasses.replace(target, probability_RK=np.zeros_like(target.probability_RK))
    assert value(FAMILIES["sg_ips"].estimator(log, never, 1.0)) == 0.0


def test_slope_keeps_the_correction_where_the_regression_is_wrong_and_drops_it_where_it_is_right(drawn):
    log, target, truth = drawn
    right = slope(FAMILIES["dros"], log, target)
    assert right.hyperparameter == 0.0
    wrong_log = dataclasses.replace(log, baseline_RK=log.baseline_RK * 0.3)
    wrong = slope(FAMILIES["dros"], wrong_log, dataclasses.replace(target, baseline_RK=target.baseline_RK * 0.3))
    assert wrong.hyperparameter > 1.0
    assert abs(value(wrong.terms) - truth) < 0.1 < abs(0.3 * truth - truth)
