"""Examination by position: each kind of evidence finds the curve that the rows were drawn from."""

import numpy as np
import pytest

from contracts.features import FEATURES
from pipelines.samples.examination import Examination, SlateRows, estimate_examination, slate_context

TRUTH_K = (1.0 + np.arange(6)) ** -0.6
REQUESTS = 30_000


def slates(
    rng: np.random.Generator, *, looks_logged: bool, recency_bias: float, propensities: bool = True
) -> SlateRows:
    """Requests of six posts; with `recency_bias` the freshest is put first in that share of them, else chance orders."""
    positions = len(TRUTH_K)
    age_RK = rng.exponential(10.0, (REQUESTS, positions))
    chance_RK = rng.random((REQUESTS, positions))
    by_age_R1 = rng.random((REQUESTS, 1)) < recency_bias
    order_RK = np.argsort(np.where(by_age_R1, age_RK, chance_RK), axis=1)
    age_RK = np.take_along_axis(age_RK, order_RK, axis=1)
    rank_RK = np.argsort(np.argsort(age_RK, axis=1), axis=1)
    taste_RK = rng.normal(size=(REQUESTS, positions))
    attraction_RK = 1 / (1 + np.exp(-(-0.6 - 1.1 * (np.log1p(age_RK) - 2.1) + 0.6 * taste_RK)))
    looked_RK = rng.random((REQUESTS, positions)) < TRUTH_K
    engaged_RK = looked_RK & (rng.random((REQUESTS, positions)) < attraction_RK)
    propensity_RK = (1 - recency_bias) / positions + recency_bias * (rank_RK == np.arange(positions))
    given = {
        "post_age_hours": age_RK.ravel(),
        "tie_contacts_14d": np.expm1(np.abs(taste_RK.ravel())),
        "same_city": taste_RK.ravel() > 0,
    }

    def feature(name: str) -> np.ndarray:
        return given.get(name, np.zeros(age_RK.size)).astype(float)

    return SlateRows(
        np.repeat(np.arange(REQUESTS), positions), np.repeat(rng.integers(0, 900, REQUESTS), positions), rng.integers(0, 400, age_RK.size),
        np.tile(np.arange(positions), REQUESTS), looked_RK.ravel() if looks_logged else np.ones(age_RK.size, bool),
        engaged_RK.ravel(), propensity_RK.ravel() if propensities else np.full(age_RK.size, np.nan), feature,
    )  # fmt: skip


def worst(found: Examination | None) -> float:
    assert found is not None
    return float(np.abs(found.curve_K / TRUTH_K - 1).max())


def test_logged_looks_are_the_best_evidence_and_give_the_curve() -> None:
    found = estimate_examination(slates(np.random.default_rng(1), looks_logged=True, recency_bias=0.5))
    assert found is not None and found.method == "viewed"
    assert worst(found) < 0.03
    assert (found.low_K <= TRUTH_K * 1.01).all() and (found.high_K >= TRUTH_K * 0.99).all()


@pytest.mark.parametrize("propensities", [True, False])
def test_actions_alone_give_the_curve_although_the_freshest_post_stands_first(propensities: bool) -> None:
    rows = slates(np.random.default_rng(2), looks_logged=False, recency_bias=0.5, propensities=propensities)
    found = estimate_examination(rows)
    assert found is not None and found.method == ("randomised" if propensities else "clicks")
    assert worst(found) < 0.05
    assert (found.low_K <= TRUTH_K * 1.02).all() and (found.high_K >= TRUTH_K * 0.98).all()


def test_the_raw_rate_of_actions_by_position_is_off_so_the_test_above_can_fail() -> None:
    rows = slates(np.random.default_rng(2), looks_logged=False, recency_bias=0.5)
    rate_K = np.array([rows.engaged_N[rows.position_N == k].mean() for k in range(len(TRUTH_K))])
    assert np.abs(rate_K / rate_K[0] / TRUTH_K - 1).max() > 0.2


def test_a_log_without_looks_or_actions_gives_no_curve_and_says_what_is_missing() -> None:
    rows = slates(np.random.default_rng(3), looks_logged=False, recency_bias=0.0)
    silent = SlateRows(**{**rows.__dict__, "engaged_N": np.zeros(len(rows.engaged_N), bool)})
    assert estimate_examination(silent) is None
    found = estimate_examination(rows, "randomised")
    assert found is not None and found.methods_left["viewed"] == "the log does not say what was looked at"


def test_deep_positions_with_few_rows_share_one_estimate() -> None:
    rows = slates(np.random.default_rng(4), looks_logged=True, recency_bias=0.0)
    deep_N = np.where(rows.request_id_N < 150, rows.position_N + 6, rows.position_N)
    found = estimate_examination(SlateRows(**{**rows.__dict__, "position_N": deep_N}))
    assert found is not None and len(found.curve_K) == 6
    assert found.at(np.array([11]))[0] == found.curve_K[5]


def test_what_stands_above_in_a_slate_is_counted_per_author_and_topic() -> None:
    topic_N = np.array([3.0, 3.0, 4.0, 3.0])
    rows = SlateRows(
        np.array([1, 1, 1, 2]), np.zeros(4, int), np.array([7, 8, 7, 7]), np.array([2, 0, 1, 0]), np.ones(4, bool),
        np.zeros(4, bool), np.ones(4), lambda name: topic_N if name == "post_topic" else np.zeros(4),
    )  # fmt: skip
    same_author_N, same_topic_N = slate_context(rows)
    assert same_author_N.tolist() == [1, 0, 0, 0]
    assert same_topic_N.tolist() == [1, 0, 0, 0]


def test_every_quantity_that_attraction_may_hang_on_is_asked_for() -> None:
    asked: set[str] = set()
    rows = slates(np.random.default_rng(5), looks_logged=False, recency_bias=0.0)
    whole = rows.feature

    def feature(name: str) -> np.ndarray:
        asked.add(name)
        return whole(name)

    estimate_examination(SlateRows(**{**rows.__dict__, "feature": feature}))
    assert {f.name for f in FEATURES if not f.category} <= asked
