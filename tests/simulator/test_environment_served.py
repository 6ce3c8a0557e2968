"""The feed pipeline in closed loop with the environment: the object that serves fills the feeds of simulated people."""

from pathlib import Path

import numpy as np
import pytest

from contracts.errors import BadInput
from contracts.tables import ACTIONS, IMPRESSIONS, REQUESTS
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from serving.feed import Models, ValueModel, pool_policy
from simulator.environment import EnvironmentSettings, simulate
from simulator.environment.served import ServedPolicy, served_policy
from tests.simulator.environment_rules import pool_faults, rows
from tests.simulator.judged_log import make_judged_log

SETTINGS = EnvironmentSettings(users=60, days=6, warmup_days=1, requests_per_day=2.0, mean_friends=10, seed=6, daily=True,
                               exploration="none")  # fmt: skip
UNTRAINED = Models(None, None, None, ValueModel.for_tasks(TASK_NAMES), {})


def served(workspace: Workspace, name: str, epsilon: float = 0.0, settings: EnvironmentSettings = SETTINGS) -> dict:
    """A log whose feeds the pipeline fills."""
    policy = ServedPolicy(pool_policy(name, UNTRAINED, settings.live_us), workspace, settings, epsilon)
    return simulate(workspace, settings, policy)


def test_the_pipeline_newest_first_fills_the_same_feeds_as_the_environments_own_order(tmp_path: Path):
    own, piped = Workspace(tmp_path / "own"), Workspace(tmp_path / "piped")
    # Without hides, as only the pipeline keeps away what passes on a post that the viewer hid.
    settings = SETTINGS.model_copy(update={"task_levels": (1.0, 1.0, 1.0, 1.0, 0.0)})
    simulate(own, settings)
    served(piped, "chronological", settings=settings)
    columns = ["request_id", "user_id", "post_id", "position", "viewed_ms", "propensity"]
    assert piped.lake.read(IMPRESSIONS, columns).num_rows > 2000
    assert piped.lake.read(IMPRESSIONS, columns).equals(own.lake.read(IMPRESSIONS, columns))
    assert set(piped.lake.read(IMPRESSIONS)["policy"].to_pylist()) == {"served-chronological"}


def test_the_pipeline_learns_from_the_feeds_that_it_filled(tmp_path: Path):
    workspace = Workspace(tmp_path)
    served(workspace, "popularity")
    lake = workspace.lake
    assert pool_faults(lake, SETTINGS.live_us) == []
    done = {
        (user, post) for user, post, kind in rows(lake.read(ACTIONS), "user_id", "post_id", "kind") if kind == "like"
    }
    liked: dict[int, int] = {}
    for _, post in done:
        liked[post] = liked.get(post, 0) + 1
    midnight = SETTINGS.start_at + 4 * 86_400_000_000
    first, others = [], []
    shown = {r: post for r, post, k in rows(lake.read(IMPRESSIONS), "request_id", "post_id", "position") if k == 0}
    for request, at, pool in rows(lake.read(REQUESTS), "request_id", "requested_at", "candidates"):
        if at > midnight and len(pool) > 8:
            first.append(liked.get(shown[request], 0))
            others.append(np.mean([liked.get(post, 0) for post in pool]))
    assert len(first) > 60
    assert np.mean(first) > 1.3 * np.mean(others)


@pytest.mark.slow
def test_what_serves_with_its_models_fills_the_feeds_of_people_who_wait_for_it(tmp_path: Path):
    models, log = make_judged_log(tmp_path / "models"), Workspace(tmp_path / "log")
    settings = SETTINGS.model_copy(update={"users": 80, "seed": 3})
    simulate(log, settings, served_policy("full:0.3", models, log, settings))
    shown = log.lake.read(IMPRESSIONS)
    assert set(shown["policy"].to_pylist()) == {"epsilon-served-full"}
    assert shown.num_rows > 2000
    assert 0 < shown["propensity"].to_numpy().min() < 0.1 < 0.7 < shown["propensity"].to_numpy().max() <= 1
    assert pool_faults(log.lake, settings.live_us) == []


def test_a_served_policy_with_exploration_logs_the_chance_of_each_place(tmp_path: Path):
    workspace = Workspace(tmp_path)
    served(workspace, "chronological", epsilon=0.5)
    size = {request: len(pool) for request, pool in rows(workspace.lake.read(REQUESTS), "request_id", "candidates")}
    shown = rows(workspace.lake.read(IMPRESSIONS), "request_id", "position", "propensity")
    surplus = [(1 / p - size[request]) / size[request] for request, position, p in shown if position == 0]
    assert abs(np.mean(surplus)) < 4.5 * np.std(surplus) / np.sqrt(len(surplus))
    assert {round(p * size[request] - 0.5, 6) > 0 for request, _, p in shown} == {True, False}


def test_a_log_in_one_piece_cannot_feed_the_pipeline(tmp_path: Path):
    settings = SETTINGS.model_copy(update={"daily": False})
    with pytest.raises(BadInput, match="set daily"):
        ServedPolicy(pool_policy("chronological", UNTRAINED, settings.live_us), Workspace(tmp_path), settings)


def test_a_served_policy_without_its_models_is_refused(tmp_path: Path):
    models = Workspace(tmp_path / "models")
    simulate(models, SETTINGS)
    with pytest.raises(BadInput, match="policy full needs the model prerank and ranker"):
        served_policy("full", models, Workspace(tmp_path), SETTINGS)
    with pytest.raises(BadInput, match="no served policy 'best'"):
        served_policy("best", models, Workspace(tmp_path), SETTINGS)
    with pytest.raises(BadInput, match="epsilon is 'much'"):
        served_policy("chronological:much", models, Workspace(tmp_path), SETTINGS)
