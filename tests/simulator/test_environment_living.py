"""What moves in the environment: scans that end, ties that grow and fade, people who come back, and who leave."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.clock import DAY, HOUR
from contracts.tables import ACTIONS, IMPRESSIONS, REQUESTS
from contracts.tasks import TASK_NAMES, TASKS
from contracts.workspace import Workspace
from simulator.environment import EnvironmentSettings, Truth, simulate
from simulator.environment.behaviour import Latents, contentment, respond
from simulator.environment.happened import Log
from simulator.environment.lookups import Graph
from simulator.environment.people import draw_people
from simulator.environment.visits import Visitors, satisfaction_by_content
from simulator.environment.world import World

LIVING = EnvironmentSettings(users=200, days=14, warmup_days=2, requests_per_day=2.0, mean_friends=16, seed=4,
                             examination="cascade", tie_growth=3.0, tie_half_life_days=5.0, policy="ties")  # fmt: skip
WORTH_A = np.array([task.worth for task in TASKS])


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("living"))
    simulate(made, LIVING)
    return made


@pytest.fixture(scope="module")
def latents(living: Workspace) -> Latents:
    return Truth.load(living).latents


@pytest.mark.parametrize("cascade", [False, True])
def test_looks_and_actions_on_a_slate_come_as_often_as_the_truth_says(cascade: bool, latents: Latents):
    latents = replace(latents, cascade=np.array(cascade), persistence=np.array(0.9), stop_after_action=np.array(0.5))
    rng, draws = np.random.default_rng(2), 30_000
    user, at = int(latents.tie_key_E[0] // len(latents.user_ids_U)), LIVING.end_at - 2 * DAY
    own_P = np.flatnonzero(latents.author_P == latents.tie_key_E[0] % len(latents.user_ids_U))[:2]
    slate_K = np.concatenate([own_P, rng.choice(len(latents.author_P), 4, replace=False), [-1]])
    slates_NK = np.tile(slate_K, (draws, 1))
    viewed_NK, acted_NKA = respond(rng, latents, np.full(draws, user), slates_NK, np.full(draws, at))
    post_ids_1K = np.where(slate_K >= 0, latents.post_ids_P[slate_K], -1)[None]
    expected = Truth(latents).action_probabilities(latents.user_ids_U[[user]], post_ids_1K, np.array([at]))
    for task, name in enumerate(TASK_NAMES):
        expected_K = expected[name][0] / 0.995
        error_K = np.sqrt(np.maximum(expected_K * (1 - expected_K), 1e-4) / draws)
        assert (np.abs(acted_NKA[:, :, task].mean(axis=0) - expected_K) < 4.5 * error_K).all()
    assert not viewed_NK[:, -1].any()
    assert (np.diff(viewed_NK[:, :-1].mean(axis=0)) < 0).all()
    below_NK, above_NK = viewed_NK[:, 1:], viewed_NK[:, :-1]
    assert cascade == (not (below_NK & ~above_NK).any())


def test_in_a_cascade_nobody_looks_below_a_position_that_was_passed_over(living: Workspace):
    shown = living.lake.read(IMPRESSIONS).sort_by([("request_id", "ascending"), ("position", "ascending")])
    request_I, viewed_I = shown["request_id"].to_numpy(), shown["viewed_ms"].to_numpy() > 0
    goes_on_I = (request_I[1:] == request_I[:-1]) & viewed_I[1:]
    assert goes_on_I.sum() > 1000
    assert viewed_I[:-1][goes_on_I].all()


def surplus_z(workspace: Workspace, judged: Truth) -> float:
    """How many standard errors the logged reward lies from what `judged` expects, weighed towards requests whose ties moved."""
    living = Truth.load(workspace)
    frozen = Truth(replace(living.latents, tie_growth=np.array(0.0)))
    requests, shown = workspace.lake.read(REQUESTS), workspace.lake.read(IMPRESSIONS)
    slates_NK = np.full((requests.num_rows, LIVING.slate_size), -1)
    slates_NK[shown["request_id"].to_numpy() - 1, shown["position"].to_numpy()] = shown["post_id"].to_numpy()
    at_N = requests["requested_at"].to_numpy()
    actions = workspace.lake.read(ACTIONS).to_pandas()
    actions = actions[actions["kind"].isin(TASK_NAMES) & actions["request_id"].notna()]
    row = actions["request_id"].to_numpy().astype(int) - 1
    in_time = actions["occurred_at"].to_numpy() < at_N[row] + DAY
    worth = actions["kind"].map(dict(zip(TASK_NAMES, WORTH_A))).to_numpy()
    reward_N = np.bincount(row[in_time], worth[in_time], len(at_N))
    closed_N = at_N < LIVING.end_at - DAY - HOUR
    asked = requests["user_id"].to_numpy(), slates_NK, at_N
    moved_N = living.slate_values(*asked) - frozen.slate_values(*asked)
    surplus_N = (moved_N * (reward_N - judged.slate_values(*asked)))[closed_N]
    return float(surplus_N.mean() / (surplus_N.std() / np.sqrt(len(surplus_N))))


def test_the_truth_holds_at_the_time_of_each_request_while_ties_live(living: Workspace):
    assert abs(surplus_z(living, Truth.load(living))) < 4.0


def test_ties_as_they_were_at_first_would_not_explain_the_log(living: Workspace):
    frozen = replace(Truth.load(living).latents, tie_growth=np.array(0.0))
    assert abs(surplus_z(living, Truth(frozen))) > 5.0


def contacts(day_by_day: list[list[tuple[int, int, int]]]) -> tuple[Latents, Graph]:
    """Ties after days of (user, author, task) on posts of a population of its own."""
    settings = EnvironmentSettings(users=40, days=30, mean_friends=8, seed=1, tie_growth=2.0, tie_half_life_days=7.0)
    people = draw_people(np.random.default_rng(1), settings)
    graph = Graph(40, people.edges, people.blocks)
    none, empty = np.zeros(0), np.zeros(0, np.int64)
    latents = Latents(
        user_ids_U=np.arange(40), taste_UT=people.taste_UT, style_UA=people.style_UA, community_U=people.community_U,
        post_ids_P=np.arange(40), author_P=np.arange(40), origin_author_P=np.arange(40), created_at_P=empty, kind_P=empty,
        topic_P=empty, public_P=empty, quality_P=none, bait_P=none, talk_T=none,
        tie_key_E=people.edges.user_E * 40 + people.edges.friend_E, tie_E=people.edges.tie_E, examination_power=none,
        life_hours_by_kind=none, task_levels_A=none, tie_slopes_A=none, cascade=none, persistence=none,
        stop_after_action=none, start_at=np.array(settings.start_at), tie_growth=np.array(settings.tie_growth),
        tie_half_life_days=np.array(settings.tie_half_life_days), contact_key_H=empty, contact_H=none,
    )  # fmt: skip
    world = World(latents, graph)
    for day, acts in enumerate(day_by_day):
        users, authors = np.array([act[0] for act in acts], int), np.array([act[1] for act in acts], int)
        acted_NKA = np.zeros((len(acts), 1, 5), bool)
        acted_NKA[np.arange(len(acts)), 0, [act[2] for act in acts]] = True
        log = replace(Log.empty(settings), user_N=users, slates_NK=authors[:, None], acted_NKA=acted_NKA)
        world.end_day(day, log)
    return world.latents, graph


def test_a_tie_grows_with_contact_both_ways_and_fades_without():
    first, graph = contacts([])
    mutual_E = np.flatnonzero(graph.edges.mutual_E)
    user, friend = int(graph.edges.user_E[mutual_E[0]]), int(graph.edges.friend_E[mutual_E[0]])
    other = int(mutual_E[-1])
    after, _ = contacts([[(user, friend, TASK_NAMES.index("comment"))] * 3])
    there, back = int(mutual_E[0]), int(graph.edge_of(np.array([friend]), np.array([user]))[0])
    edges = np.array([there, back, other])
    begin, next_day, month = (after.tie_of_edges(edges, np.full(3, day)) for day in (0, 1, 30))
    np.testing.assert_allclose(begin, first.tie_E[edges])
    assert next_day[0] > begin[0]
    assert begin[0] < next_day[1] < next_day[0] or first.tie_E[there] != first.tie_E[back]
    assert next_day[1] > begin[1]
    assert next_day[2] < begin[2]
    assert (month < begin).all()


def test_a_hide_brings_nobody_closer():
    first, graph = contacts([])
    user, friend = int(graph.edges.user_E[0]), int(graph.edges.friend_E[0])
    hidden, _ = contacts([[(user, friend, TASK_NAMES.index("hide"))]])
    assert hidden.tie_of_edges(np.array([0]), np.array([1]))[0] < first.tie_E[0]


def test_contact_kept_as_records_equals_contact_carried_from_day_to_day(rng: np.random.Generator):
    _, graph = contacts([])
    edges = len(graph.edges.user_E)
    days = [
        [(int(graph.edges.user_E[e]), int(graph.edges.friend_E[e]), 1) for e in rng.integers(0, edges, 12)]
        for _ in range(9)
    ]
    latents, _ = contacts(days)
    carried_E = np.full(edges, np.log(2.0))
    for acts in [*days, [], []]:
        gain_E = np.zeros(edges)
        for user, author, _ in acts:
            for a, b, part in ((user, author, 0.5), (author, user, 0.25)):
                edge = int(graph.edge_of(np.array([a]), np.array([b]))[0])
                if edge >= 0:
                    gain_E[edge] += part
        carried_E = carried_E * 0.5 ** (1 / 7.0) + gain_E
    first_E = latents.tie_E
    expected_E = 1 / (1 + np.exp(-(np.log(first_E / (1 - first_E)) + 2.0 * (0.5 - np.exp(-carried_E)))))
    np.testing.assert_allclose(latents.tie_of_edges(np.arange(edges), np.full(edges, 11)), expected_E)


def test_friends_please_and_bait_of_strangers_is_regretted(latents: Latents):
    users, at = len(latents.user_ids_U), LIVING.end_at - DAY
    close_E = np.argsort(-latents.tie_E)[:40]
    user_N, friend_N = latents.tie_key_E[close_E] // users, latents.tie_key_E[close_E] % users
    has_N = np.isin(friend_N, latents.author_P)
    user_N = user_N[has_N]
    post_N = np.array([np.flatnonzero(latents.author_P == friend)[0] for friend in friend_N[has_N]])
    baits_N = np.resize(np.argsort(-latents.bait_P)[:20], len(user_N))
    seen_N1, at_N = np.ones((len(user_N), 1), bool), np.full(len(user_N), at)
    felt_N, regretted_N = (contentment(latents, user_N, posts[:, None], at_N, seen_N1) for posts in (post_N, baits_N))
    assert felt_N.mean() > 0.3 > -0.3 > regretted_N.mean()
    assert (contentment(latents, user_N, post_N[:, None], at_N, ~seen_N1) == 0).all()
    moved_U = satisfaction_by_content(np.zeros(3), np.array([4.0, -4.0, 0.0]), np.array([8, 8, 0]))
    assert moved_U[0] > 0 > moved_U[1]
    assert moved_U[2] == 0


def test_the_dissatisfied_leave_more_often_and_do_not_come_back():
    settings = EnvironmentSettings(users=4000, days=10, satisfaction="content", leave_per_day=0.05, seed=2)
    rng = np.random.default_rng(3)
    visitors = Visitors(rng, settings, np.full(4000, settings.start_at - DAY))
    glad_U = np.arange(4000) < 2000
    for _ in range(6):
        visitors.end_day(rng, np.where(glad_U, 6.0, -6.0), np.full(4000, 8))
    assert visitors.left_U[~glad_U].mean() > 2 * visitors.left_U[glad_U].mean() > 0
    user_N, _, _ = visitors.requests_of_day(rng, settings.start_at + DAY)
    assert not visitors.left_U[user_N].any()
    assert len(set(user_N) & set(np.flatnonzero(glad_U))) > len(set(user_N) - set(np.flatnonzero(glad_U)))


def test_nobody_leaves_unless_the_settings_say_so(tmp_path: Path):
    settings = EnvironmentSettings(users=60, days=6, warmup_days=1, seed=2)
    assert simulate(Workspace(tmp_path), settings)["people_who_left"] == 0


def weekly(workspace: Workspace, settings: EnvironmentSettings) -> tuple[float, float, float]:
    """(clicks per impression of the first four days, requests of the last week, people who came in it)."""
    shown, actions, requests = (workspace.lake.read(spec) for spec in (IMPRESSIONS, ACTIONS, REQUESTS))
    early = settings.start_at + 4 * DAY
    clicks = np.array(actions["kind"].to_pylist()) == "click"
    per_impression = (actions["occurred_at"].to_numpy()[clicks] < early).sum() / (
        shown["shown_at"].to_numpy() < early
    ).sum()
    late_N = requests["requested_at"].to_numpy() >= settings.end_at - 7 * DAY
    return float(per_impression), float(late_N.sum()), float(len(np.unique(requests["user_id"].to_numpy()[late_N])))


def long_term(root: Path, seed: int, users: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """`weekly` under click-bait, and under the friends whom people are closest to."""
    found = []
    for policy in ("bait", "ties"):
        settings = EnvironmentSettings(users=users, days=21, seed=seed, requests_per_day=1.5, mean_friends=20, policy=policy,
                                       exploration="none", satisfaction="content", leave_per_day=0.02)  # fmt: skip
        simulate(Workspace(root / policy), settings)
        found.append(weekly(Workspace(root / policy), settings))
    return found[0], found[1]


def test_click_bait_gains_clicks_at_first_and_loses_those_who_would_have_come_back(tmp_path: Path):
    bait, ties = long_term(tmp_path, seed=1, users=200)
    assert bait[0] > 1.03 * ties[0]
    assert bait[1] < 0.75 * ties[1]
    assert bait[2] < 0.9 * ties[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_click_bait_loses_people_whatever_the_seed(seed: int, tmp_path: Path):
    bait, ties = long_term(tmp_path, seed, users=500)
    assert bait[0] > 1.03 * ties[0]
    assert bait[1] < 0.75 * ties[1]
    assert bait[2] < 0.9 * ties[2]
