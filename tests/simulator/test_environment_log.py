"""The simulated log: deterministic, shown only to whom it may be, complete, and refused for senseless settings."""

from pathlib import Path

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from contracts.errors import BadInput
from contracts.files import hash_file
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, SESSIONS, TOPICS, USERS
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, Truth, simulate
from simulator.environment.lookups import Graph
from simulator.environment.pools import Seen
from simulator.environment.settings import assigned
from simulator.environment.visits import satisfaction_after
from tests.simulator.environment_rules import pool_faults, rows

TINY = EnvironmentSettings(users=80, days=9, warmup_days=2, requests_per_day=1.5, mean_friends=12, seed=3)
SMALL = EnvironmentSettings(users=150, days=12, warmup_days=3, requests_per_day=1.5, mean_friends=16, seed=5)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("environment"))
    simulate(made, SMALL)
    return made


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path):
    first, again, other = Workspace(tmp_path / "a"), Workspace(tmp_path / "b"), Workspace(tmp_path / "c")
    reports = [simulate(first, TINY), simulate(again, TINY), simulate(other, TINY.model_copy(update={"seed": 4}))]
    assert reports[0] == reports[1]
    assert reports[0]["content_hashes"]["impressions"] != reports[2]["content_hashes"]["impressions"]
    for name in ("truth/latents.npz", "truth/truth.json", "lake/dataset.json"):
        assert hash_file(first.root / name) == hash_file(again.root / name)


def test_a_pool_holds_only_posts_that_its_viewer_may_see_and_has_not_seen(workspace: Workspace):
    assert pool_faults(workspace.lake, SMALL.live_us) == []


@pytest.mark.parametrize(
    ("owner", "method", "reason"),
    [(Graph, "hidden", "blocked"), (Graph, "friends", "for friends"), (Seen, "__call__", "seen")],
)
def test_a_broken_rule_shows_as_a_fault_of_the_pools(
    owner: type, method: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answer = method == "friends"
    monkeypatch.setattr(owner, method, lambda self, first_N, *rest: np.full(len(first_N), answer))
    simulate(Workspace(tmp_path), TINY)
    assert any(fault.endswith(reason) for fault in pool_faults(Workspace(tmp_path).lake, TINY.live_us))


def test_impressions_come_from_the_pool_once_each_in_unbroken_positions(workspace: Workspace):
    lake = workspace.lake
    pools = dict(rows(lake.read(REQUESTS), "request_id", "candidates"))
    shown: dict[int, list[int]] = {}
    for request, position, post in sorted(rows(lake.read(IMPRESSIONS), "request_id", "position", "post_id")):
        assert position == len(shown.setdefault(request, []))
        shown[request].append(post)
    assert shown.keys() == pools.keys()
    for request, posts in shown.items():
        assert len(set(posts)) == len(posts) == min(SMALL.slate_size, len(pools[request]))
        assert set(posts) <= set(pools[request])
        assert pools[request] == sorted(set(pools[request]))
        assert len(pools[request]) <= SMALL.pool_size


def test_logged_propensities_are_the_mixture_of_random_and_chronological(workspace: Workspace):
    lake = workspace.lake
    created = dict(rows(lake.read(POSTS), "post_id", "created_at"))
    newest = {
        request: sorted(pool, key=lambda post: (created[post], post), reverse=True)
        for request, pool in rows(lake.read(REQUESTS), "request_id", "candidates")
    }
    columns = ("request_id", "position", "post_id", "propensity")
    for request, position, post, propensity in rows(lake.read(IMPRESSIONS), *columns):
        pool = newest[request]
        expected = SMALL.epsilon / len(pool) + (1 - SMALL.epsilon) * (pool[position] == post)
        assert propensity == pytest.approx(expected, abs=1e-12)


def test_some_rows_reach_the_lake_late_and_none_before_they_happen_or_after_the_end(workspace: Workspace):
    for spec, moment in ((POSTS, "created_at"), (ACTIONS, "occurred_at")):
        table = workspace.lake.read(spec)
        delay = table["known_at"].to_numpy() - table[moment].to_numpy()
        assert delay.min() > 0
        assert 0.005 < (delay > HOUR // 60).mean() < 0.06
        assert table["known_at"].to_numpy().max() < SMALL.end_at


def test_actions_follow_a_viewed_impression_of_the_same_request(workspace: Workspace):
    viewed = {
        (request, user, post): shown
        for request, user, post, shown, looked in rows(
            workspace.lake.read(IMPRESSIONS), "request_id", "user_id", "post_id", "shown_at", "viewed_ms")
        if looked > 0
    }  # fmt: skip
    actions = rows(workspace.lake.read(ACTIONS), "request_id", "user_id", "post_id", "kind", "occurred_at")
    for request, user, post, kind, at in actions:
        if request is None:
            assert kind == "profile"
        else:
            assert at > viewed[request, user, post]
    assert {kind for _, _, _, kind, _ in actions} >= {"click", "like", "comment", "share", "hide", "dwell", "profile"}


def test_chains_end_at_a_post_that_passes_nothing_on_and_keep_its_topic(workspace: Workspace):
    posts = {row["post_id"]: row for row in workspace.lake.read(POSTS).to_pylist()}
    depths = []
    for row in posts.values():
        assert (row["origin_post_id"] is None) == (row["kind"] not in ("share", "quote"))
        assert (row["text"] is None) == (row["kind"] == "share")
        depth, link = 0, row
        while link["origin_post_id"] is not None:
            assert posts[link["origin_post_id"]]["created_at"] < link["created_at"]
            link, depth = posts[link["origin_post_id"]], depth + 1
        assert link["topic"] == row["topic"]
        depths.append(depth)
    assert max(depths) >= 2


def test_people_write_and_read_only_after_they_registered(workspace: Workspace):
    registered = dict(rows(workspace.lake.read(USERS), "user_id", "registered_at"))
    assert max(registered.values()) > SMALL.start_at
    assert all(at > registered[author] for author, at in rows(workspace.lake.read(POSTS), "author_id", "created_at"))
    assert all(at > registered[user] for user, at in rows(workspace.lake.read(REQUESTS), "user_id", "requested_at"))
    for user, friend, since in rows(workspace.lake.read(FRIENDSHIPS), "user_id", "friend_id", "since"):
        assert since >= max(registered[user], registered[friend])


def test_sessions_hold_every_request(workspace: Workspace):
    sessions = workspace.lake.read(SESSIONS)
    assert sum(sessions["requests"].to_pylist()) == workspace.lake.manifest(REQUESTS).rows
    assert workspace.lake.manifest(TOPICS).rows == 24


def test_a_good_day_raises_satisfaction_a_bad_one_lowers_it_and_absence_changes_nothing():
    before_U = np.array([0.1, 0.1, 0.1])
    after_U, usual = satisfaction_after(before_U, np.array([9.0, -3.0, 0.0]), np.array([1, 1, 0]), usual=3.0)
    assert after_U[0] > 0.1 > after_U[1]
    assert after_U[2] == 0.1
    assert usual == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": 0}, "users is 0"), ({"days": -3}, "days is -3"), ({"slate_size": 30}, "slate_size is 30"),
        ({"epsilon": 0.0}, "epsilon is 0.0"), ({"warmup_days": 40}, "warmup_days is 40"),
        ({"posts_per_day": 0.0}, "posts_per_day is 0.0"), ({"days": 3, "warmup_days": 0}, "too short"),
    ],
)  # fmt: skip
def test_senseless_settings_are_refused_with_their_value_and_nothing_is_written(
    change: dict, words: str, tmp_path: Path
):
    with pytest.raises(BadInput, match=words):
        simulate(Workspace(tmp_path / "w"), TINY.model_copy(update=change))
    assert not (tmp_path / "w").exists()


def test_a_truth_left_by_an_earlier_log_is_refused(tmp_path: Path):
    workspace = Workspace(tmp_path)
    simulate(workspace, TINY)
    assert Truth.exists(workspace)
    posts = workspace.lake.read(POSTS)
    workspace.lake.write(POSTS, posts.slice(1))
    assert not Truth.exists(workspace)
    with pytest.raises(BadInput, match="holds no truth of the log"):
        Truth.load(workspace)


def test_a_day_has_a_rhythm_and_the_log_spans_all_its_days(workspace: Workspace):
    at_N = workspace.lake.read(REQUESTS)["requested_at"].to_numpy()
    by_hour = np.bincount((at_N % DAY) // HOUR, minlength=24)
    assert by_hour[18:22].sum() > 4 * by_hour[1:5].sum()
    assert len(np.unique((at_N - SMALL.start_at) // DAY)) == SMALL.days


def test_settings_are_read_from_words_and_a_word_that_sets_nothing_is_named():
    read = assigned(["examination=cascade", "tie_growth=2", "life_hours=[1,2,3,4,5,6]", "daily=true"])
    settings = EnvironmentSettings(**read)
    assert (settings.examination, settings.tie_growth, settings.life_hours[5], settings.daily) == (
        "cascade",
        2.0,
        6.0,
        True,
    )
    for text, words in (
        ("ties", "'ties' sets nothing"),
        ("tie=2", "'tie=2' sets nothing"),
        ("tie_growth=much", "tie_growth is much"),
    ):
        with pytest.raises(BadInput, match=words):
            assigned([text])
