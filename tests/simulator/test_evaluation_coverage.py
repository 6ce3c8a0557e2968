"""Intervals, errors and order against known truths over many logs; `python -m benchmarks.evaluation` takes more of them."""

import numpy as np
import pytest

from benchmarks.coverage_study import known_world_study
from benchmarks.environment_study import environment_study
from benchmarks.evaluation import APART, FEEDS


@pytest.mark.slow
def test_in_a_world_of_separate_positions_intervals_hold_the_truth_and_policies_come_in_order():
    rows = known_world_study(fatigue=1.0, logs=60, requests=2_000, viewers=1_000, resamples=200, seed=101)
    covered = [rows[name].bootstrap for name in APART]
    # 60 logs, three policies of one log together: one standard error is 2 to 3%. The benchmark's 250 logs say 92 to 95%.
    assert 0.87 < np.mean(covered) < 0.99
    assert all(rows[name].bernstein >= rows[name].student for name in APART)
    assert rows["dr"].error < rows["ips"].error and rows["cascade_dr"].error < rows["rips"].error
    assert min(rows[name].tau for name in APART) > 0.9
    assert rows["dm"].bootstrap < 0.7  # an interval of the direct method knows nothing of its regression's fault


@pytest.mark.slow
def test_in_the_behaviour_environment_exposure_weights_find_the_order_that_position_weights_blur():
    rows = environment_study(logs=30, users=300, viewers=300, resamples=200, seed=103)
    assert np.mean([rows[name].bootstrap for name in FEEDS]) > 0.87
    assert rows["pbm_dr"].tau > 0.9 and rows["pbm_dr"].error < 0.6 * rows["ips"].error
    assert all(rows[name].tau >= 0.8 for name in FEEDS)
