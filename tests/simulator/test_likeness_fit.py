"""The fit of a log: known parameters come back inside their intervals, and what a log cannot tell is said, not made up."""

import dataclasses

import numpy as np
import pytest

from benchmarks.likeness import TRUTH, fit_one, known
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, simulate
from simulator.likeness import fit_log, read_log
from simulator.likeness.ages import fit_lives
from simulator.likeness.estimates import Fit, among_worlds, clustered_covariance, jackknife, share
from simulator.likeness.fit import settings_of
from simulator.likeness.log import Impressions, LoggedLog
from simulator.likeness.looks import fit_examination
from simulator.likeness.populations import fit_hours
from simulator.likeness.rates import fit_rates
from simulator.likeness.returns import fit_posting, fit_returns

KNOWN = TRUTH.model_copy(update={"users": 350, "days": 10, "seed": 77})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LoggedLog:
    workspace = Workspace(tmp_path_factory.mktemp("known"))
    simulate(workspace, KNOWN)
    return read_log(workspace.lake)


def seen(log: LoggedLog) -> Impressions:
    assert log.impressions is not None
    return log.impressions


def blind(log: LoggedLog, *absent: str) -> LoggedLog:
    everything_I = np.ones_like(seen(log).viewed_I)
    shown = dataclasses.replace(seen(log), viewed_I=everything_I)
    return dataclasses.replace(log, impressions=shown, absent=dict.fromkeys(absent, "the log does not say"))


def test_the_examination_exponent_comes_back_from_looks_from_randomisation_and_from_actions_alone(log: LoggedLog):
    reaches = []
    for given in (log, blind(log, "viewed_ms"), blind(log, "viewed_ms", "propensities")):
        fit = Fit()
        fit_examination(given, fit)
        one = fit.estimates["examination exponent"]
        assert one.low <= KNOWN.examination_power <= one.high, fit.methods
        reaches.append(one.high - one.low)
    assert reaches[0] < reaches[1]
    assert reaches[0] < reaches[2]


def test_an_exponent_is_not_fooled_by_fresh_posts_standing_on_top_nor_by_like_posts_that_tire(log: LoggedLog):
    shown = seen(log)
    raw_K = np.bincount(shown.position_I, shown.acted_IA[:, 0]) / np.bincount(shown.position_I)
    raw = -np.polyfit(np.log1p(np.arange(len(raw_K))), np.log(raw_K), 1)[0]
    fit = Fit()
    fit_examination(blind(log, "viewed_ms"), fit)
    fitted = fit.estimates["examination exponent"].value
    assert abs(fitted - KNOWN.examination_power) < abs(raw - KNOWN.examination_power)


def test_half_lives_tails_and_the_pull_of_satisfaction_come_back_inside_their_intervals(log: LoggedLog):
    fit = Fit()
    fit_lives(log, np.ones(1), fit)
    fit_posting(log, fit)
    fit_returns(log, fit)
    fit_hours(log, fit)
    inside = {name: one.low <= known(one) <= one.high for name, one in fit.estimates.items()}
    assert len(inside) >= 30
    assert np.mean(list(inside.values())) >= 0.85, inside
    for name in ("posting tail", "return tail", "end of a session", "pull of satisfaction"):
        one = fit.estimates[name]
        assert abs(one.value - known(one)) <= 1.0 * (one.high - one.low), name


def test_rates_are_the_logs_own_by_tie_strength_and_age(log: LoggedLog):
    fit = Fit()
    fit_rates(log, fit)
    shown = seen(log)
    strangers, close = (fit.estimates[f"like rate: {label}"] for label in ("no friendship", "friends, 3 or more"))
    assert strangers.high < close.low
    fresh, old = (fit.estimates[f"like rate: {label}"] for label in ("2 to 8 h", "4 days or more"))
    assert fresh.value > old.value
    looks = shown.viewed_I.sum()
    assert min(one.low for one in fit.estimates.values()) >= 0.0
    assert shown.acted_IA[:, TASK_NAMES.index("like")].sum() / looks == pytest.approx(
        np.mean([strangers.value, close.value]), abs=0.1
    )


def test_a_log_without_looks_propensities_sessions_or_impressions_is_fitted_as_far_as_it_goes(log: LoggedLog):
    none = np.zeros(0, np.int64)
    bare = dataclasses.replace(
        log, impressions=None, session_user_S=none, session_at_S=none, session_requests_S=none,
        absent={"impressions": "the log has no impressions", "sessions": "the log has no sessions"},
    )  # fmt: skip
    fit, settings = fit_log(bare, worlds=2)
    assert fit.not_fitted["examination"] == fit.not_fitted["half-lives"] == "the log has no impressions"
    assert fit.not_fitted["action rates"] == "the log has no impressions"
    assert fit.not_fitted["return times"] == "the log has no sessions"
    assert settings.examination_power == EnvironmentSettings().examination_power
    assert settings.posting_sigma == fit.estimates["posting tail"].value != EnvironmentSettings().posting_sigma
    assert sum(settings.kind_shares) == pytest.approx(1.0)
    settings.check()


def test_hours_that_a_rule_made_are_not_fitted(log: LoggedLog):
    dataset = dataclasses.replace(log.dataset, derived={"posts.created_at": "a hash"})
    fit = Fit()
    fit_hours(dataclasses.replace(log, dataset=dataset), fit)
    assert fit.estimates == {}
    assert "a rule made posts.created_at" in fit.not_fitted["daily rhythm"]


def test_intervals_hold_what_they_promise_on_draws_that_are_known():
    generator = np.random.default_rng(5)
    hits = {"share": 0, "worlds": 0, "jackknife": 0, "clustered": 0}
    for _ in range(200):
        one = share(int(generator.binomial(300, 0.07)), 300, "")
        hits["share"] += one.low <= 0.07 <= one.high
        worlds = among_worlds(generator.normal() - generator.normal(size=4), "")
        hits["worlds"] += worlds.low <= 0.0 <= worlds.high
        cluster_N = np.repeat(np.arange(150), 6)
        value_N = np.repeat(generator.normal(size=150), 6) + generator.normal(size=900)
        mean, reach = jackknife(cluster_N, lambda kept_N, value_N=value_N: np.array([value_N[kept_N].mean()]))
        hits["jackknife"] += abs(mean[0]) <= reach[0]
        spread = clustered_covariance((value_N - value_N.mean())[:, None], np.array([[900.0]]), cluster_N)[0, 0]
        hits["clustered"] += abs(value_N.mean()) <= 1.96 * np.sqrt(spread)
    # 95% of 200, give or take four standard errors.
    assert all(178 <= count <= 200 for count in hits.values()), hits


def test_known_parameters_come_back_inside_their_intervals_of_one_log():
    found = fit_one(users=200, days=8, worlds=3, seed=500)
    inside = [one.estimate.low <= one.truth <= one.estimate.high for one in found]
    assert len(found) >= 50
    assert np.mean(inside) >= 0.85, [one for one, hit in zip(found, inside) if not hit]
    levels = [one for one in found if one.group in ("levels by task", "slopes with tie strength")]
    assert len(levels) >= 8


def test_what_is_given_goes_before_what_the_log_says(log: LoggedLog):
    fit = Fit()
    fit_posting(log, fit)
    given = {"users": 55, "posting_sigma": 0.3, "life_hours": [9.0] * 6, "policy": "random", "exploration": "none"}
    settings = settings_of(log, fit, given)
    assert (settings.users, settings.days, settings.posting_sigma) == (55, 10, 0.3)
    assert settings.life_hours == (9.0,) * 6
    assert settings.policy == "random"
    assert settings.posts_per_day == fit.estimates["posts per day"].value


@pytest.mark.slow
def test_known_parameters_come_back_inside_their_intervals_of_several_logs():
    hits: dict[str, list[bool]] = {}
    seeds = range(600, 603)
    for seed in seeds:
        for one in fit_one(users=240, days=10, worlds=3, seed=seed):
            hits.setdefault(one.group, []).append(one.estimate.low <= one.truth <= one.estimate.high)
    assert np.mean([hit for group in hits.values() for hit in group]) >= 0.9
    for group, ones in hits.items():
        assert np.mean(ones) >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / len(seeds)), group
