"""Intervals cover the truth as often as they say, because they resample viewers and renormalise."""

import dataclasses

import numpy as np
import pytest

from simulator.evaluation import (
    ESTIMATORS,
    Target,
    overlap,
    percentile_interval,
    propensity_check,
    replicates,
    student_interval,
    value,
    viewer_counts,
)
from simulator.evaluation.estimators import combine
from tests.simulator.slate_world import SlateWorld

EXPLORATION = 0.1


@pytest.fixture(scope="module")
def world() -> SlateWorld:
    return SlateWorld.make(np.random.default_rng(5))


def coverage(world: SlateWorld, name: str, interval, logs: int = 250) -> tuple[float, float]:
    """Share of logs whose interval holds the truth, and the mean width."""
    generator = np.random.default_rng(17)
    truth = world.true_value(EXPLORATION)
    hits, widths = [], []
    for _ in range(logs):
        context_R, log = world.log(300, viewers=60, generator=generator)
        terms = ESTIMATORS[name](log, world.target(context_R, log, EXPLORATION))
        low, high = interval(terms, log.viewer_R, generator)
        hits.append(low <= truth <= high)
        widths.append(high - low)
    return float(np.mean(hits)), float(np.mean(widths))


def bootstrap(terms, viewer_R, generator):
    return percentile_interval(replicates(terms, viewer_R, viewer_counts(viewer_R, 300, generator)))


def student(terms, viewer_R, generator):
    return student_interval(terms, viewer_R)


@pytest.mark.parametrize("name", ["ips", "snips"])
@pytest.mark.parametrize("interval", [bootstrap, student])
def test_95_percent_interval_covers_the_truth_in_about_95_percent_of_logs(world, name, interval):
    covered, _ = coverage(world, name, interval)
    assert 0.90 <= covered <= 0.99  # 250 logs: one standard error is 0.014


def test_interval_that_ignores_viewers_is_too_narrow():
    """Planted: each viewer has one level of reward in all his requests; single requests as units forget that."""
    generator = np.random.default_rng(8)
    world = SlateWorld.make(generator)
    viewer_R = np.repeat(np.arange(40), 20)
    _, log = world.log(800, viewers=40, generator=generator)
    level_R = generator.random(40)[viewer_R]
    log = dataclasses.replace(log, viewer_R=viewer_R, reward_RK=np.repeat(level_R[:, None], 3, axis=1))
    terms = ESTIMATORS["snips"](log, Target(log.propensity_RK))
    clustered = bootstrap(terms, viewer_R, generator)
    single = bootstrap(terms, np.arange(800), generator)
    assert clustered[1] - clustered[0] > 3 * (single[1] - single[0])


def test_every_resample_is_renormalised(world):
    """A resample's SNIPS is that of the resampled log, not its weighted sum over one fixed mean weight."""
    context_R, log = world.log(200, viewers=30, generator=np.random.default_rng(9))
    target = world.target(context_R, log, EXPLORATION)
    terms = ESTIMATORS["snips"](log, target)
    counts_BV = viewer_counts(log.viewer_R, 5, np.random.default_rng(1))
    got_B = replicates(terms, log.viewer_R, counts_BV)
    _, viewer = np.unique(log.viewer_R, return_inverse=True)
    fixed_weight = terms.weight_RK.mean(axis=0, keepdims=True)
    for b in range(5):
        rows = np.repeat(np.arange(200), counts_BV[b, viewer].astype(int))
        resampled = dataclasses.replace(
            log,
            **{
                name: getattr(log, name)[rows]
                for name in ("viewer_R", "shown_RK", "post_RK", "reward_RK", "propensity_RK", "pool_R")
            },
        )
        assert got_B[b] == pytest.approx(
            value(ESTIMATORS["snips"](resampled, Target(target.probability_RK[rows]))), rel=1e-12
        )
        wrong = combine(np.zeros((1, 1)), terms.weighted_RK[rows].sum(0, keepdims=True), fixed_weight * len(rows),
                        terms.shown_RK[rows].sum(0, keepdims=True), np.array([len(rows)]), True)  # fmt: skip
        assert abs(wrong[0] - got_B[b]) > 1e-6


def test_propensities_twice_too_high_get_a_sentence_since_weights_then_average_a_half(world):
    context_R, log = world.log(3000, viewers=300, generator=np.random.default_rng(9))
    target = world.target(context_R, log, exploration=0.5)
    assert overlap(log, target).refusal is None
    doubled = dataclasses.replace(log, propensity_RK=np.minimum(2 * log.propensity_RK, 1.0))
    assert "importance weights average 0.5" in overlap(doubled, target).refusal
    assert overlap(doubled, target).unsupported_share == pytest.approx(0.5, abs=0.03)
    halved = dataclasses.replace(log, propensity_RK=log.propensity_RK / 2)
    assert "so the propensities are not true" in overlap(halved, target).refusal


def test_log_without_overlap_gets_a_sentence_and_no_estimate(world):
    context_R, log = world.log(400, viewers=30, generator=np.random.default_rng(9))
    never = Target(np.zeros_like(log.propensity_RK))
    assert "at position 0 the log has 0.0 effective samples" in overlap(log, never).refusal
    assert overlap(log, world.target(context_R, log, EXPLORATION)).refusal is None
    outside = Target(log.propensity_RK, outside_R=np.full(400, 0.3))
    assert "30.0% of the posts that the policy shows lie outside the logged pools" in overlap(log, outside).refusal


def test_effective_samples_of_the_logging_policy_are_all_its_impressions(world):
    _, log = world.log(400, viewers=30, generator=np.random.default_rng(9))
    seen = overlap(log, Target(log.propensity_RK))
    assert seen.effective_samples == pytest.approx((400, 400, 400))
    assert seen.mean_weight == pytest.approx(1.0) == seen.largest_weight


def test_propensities_of_another_policy_fail_the_check(world):
    _, log = world.log(2000, viewers=30, generator=np.random.default_rng(9))
    assert propensity_check(log)["passed"]
    wrong = dataclasses.replace(log, propensity_RK=log.propensity_RK / 2)
    assert not propensity_check(wrong)["passed"]
    assert "no chance of being shown" in propensity_check(dataclasses.replace(log, pool_R=log.pool_R * 2))["sentence"]
    assert "are not those of the policy" in propensity_check(wrong)["sentence"]
