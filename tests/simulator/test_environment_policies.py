"""Policies in closed loop: their propensities are those with which slates come about, and they know only what is past."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import BadInput
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS, REQUESTS
from contracts.workspace import Workspace
from feedloop.cli import main
from simulator.environment import EnvironmentSettings, simulate
from simulator.environment.plackett_luce import draw_order, position_propensities
from simulator.environment.policies import Chronological, Popularity, policy_settings
from simulator.environment.policy import Chosen, Outcome, PlackettLuce, Requests, check_chosen
from tests.simulator.environment_rules import rows

SETTINGS = EnvironmentSettings(
    users=90, days=7, warmup_days=1, requests_per_day=2.0, mean_friends=12, slate_size=4, seed=9
)


def enumerated(weight_M: np.ndarray, positions: int) -> np.ndarray:
    """Probability (K, M) of each post at each position, summed over all orders of the first posts."""
    chance_KM = np.zeros((positions, len(weight_M)))
    for order in permutations(range(len(weight_M)), positions):
        chance, left = 1.0, weight_M.sum()
        for post in order:
            chance, left = chance * weight_M[post] / left, left - weight_M[post]
        chance_KM[np.arange(positions), order] += chance
    return chance_KM


@pytest.mark.parametrize(("posts", "positions", "spread"), [(5, 3, 1.0), (5, 5, 3.0), (6, 2, 7.0), (4, 4, 0.0)])
def test_plackett_luce_propensities_are_the_sum_over_all_orders(
    posts: int, positions: int, spread: float, rng: np.random.Generator
):
    logit_M = spread * rng.normal(size=posts)
    expected_KM = enumerated(np.exp(logit_M), positions)
    orders = np.array(list(permutations(range(posts), positions)))
    found_NK = position_propensities(np.tile(logit_M, (len(orders), 1)), orders)
    np.testing.assert_allclose(found_NK, expected_KM[np.arange(positions), orders], atol=2e-10)


def test_drawn_plackett_luce_orders_have_the_declared_propensities(rng: np.random.Generator):
    pool_NM = np.tile([11, 12, 13, 14, 15, -1], (40_000, 1))
    created_NM = np.tile([1.0, 2.5, 0.5, 3.0, 1.2, 0.0], (40_000, 1)) * 86_400e6
    requests = Requests(np.arange(40_000), np.full(40_000, 4 * 86_400_000_000), pool_NM, pool_NM, created_NM, 3)
    chosen = PlackettLuce(Chronological(), 0.8).choose(rng, requests)
    assert chosen.slot_NK.max() == 4
    for position in range(3):
        for slot in range(5):
            there_N = chosen.slot_NK[:, position] == slot
            declared = chosen.propensity_NK[there_N, position]
            assert np.ptp(declared) < 1e-12
            assert there_N.mean() == pytest.approx(declared[0], abs=0.012)


def test_empty_slots_are_never_drawn_before_posts_and_have_no_propensity(rng: np.random.Generator):
    logit_NM = np.tile([-np.inf, 0.3, -np.inf, 2.0], (500, 1))
    assert set(draw_order(rng, logit_NM)[:, :2].ravel()) == {1, 3}
    found_NK = position_propensities(np.array([[-np.inf, 0.0, -np.inf, 0.0]]), np.array([[3, 1, -1]]))
    np.testing.assert_allclose(found_NK, [[0.5, 0.5, 0.0]], atol=1e-9)


@pytest.mark.parametrize("text", ["popularity:0.5", "chronological:pl=2", "random"])
def test_inverse_propensities_of_a_log_average_the_size_of_the_pool_at_every_position(text: str, tmp_path: Path):
    lake = Workspace(tmp_path).lake
    report = simulate(Workspace(tmp_path), SETTINGS.model_copy(update=policy_settings(text)))
    assert report["counts"]["requests"] > 800
    size = {request: len(pool) for request, pool in rows(lake.read(REQUESTS), "request_id", "candidates")}
    shown = lake.read(IMPRESSIONS)
    for position in range(SETTINGS.slate_size):
        here = [
            (1 / p - size[r]) / size[r]
            for r, k, p in rows(shown, "request_id", "position", "propensity")
            if k == position
        ]
        assert abs(np.mean(here)) < 4.5 * np.std(here) / np.sqrt(len(here)) + 1e-9


def test_the_log_names_the_policy_and_the_plain_one_is_sure_of_its_slates(tmp_path: Path):
    simulate(Workspace(tmp_path), SETTINGS.model_copy(update=policy_settings("popularity")))
    shown = Workspace(tmp_path).lake.read(IMPRESSIONS)
    assert set(shown["policy"].to_pylist()) == {"popularity"}
    assert set(shown["propensity"].to_pylist()) == {1.0}


class Watchful:
    """Puts the posts in the order of their ids, and notes what it was told."""

    name = "watchful"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[tuple[int, int]] = []

    def choose(self, rng: np.random.Generator, requests: Requests) -> Chosen:
        """The first posts of each pool."""
        assert (requests.created_at_NM < requests.requested_at_N[:, None]).all()
        if self.told:
            assert requests.requested_at_N.min() > max(last for _, last in self.told)
        self.asked.append(len(requests.user_id_N))
        slot_NK = np.where(requests.pool_NM >= 0, np.arange(requests.pool_NM.shape[1]), -1)[:, : requests.slate_size]
        return Chosen(slot_NK, (slot_NK >= 0) * 1.0)

    def observe(self, outcome: Outcome) -> None:
        """Notes the day's span and clicks."""
        if len(outcome.requested_at_N):
            self.told.append((int(outcome.acted_NKA[..., 0].sum()), int(outcome.requested_at_N.max())))


def test_any_object_can_serve_the_feeds_and_learns_of_each_day_once_it_is_over(tmp_path: Path):
    policy, workspace = Watchful(), Workspace(tmp_path)
    simulate(workspace, SETTINGS, policy)
    lake = workspace.lake
    assert set(lake.read(IMPRESSIONS)["policy"].to_pylist()) == {"watchful"}
    assert sum(policy.asked) >= lake.manifest(REQUESTS).rows
    assert len(policy.told) == SETTINGS.days
    pools = dict(rows(lake.read(REQUESTS), "request_id", "candidates"))
    for request, position, post in rows(lake.read(IMPRESSIONS), "request_id", "position", "post_id"):
        assert post == pools[request][position]
    clicks = sum(kind == "click" for kind in lake.read(ACTIONS)["kind"].to_pylist())
    assert clicks == pytest.approx(sum(count for count, _ in policy.told), rel=0.02)


@pytest.mark.parametrize(
    ("slot_1K", "propensity_1K", "words"),
    [
        ([[0, 0, -1]], [[1, 1, 0]], "a post twice"), ([[3, 1, -1]], [[1, 1, 0]], "outside the pool"),
        ([[2, 1, 0]], [[1, 1, 1]], "outside the pool"), ([[-1, 1, 0]], [[0, 1, 1]], "a gap"),
        ([[1, 0, -1]], [[0.4, 0, 0]], "not in \\(0, 1\\]"), ([[1, 0, -1]], [[1.2, 1, 0]], "not in \\(0, 1\\]"),
        ([[1, 0]], [[1, 1, 1]], "with slates \\(1, 2\\)"),
    ],
)  # fmt: skip
def test_slates_that_no_policy_can_mean_stop_the_run(slot_1K: list, propensity_1K: list, words: str):
    pool_1M = np.array([[7, 8, -1]])
    requests = Requests(np.array([5]), np.array([9]), pool_1M, pool_1M, pool_1M, 3)
    check_chosen("own", requests, Chosen(np.array([[1, 0, -1]]), np.array([[1.0, 0.3, 0.0]])))
    with pytest.raises(BadInput, match=words):
        check_chosen("own", requests, Chosen(np.array(slot_1K), np.array(propensity_1K)))


def test_popularity_ranks_by_what_was_done_until_yesterday(tmp_path: Path):
    policy = Popularity(first_post_id=100, posts=3)
    requests = Requests(
        np.array([1]), np.array([9]), np.array([[100, 101, 102]]), np.zeros((1, 3)), np.zeros((1, 3)), 2
    )
    assert np.ptp(policy.scores(requests)) == 0
    acted_NKA = np.zeros((2, 2, 5), bool)
    acted_NKA[:, 1, 1] = True
    policy.observe(
        Outcome(np.array([1, 2]), np.array([8, 8]), np.array([[102, 101], [102, 101]]), acted_NKA[..., 1], acted_NKA)
    )
    assert np.argsort(policy.scores(requests)[0]).tolist() == [2, 0, 1]


def test_the_same_seed_gives_the_same_bytes_under_plackett_luce(tmp_path: Path):
    settings = SETTINGS.model_copy(update={"days": 5, **policy_settings("popularity:pl=0.7")})
    hashes = [simulate(Workspace(tmp_path / name), settings)["content_hashes"] for name in "ab"]
    assert hashes[0] == hashes[1]
    assert Workspace(tmp_path / "a").lake.manifest(POSTS).rows > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [("cleverness", "no policy 'cleverness'"), ("random:high", "is not NAME"), ("ties:pl=warm", "is not NAME")],
)
def test_an_unknown_policy_is_refused_by_its_name(text: str, words: str):
    with pytest.raises(BadInput, match=words):
        policy_settings(text)


def test_a_temperature_of_nothing_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="temperature is 0.0"):
        simulate(Workspace(tmp_path / "w"), SETTINGS.model_copy(update=policy_settings("ties:pl=0")))
    assert not (tmp_path / "w").exists()


def test_the_command_takes_a_policy_with_its_exploration(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = ["--users", "40", "--days", "12", "--set", "mean_friends=8", "--workspace", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--policy", "popularity:0.25", *sizes])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["counts"]["users"] == 40
    assert set(Workspace(tmp_path).lake.read(IMPRESSIONS)["policy"].to_pylist()) == {"epsilon-popularity"}


def test_the_command_names_an_unknown_policy_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--policy", "cleverness", "--workspace", str(tmp_path / "w")])
    assert ended.value.code == 2
    assert "no policy 'cleverness'" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()
