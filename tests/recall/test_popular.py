"""Popularity: decayed as declared, local first, and a start for new posts."""

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from recall.popular import PopularCounts
from recall.settings import PopularSettings

NOW = 20_000 * DAY
HALF = 24 * HOUR
PLAIN = PopularSettings(city_weight=0.0, channel_weight=0.0)


def counts(posts=4, channels=(1, 1, 2, 2)):
    return PopularCounts(np.arange(posts), np.array(channels), ("oslo", "lima"), HALF, NOW - 10 * DAY)


def test_the_forward_decayed_score_is_the_decayed_sum(rng):
    rows, weights = rng.integers(0, 4, 200), rng.random(200)
    at = NOW - rng.integers(0, 10 * DAY, 200)
    there = counts()
    there.add(rows, weights, np.full(200, -1), at)
    expected = [(weights * 2.0 ** (-(NOW - at) / HALF))[rows == row].sum() for row in range(4)]
    assert there.scores(np.arange(4), -1, NOW, PLAIN) == pytest.approx(expected, rel=1e-9)


def test_years_of_engagement_move_the_anchor_and_change_no_score():
    there = counts()
    years = np.arange(0, 2000, 10) * DAY + NOW
    for at in years:
        there.add(np.array([1]), np.ones(1), np.array([0]), np.array([at]))
    end = int(years[-1])
    expected = (2.0 ** (-(end - years) / HALF)).sum()
    assert there.scores(np.array([1]), -1, end, PLAIN)[0] == pytest.approx(expected, rel=1e-9)


def test_the_city_decides_where_it_has_a_say_and_everybody_elsewhere():
    there = counts(channels=(1, 2, 3, 4))
    there.add(np.array([0, 0, 0, 1, 1]), np.ones(5), np.array([0, 0, 0, 1, 1]), np.full(5, NOW))
    settings = PopularSettings(city_weight=2.0, channel_weight=0.0)
    oslo, lima, unknown = (
        there.scores(np.arange(2), there.city_code(city), NOW, settings) for city in ("oslo", "lima", "rome")
    )
    assert oslo[0] > oslo[1] and lima[1] > lima[0] and unknown[0] > unknown[1]


def test_a_new_post_of_a_popular_channel_starts_above_one_of_a_channel_nobody_knows():
    there = counts()
    there.add(np.array([0]), np.ones(1), np.array([-1]), np.array([NOW]))
    there.add_posts(np.array([10, 11]), np.array([1, 99]))
    scores = there.scores(there.rows(np.array([10, 11])), -1, NOW, PopularSettings())
    assert scores[0] > 0 == scores[1]


def test_adding_posts_moves_no_count():
    there = counts()
    there.add(np.arange(4), np.arange(1.0, 5.0), np.array([0, 1, 0, 1]), np.full(4, NOW))
    before = there.scores(there.rows(np.arange(4)), 0, NOW, PopularSettings())
    there.add_posts(np.array([-5, 2, 100]), np.array([2, 2, 7]))
    assert there.scores(there.rows(np.arange(4)), 0, NOW, PopularSettings()) == pytest.approx(before)
