"""Figures of others, on the same logs: the published one of the Open Bandit sample, and those of the package obp 0.5.7.

`obp_figures.json` holds what obp 0.5.7 returned (`scripts/peers.sh obp`; `python -m benchmarks.evaluation` compares live).
"""

import json
from pathlib import Path

import pytest

from benchmarks.obp_agreement import bandit_points, open_bandit_logs, slate_logs, slate_points
from benchmarks.open_bandit import load
from simulator.evaluation import ESTIMATORS, value

FIGURES = json.loads(Path(__file__).with_name("obp_figures.json").read_text())


@pytest.mark.data
def test_open_bandit_sample_gives_the_published_ips_value(shared_data):
    """Random log, Bernoulli Thompson sampling as target, campaign all: IPW 0.004553, relative error 0.084."""
    sample = load(shared_data / "obd-sample", "all", "random to bts")
    estimate = value(ESTIMATORS["ips"](sample.logged(), sample.target()))
    assert estimate == pytest.approx(0.00455288, abs=5e-9)
    assert abs(estimate - sample.on_policy_value) / sample.on_policy_value == pytest.approx(0.08402, abs=5e-6)
    assert estimate / sample.click_R.mean() == pytest.approx(1.198126, abs=5e-7)


@pytest.mark.data
def test_estimators_of_single_actions_agree_with_obp_on_three_campaigns_in_both_directions(shared_data):
    compared = 0
    for name, log in open_bandit_logs(shared_data / "obd-sample"):
        ours = bandit_points(log.logged(), log.target(), log.fixed_target())
        assert ours == pytest.approx(FIGURES[name], abs=1e-9), name
        compared += len(ours)
    assert compared == 6 * 18


def test_slate_estimators_agree_with_obp_on_slates_whose_posts_tire_of_each_other():
    for name, world, sampled, policy_CS in slate_logs():
        ours = slate_points(sampled.log, world.target(sampled, policy_CS))
        assert ours == pytest.approx(FIGURES[name], abs=1e-9), name
        assert len(ours) == 7
