"""The environment's truth: it is what the log shows, it can be asked about any slate, and it ranks policies apart."""

from pathlib import Path

import numpy as np
import pytest

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, REQUESTS
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, Truth, simulate
from simulator.environment.policy import draw_slates, mixture_propensities, score_order

SETTINGS = EnvironmentSettings(users=300, days=14, warmup_days=3, requests_per_day=2.0, mean_friends=20, seed=11)
WORTH_A = np.array([task.worth for task in TASKS])


class Logged:
    """Requests with closed windows: viewers, moments, slates, pools and what was done, as arrays."""

    def __init__(self, workspace: Workspace):
        requests = workspace.lake.read(REQUESTS)
        impressions, actions = workspace.lake.read(IMPRESSIONS), workspace.lake.read(ACTIONS)
        count = requests.num_rows
        self.user_N, self.at_N = requests["user_id"].to_numpy(), requests["requested_at"].to_numpy()
        slate_size, largest = SETTINGS.slate_size, SETTINGS.pool_size
        self.slates_NK = np.full((count, slate_size), -1)
        self.shown_NK = np.zeros((count, slate_size), np.int64)
        row, position = impressions["request_id"].to_numpy() - 1, impressions["position"].to_numpy()
        self.slates_NK[row, position] = impressions["post_id"].to_numpy()
        self.shown_NK[row, position] = impressions["shown_at"].to_numpy()
        self.pools_NM = np.full((count, largest), -1)
        for i, pool in enumerate(requests["candidates"].to_pylist()):
            self.pools_NM[i, : len(pool)] = pool
        self.acted_NKA = np.zeros((count, slate_size, len(TASKS)), bool)
        for request, post, kind, at in zip(
            *(actions[name].to_pylist() for name in ("request_id", "post_id", "kind", "occurred_at"))
        ):
            if kind in TASK_NAMES:
                position = int(np.flatnonzero(self.slates_NK[request - 1] == post)[0])
                if at < self.shown_NK[request - 1, position] + DAY:
                    self.acted_NKA[request - 1, position, TASK_NAMES.index(kind)] = True
        self.closed_N = self.at_N < SETTINGS.end_at - DAY - 3_600_000_000


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("truth"))
    simulate(made, SETTINGS)
    return made


@pytest.fixture(scope="module")
def truth(workspace: Workspace) -> Truth:
    return Truth.load(workspace)


@pytest.fixture(scope="module")
def logged(workspace: Workspace) -> Logged:
    return Logged(workspace)


def z_scores(logged: Logged, truth: Truth) -> dict[str, float]:
    """How many standard errors each action's logged mean, and the reward's, lies from the truth's expectation."""
    keep = logged.closed_N
    chances = truth.action_probabilities(logged.user_N[keep], logged.slates_NK[keep], logged.at_N[keep])
    surplus = {name: (logged.acted_NKA[keep][..., i] - chances[name]).sum(axis=1) for i, name in enumerate(TASK_NAMES)}
    reward_N = (logged.acted_NKA[keep] @ WORTH_A).sum(axis=1)
    surplus["reward"] = reward_N - truth.slate_values(logged.user_N[keep], logged.slates_NK[keep], logged.at_N[keep])
    return {name: float(x.mean() / (x.std() / np.sqrt(len(x)))) for name, x in surplus.items()}


def test_logged_actions_and_rewards_have_the_mean_that_the_truth_expects(logged: Logged, truth: Truth):
    assert max(abs(z) for z in z_scores(logged, truth).values()) < 4.0


def test_a_truth_without_slate_fatigue_would_not_explain_the_log(
    logged: Logged, truth: Truth, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("simulator.environment.behaviour._earlier_equal", lambda values, filled: np.zeros(values.shape))
    assert max(abs(z) for z in z_scores(logged, truth).values()) > 6.0


def test_expectations_hold_at_every_position(logged: Logged, truth: Truth):
    keep = logged.closed_N
    click_NK = truth.action_probabilities(logged.user_N[keep], logged.slates_NK[keep], logged.at_N[keep])["click"]
    surplus_NK = logged.acted_NKA[keep][..., 0] - click_NK
    z_K = surplus_NK.mean(axis=0) / (surplus_NK.std(axis=0) / np.sqrt(len(surplus_NK)))
    assert np.abs(z_K).max() < 4.0
    assert click_NK[:, 0].mean() > 1.5 * click_NK[:, -1].mean()


def test_an_empty_position_earns_nothing_and_an_unknown_post_is_refused(logged: Logged, truth: Truth):
    full_N = np.flatnonzero(logged.slates_NK[:, -1] >= 0)[:3]
    user_N, at_N, slates_NK = logged.user_N[full_N], logged.at_N[full_N], logged.slates_NK[full_N]
    slates_NK[:, 2:] = -1
    chances = truth.action_probabilities(user_N, slates_NK, at_N)
    assert all((chances[name][:, 2:] == 0).all() and (chances[name][:, :2] > 0).all() for name in TASK_NAMES)
    slates_NK[1, 1] = 5
    with pytest.raises(BadInput, match="no post 5"):
        truth.slate_values(user_N, slates_NK, at_N)


def test_the_same_author_again_in_a_slate_is_engaged_with_less_and_hidden_more(truth: Truth):
    latents = truth.latents
    authors, counts = np.unique(latents.origin_author_P, return_counts=True)
    first, second = latents.post_ids_P[latents.origin_author_P == authors[counts.argmax()]][:2]
    user_N, at_N = latents.user_ids_U[:50], np.full(50, SETTINGS.end_at - DAY)
    alone = truth.action_probabilities(user_N, np.tile([-1, second], (50, 1)), at_N)
    again = truth.action_probabilities(user_N, np.tile([first, second], (50, 1)), at_N)
    assert (again["like"][:, 1] < 0.7 * alone["like"][:, 1]).all()
    assert (again["hide"][:, 1] > 1.5 * alone["hide"][:, 1]).all()


def past_rates(logged: Logged, pools_NM: np.ndarray, at_N: np.ndarray) -> np.ndarray:
    """Smoothed worth of positive acts per impression (N, M) of each post before a request; no act of its future."""
    request_I, position_I = np.nonzero(logged.slates_NK >= 0)
    post_I, moment_I = logged.slates_NK[request_I, position_I], logged.at_N[request_I] + DAY // 24
    gain_I = (logged.acted_NKA[request_I, position_I] @ np.maximum(WORTH_A, 0)).astype(float)
    first, span = SETTINGS.start_at, (SETTINGS.days + 2) * DAY
    key_I = post_I * span + moment_I - first
    order_I = np.argsort(key_I)
    gains = np.concatenate([[0.0], np.cumsum(gain_I[order_I])])
    base_NM = np.maximum(pools_NM, 0) * span
    low_NM = np.searchsorted(key_I[order_I], base_NM)
    high_NM = np.searchsorted(key_I[order_I], base_NM + (at_N - first)[:, None])
    return (gains[high_NM] - gains[low_NM] + 2.0) / (high_NM - low_NM + 4.0)


def test_values_rise_from_random_over_popular_to_all_knowing(logged: Logged, truth: Truth):
    rng = np.random.default_rng(0)
    late_N = np.flatnonzero(logged.closed_N & (logged.at_N > SETTINGS.start_at + 6 * DAY))[:2000]
    user_N, at_N, pools_NM = logged.user_N[late_N], logged.at_N[late_N], logged.pools_NM[late_N]

    def value(score_NM: np.ndarray) -> float:
        kept_NM = np.where(pools_NM >= 0, score_NM, -np.inf)
        order_NM = np.argsort(-kept_NM, axis=1, kind="stable")[:, : SETTINGS.slate_size]
        return float(truth.slate_values(user_N, np.take_along_axis(pools_NM, order_NM, axis=1), at_N).mean())

    random, popular = value(rng.random(pools_NM.shape)), value(past_rates(logged, pools_NM, at_N))
    best_NK = truth.greedy_slates(user_N, pools_NM, at_N, SETTINGS.slate_size)
    best = float(truth.slate_values(user_N, best_NK, at_N).mean())
    assert 0 < random < 0.92 * popular
    assert popular < 0.75 * best


def test_greedy_slates_take_each_post_of_the_pool_once(logged: Logged, truth: Truth):
    rows_N = slice(0, 40)
    slates_NK = truth.greedy_slates(
        logged.user_N[rows_N], logged.pools_NM[rows_N], logged.at_N[rows_N], SETTINGS.slate_size
    )
    for slate, pool in zip(slates_NK, logged.pools_NM[rows_N]):
        chosen = [post for post in slate if post >= 0]
        assert len(set(chosen)) == len(chosen) == min(SETTINGS.slate_size, int((pool >= 0).sum()))
        assert set(chosen) <= set(pool.tolist())


def test_tie_strength_shows_in_what_people_did(workspace: Workspace, truth: Truth):
    from scipy.stats import spearmanr

    actions, edges = workspace.lake.read(ACTIONS), workspace.lake.read(FRIENDSHIPS)
    contact = np.isin(actions["kind"].to_numpy(zero_copy_only=False), ("click", "like", "comment", "share", "profile"))
    users = len(truth.latents.user_ids_U)
    first = truth.latents.user_ids_U[0]
    done = (actions["user_id"].to_numpy() - first) * users + actions["author_id"].to_numpy() - first
    keys, counts = np.unique(done[contact], return_counts=True)
    at = np.minimum(np.searchsorted(keys, truth.latents.tie_key_E), len(keys) - 1)
    contacts_E = np.where(keys[at] == truth.latents.tie_key_E, counts[at], 0)
    assert edges.num_rows > users
    assert spearmanr(contacts_E, truth.latents.tie_E).statistic > 0.25


def test_a_changed_truth_file_is_refused(tmp_path: Path):
    workspace = Workspace(tmp_path)
    simulate(workspace, SETTINGS.model_copy(update={"users": 60, "days": 8}))
    path = workspace.truth / "latents.npz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match="is not the file that truth.json describes"):
        Truth.load(workspace)


def test_drawn_slates_have_the_declared_propensities(rng: np.random.Generator):
    posts_NM = np.tile([31, 32, 33, 34, -1], (40_000, 1))
    created_NM = np.tile([10, 30, 30, 20, 99], (40_000, 1))
    order_NM = score_order(created_NM, posts_NM)
    assert posts_NM[0, order_NM[0]].tolist() == [33, 32, 34, 31, -1]
    sizes_N = np.full(40_000, 4)
    slots_NK, _ = draw_slates(rng, order_NM, sizes_N, 3, 0.6)
    for position in range(3):
        for slot in range(4):
            declared = mixture_propensities(np.full((1, 3), slot), order_NM[:1], sizes_N[:1], 0.6)[0, position]
            assert (slots_NK[:, position] == slot).mean() == pytest.approx(declared, abs=0.012)


def test_propensities_of_a_position_sum_to_one_over_the_pool():
    order_NM = score_order(np.array([[5, 9, 7, 1]]), np.array([[1, 2, 3, 4]]))
    whole = sum(mixture_propensities(np.full((1, 3), slot), order_NM, np.array([4]), 0.35) for slot in range(4))
    np.testing.assert_allclose(whole, 1.0)
