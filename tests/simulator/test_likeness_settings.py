"""The environment's settings that a log can be fitted with: they move the log and its truth alike, and nonsense is refused."""

import numpy as np
import pytest

from contracts.errors import BadInput
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS, REQUESTS, SESSIONS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, Truth, simulate
from tests.simulator.environment_rules import rows

OTHER = EnvironmentSettings(
    users=250, days=10, warmup_days=2, requests_per_day=1.6, mean_friends=14, seed=11, examination_power=1.0,
    life_hours=(40.0, 5.0, 20.0, 20.0, 20.0, 20.0), task_levels=(1.6, 0.5, 2.0, 1.0, 1.5),
    tie_slopes=(-0.7, 0.8, 0.0, 0.5, 0.0), session_end=0.4, kind_shares=(0.1, 0.7, 0.05, 0.05, 0.05, 0.05),
    visibility_shares=(0.9, 0.06, 0.02, 0.02), hour_weights=(1.0,) * 12 + (0.0,) * 12,
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("other"))
    simulate(made, OTHER)
    return made


def test_the_truth_is_that_of_the_settings_the_log_was_made_with(workspace: Workspace):
    slates: dict[int, list[int]] = {}
    for request, _, post in sorted(rows(workspace.lake.read(IMPRESSIONS), "request_id", "position", "post_id")):
        slates.setdefault(request, []).append(post)
    requests = rows(workspace.lake.read(REQUESTS), "request_id", "user_id", "requested_at")
    posts_NK = np.full((len(requests), OTHER.slate_size), -1)
    for row, (request, _, _) in enumerate(requests):
        posts_NK[row, : len(slates[request])] = slates[request]
    users_N, at_N = np.array([row[1] for row in requests]), np.array([row[2] for row in requests])
    chances = Truth.load(workspace).action_probabilities(users_N, posts_NK, at_N)
    kinds = [kind for request, kind in rows(workspace.lake.read(ACTIONS), "request_id", "kind") if request is not None]
    for name in TASK_NAMES:
        expected = chances[name].sum()
        spread = np.sqrt((chances[name] * (1 - chances[name])).sum())
        assert abs(kinds.count(name) - expected) < 4.5 * spread + 0.01 * expected, name


def test_each_fitted_setting_moves_what_it_names(workspace: Workspace):
    lake = workspace.lake
    position, looked = (lake.read(IMPRESSIONS)[name].to_numpy() for name in ("position", "viewed_ms"))
    assert (looked[position == 0] > 0).all()
    assert (looked[position == 3] > 0).mean() == pytest.approx(0.25, abs=0.03)
    assert lake.read(SESSIONS)["requests"].to_numpy().mean() == pytest.approx(1 / 0.4, rel=0.06)
    kinds, seen = (lake.read(POSTS)[name].to_pylist() for name in ("kind", "visibility"))
    assert kinds.count("photo") / len(kinds) == pytest.approx(0.7, abs=0.04)
    assert seen.count("public") / len(seen) == pytest.approx(0.9, abs=0.03)
    hours = lake.read(POSTS)["created_at"].to_numpy() // 3_600_000_000 % 24
    assert hours.max() == 11


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("examination_power", -0.1, "examination_power is -0.1"),
        ("examination_power", float("nan"), "examination_power is nan"),
        ("session_end", 0.0, "session_end is 0.0"),
        ("life_hours", (8.0, 30.0), "life_hours has 2 values; it takes 6"),
        ("life_hours", (0.0,) * 6, "life_hours holds 0.0; that is too small"),
        ("task_levels", (1.0, -1.0, 1.0, 1.0, 1.0), "task_levels holds -1.0"),
        ("kind_shares", (0.5,) * 6, "kind_shares sum to 3.0"),
        ("hour_weights", (0.0,) * 24, "hour_weights are all 0"),
    ],
)
def test_settings_that_no_log_can_have_are_refused(name: str, value: object, sentence: str):
    with pytest.raises(BadInput, match=sentence):
        EnvironmentSettings(**{name: value}).check()
