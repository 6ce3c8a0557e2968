"""Policies compared in pairs, with a correction for how many were tried; the bootstrap for long logs; Bernstein intervals."""

import numpy as np
import pytest

from benchmarks.known_world import KnownWorld
from simulator.evaluation import (
    ESTIMATORS,
    Terms,
    bernstein_interval,
    bootstrap,
    compare,
    holm,
    replicates,
    student_interval,
    value,
    viewer_counts,
)
from simulator.evaluation.streaming import _poisson_one


def terms_of(reward_R: np.ndarray) -> Terms:
    zero = np.zeros((len(reward_R), 1))
    return Terms(reward_R[:, None], zero, zero, np.ones((len(reward_R), 1), bool), False)


@pytest.fixture(scope="module")
def drawn():
    generator = np.random.default_rng(5)
    world = KnownWorld.make(generator, contexts=4, posts=4)
    policies = world.policies(4, generator)
    sampled = world.draw(3000, 400, generator)
    return sampled.log, [world.target(sampled, policy_CS) for policy_CS in policies]


def test_holm_steps_down_through_the_p_values():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.5, 0.6])) == pytest.approx([1.0, 1.0])


def test_ten_policies_as_good_as_the_baseline_rarely_give_a_false_winner_after_correction():
    generator = np.random.default_rng(9)
    viewer_R = np.repeat(np.arange(60), 3)
    found, uncorrected = 0, 0
    for _ in range(200):
        rewards = {f"p{i}": terms_of(generator.normal(size=180)) for i in range(11)}
        base = rewards.pop("p0")
        compared = compare(rewards, base, viewer_R)
        found += any(one.p_holm < 0.05 for one in compared.values())
        uncorrected += any(one.p < 0.05 for one in compared.values())
    assert found / 200 < 0.09  # 5% at most; two standard errors of 200 logs are 3%
    assert uncorrected / 200 > 0.2


def test_differences_are_paired_so_what_all_policies_share_cancels():
    generator = np.random.default_rng(3)
    viewer_R = np.repeat(np.arange(50), 4)
    shared_R = generator.normal(10, 5, size=50)[viewer_R]
    gain = {"better": terms_of(shared_R + 0.1 + generator.normal(0, 0.1, size=200))}
    compared = compare(gain, terms_of(shared_R), viewer_R)["better"]
    low, high = student_interval(gain["better"], viewer_R)
    assert compared.high - compared.low < 0.05 * (high - low)
    assert compared.low < 0.1 < compared.high and compared.p_holm < 0.001


def test_a_policy_that_is_the_baseline_is_no_different_from_it(drawn):
    log, targets = drawn
    same = ESTIMATORS["snips"](log, targets[0])
    one = compare({"same": same}, same, log.viewer_R)["same"]
    assert (one.difference, one.p, one.p_holm) == (0.0, 1.0, 1.0)


def test_bernstein_interval_covers_more_often_than_it_says_and_is_wider_than_students():
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(200):
        terms = terms_of((generator.random(150) < 0.05).astype(float))
        low, high = bernstein_interval(terms, np.arange(150), spread=1.0)
        student = student_interval(terms, np.arange(150))
        assert low < student[0] and student[1] < high
        hits += low <= 0.05 <= high
    assert hits >= 195


def test_bernstein_interval_by_hand():
    """Four viewers with 0, 0, 1, 1: variance 1/3, spread 1, ln(4 / 0.05) nats."""
    terms, nats = terms_of(np.array([0.0, 0.0, 1.0, 1.0])), np.log(80)
    low, high = bernstein_interval(terms, np.arange(4))
    assert (high - low) / 2 == pytest.approx(np.sqrt(2 / 3 * nats / 4) + 7 * nats / 9)
    assert (high + low) / 2 == pytest.approx(0.5)


def test_streaming_bootstrap_has_the_spread_of_the_multinomial_one(drawn):
    log, targets = drawn
    terms = {name: ESTIMATORS[name](log, targets[3]) for name in ("ips", "snips", "dm", "dr", "sndr")}
    streamed = bootstrap(terms, log.viewer_R, 2000, np.random.default_rng(1))
    counts_BV = viewer_counts(log.viewer_R, 2000, np.random.default_rng(2))
    for name, one in terms.items():
        exact_B = replicates(one, log.viewer_R, counts_BV)
        assert streamed[name].std() == pytest.approx(exact_B.std(), rel=0.08)  # sampling error of a spread: 2% each
        assert streamed[name].mean() == pytest.approx(value(one), abs=0.1 * exact_B.std())


def test_streaming_bootstrap_gives_all_policies_the_same_draws_whoever_else_is_asked(drawn):
    log, targets = drawn
    one, other = (ESTIMATORS["snips"](log, targets[i]) for i in (0, 3))
    both = bootstrap({"a": one, "b": other, "again": one}, log.viewer_R, 40, np.random.default_rng(1))
    alone = bootstrap({"b": other}, log.viewer_R, 40, np.random.default_rng(1))
    assert np.array_equal(both["a"], both["again"])
    assert both["b"] == pytest.approx(alone["b"], rel=1e-6)


def test_streaming_bootstrap_takes_viewers_whole():
    """Each viewer has one reward in 20 requests: by request the spread would be about a fifth."""
    viewer_R = np.repeat(np.arange(200), 20)
    level_R = np.random.default_rng(3).random(200)[viewer_R]
    clustered = bootstrap({"x": terms_of(level_R)}, viewer_R, 400, np.random.default_rng(1))["x"].std()
    single = bootstrap({"x": terms_of(level_R)}, np.arange(4000), 400, np.random.default_rng(1))["x"].std()
    assert 3.5 < clustered / single < 5.5


def test_counts_of_a_resample_are_poisson_with_mean_one():
    counts = _poisson_one((300, 3000), np.random.default_rng(0)).ravel()
    assert counts.mean() == pytest.approx(1.0, abs=0.005) and counts.var() == pytest.approx(1.0, abs=0.01)
    assert np.mean(counts == 0) == pytest.approx(np.exp(-1), abs=0.003)
