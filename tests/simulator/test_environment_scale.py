"""Many people: a log that is written day by day is whole, and working in pieces changes nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from contracts.clock import DAY
from contracts.lake import Lake
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS, REQUESTS, SESSIONS
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, simulate
from simulator.environment.behaviour import respond
from simulator.environment.people import _mutual_counts
from simulator.environment.pools import Seen
from simulator.environment.truth import Truth
from simulator.environment.writing import DaySink
from tests.simulator.environment_rules import pool_faults, rows

SETTINGS = EnvironmentSettings(users=150, days=9, warmup_days=2, requests_per_day=2.0, mean_friends=16, seed=5)


@pytest.fixture(scope="module")
def by_day(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("by-day"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.environment.settings.WHOLE_LOG_USERS", 100)
        simulate(made, SETTINGS)
    return made


def test_a_log_written_day_by_day_has_every_impression_of_every_request_and_numbers_in_order_of_time(by_day: Workspace):
    lake = by_day.lake
    requests = lake.read(REQUESTS)
    assert requests["request_id"].to_pylist() == list(range(1, requests.num_rows + 1))
    assert (np.diff(requests["requested_at"].to_numpy()) >= 0).all()
    assert len(np.unique(requests["requested_at"].to_numpy() // DAY)) == SETTINGS.days
    slates: dict[int, list[int]] = {}
    for request, position in rows(lake.read(IMPRESSIONS), "request_id", "position"):
        slates.setdefault(request, []).append(position)
    for request, pool in rows(requests, "request_id", "candidates"):
        assert sorted(slates[request]) == list(range(min(SETTINGS.slate_size, len(pool))))
    actions = lake.read(ACTIONS)
    assert actions["action_id"].to_pylist() == list(range(1, actions.num_rows + 1))
    assert (np.diff(actions["occurred_at"].to_numpy()) >= 0).all()
    assert sum(lake.read(SESSIONS)["requests"].to_pylist()) == requests.num_rows


def test_a_log_written_day_by_day_shows_nobody_what_they_may_not_see_or_saw_before(by_day: Workspace):
    assert pool_faults(by_day.lake, SETTINGS.live_us) == []


def test_actions_that_come_a_day_late_are_in_a_log_written_day_by_day(by_day: Workspace):
    shown = dict(zip(*(by_day.lake.read(REQUESTS)[name].to_pylist() for name in ("request_id", "requested_at"))))
    delay = [
        at - shown[request] for request, at in rows(by_day.lake.read(ACTIONS), "request_id", "occurred_at") if request
    ]
    assert 0 < sum(d > DAY for d in delay) < 0.02 * len(delay)


def test_the_same_seed_gives_the_same_bytes_day_by_day(
    by_day: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("simulator.environment.settings.WHOLE_LOG_USERS", 100)
    simulate(Workspace(tmp_path), SETTINGS)
    for spec in (REQUESTS, IMPRESSIONS, ACTIONS, SESSIONS):
        assert Workspace(tmp_path).lake.manifest(spec).content_hash == by_day.lake.manifest(spec).content_hash


def test_a_row_past_midnight_waits_for_its_day_and_both_days_are_kept(tmp_path: Path):
    lake = Lake(tmp_path)
    sink = DaySink(lake, SESSIONS)
    schema, day = SESSIONS.schema, 20_000 * DAY

    def session(user: int, at: int) -> dict:
        return {"user_id": user, "started_at": at, "ended_at": at + 1, "requests": 1}

    sink.add(pa.Table.from_pylist([session(1, day + 5), session(2, day + DAY + 1)], schema), day + DAY)
    sink.add(pa.Table.from_pylist([session(3, day + DAY + 7)], schema), None)
    assert lake.read(SESSIONS)["user_id"].to_pylist() == [1, 2, 3]


def test_what_was_shown_is_remembered_over_midnight_and_forgotten_once_the_post_is_too_old():
    seen = Seen(10)
    seen.add(np.array([3, 4]), np.array([2, 7]))
    seen.end_day(oldest_post=2)
    seen.add(np.array([3]), np.array([9]))
    asked = np.array([3, 3, 4, 4]), np.array([2, 9, 7, 2])
    assert seen(*asked).tolist() == [True, True, True, False]
    seen.end_day(oldest_post=3)
    assert seen(*asked).tolist() == [False, True, True, False]


def test_common_friends_are_the_same_counted_in_pieces_and_by_hand(monkeypatch: pytest.MonkeyPatch):
    pairs = np.array([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [3, 4]])
    friends = [{b for a, b in [*pairs.tolist(), *pairs[:, ::-1].tolist()] if a == user} for user in range(5)]
    monkeypatch.setattr("simulator.environment.people.PAIRS_AT_ONCE", 4)
    assert _mutual_counts(pairs, 5).tolist() == [len(friends[a] & friends[b]) for a, b in pairs]


def test_how_many_requests_are_worked_out_together_changes_nothing(by_day: Workspace, monkeypatch: pytest.MonkeyPatch):
    latents = Truth.load(by_day).latents
    rng = np.random.default_rng(0)
    user_N, slates_NK = rng.integers(0, 150, 50), rng.integers(-1, by_day.lake.manifest(POSTS).rows, (50, 6))
    at_N = np.full(50, SETTINGS.end_at - DAY)
    outcomes = []
    for together in (4096, 7):
        monkeypatch.setattr("simulator.environment.behaviour.REQUESTS_AT_ONCE", together)
        outcomes.append(respond(np.random.default_rng(1), latents, user_N, slates_NK, at_N))
    assert outcomes[0][1].any()
    np.testing.assert_array_equal(outcomes[0][0], outcomes[1][0])
    np.testing.assert_array_equal(outcomes[0][1], outcomes[1][1])
