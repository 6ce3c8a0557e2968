"""Reading a log to be fitted: labels and ties as of each impression, and a sentence for every log that cannot be fitted."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from contracts.clock import DAY
from contracts.errors import BadInput
from contracts.tables import ACTIONS, FRIENDSHIPS, IMPRESSIONS, POSTS, SESSIONS, USERS
from contracts.tasks import CONTACTS, TASK_NAMES
from contracts.workspace import Workspace
from feedloop.cli import main
from simulator.environment import EnvironmentSettings, simulate
from simulator.likeness import lake_at, open_log, read_log
from simulator.likeness.ties import HALF_LIFE_US, befriended, contacts, mutual_friends
from tests.simulator.environment_rules import rows

SMALL = EnvironmentSettings(users=90, days=7, warmup_days=1, requests_per_day=1.5, mean_friends=10, seed=21)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("given"))
    simulate(made, SMALL)
    return made


@pytest.fixture
def copy(workspace: Workspace, tmp_path: Path) -> Workspace:
    shutil.copytree(workspace.root / "lake", tmp_path / "given" / "lake")
    return Workspace(tmp_path / "given")


def test_an_impression_has_a_label_when_the_action_names_it_inside_the_attribution_window(workspace: Workspace):
    shown_at = {
        (request, post): shown for request, post, shown in
        rows(workspace.lake.read(IMPRESSIONS), "request_id", "post_id", "shown_at")
    }  # fmt: skip
    expected = {
        (request, post, kind)
        for request, post, kind, at in rows(
            workspace.lake.read(ACTIONS), "request_id", "post_id", "kind", "occurred_at"
        )
        if request is not None and kind in TASK_NAMES and at - shown_at[request, post] <= DAY
    }
    log = read_log(workspace.lake)
    assert log.impressions is not None
    assert log.impressions.acted_IA.sum() == len(expected) > 300
    assert log.absent == {}


def test_an_action_that_names_no_request_counts_for_the_last_time_its_post_was_shown_before(copy: Workspace):
    actions = copy.lake.read(ACTIONS)
    nameless = actions.set_column(
        actions.schema.get_field_index("request_id"),
        "request_id",
        pa.nulls(actions.num_rows, pa.int64()),
    )
    before = read_log(copy.lake).impressions
    copy.lake.write(ACTIONS, nameless)
    after = read_log(copy.lake).impressions
    assert before is not None and after is not None
    # No post of these logs is shown twice to one person, so the labels are the same.
    np.testing.assert_array_equal(before.acted_IA, after.acted_IA)


def test_contacts_go_both_ways_fade_by_half_every_half_life_and_never_come_from_the_future(workspace: Workspace):
    log = read_log(workspace.lake)
    shown = log.impressions
    assert shown is not None
    author_I = log.author_P[shown.post_I]
    some = np.random.default_rng(0).choice(len(author_I), 300, replace=False)
    found_N = contacts(log, shown.viewer_I[some], author_I[some], shown.shown_at_I[some])
    acts = [
        (min(user, author), max(user, author), at)
        for user, author, kind, at in rows(workspace.lake.read(ACTIONS), "user_id", "author_id", "kind", "known_at")
        if kind in CONTACTS
    ]
    ids = np.sort(workspace.lake.read(USERS)["user_id"].to_numpy())
    for viewer, author, at, found in zip(shown.viewer_I[some], author_I[some], shown.shown_at_I[some], found_N):
        pair = tuple(sorted((ids[viewer], ids[author])))
        expected = sum(2 ** (-(at - then) / HALF_LIFE_US) for a, b, then in acts if (a, b) == pair and then < at)
        assert found == pytest.approx(expected, abs=1e-9)
    assert (found_N > 0.5).sum() > 20


def test_mutual_friends_and_friendship_are_those_of_the_table(workspace: Workspace):
    log = read_log(workspace.lake)
    friends: dict[int, set[int]] = {}
    directed = set()
    for user, friend in zip(log.user_E.tolist(), log.friend_E.tolist()):
        directed.add((user, friend))
        friends.setdefault(user, set()).add(friend)
        friends.setdefault(friend, set()).add(user)
    user_N, other_N = (np.random.default_rng(seed).integers(0, log.users, 200) for seed in (1, 2))
    expected = [len(friends.get(a, set()) & friends.get(b, set())) for a, b in zip(user_N.tolist(), other_N.tolist())]
    assert mutual_friends(log, user_N, other_N).tolist() == expected
    assert befriended(log, user_N, other_N).tolist() == [
        pair in directed for pair in zip(user_N.tolist(), other_N.tolist())
    ]
    assert len(rows(workspace.lake.read(FRIENDSHIPS), "user_id")) >= len(directed)


def test_a_lake_is_found_by_its_workspace_or_by_itself(workspace: Workspace, tmp_path: Path):
    assert lake_at(workspace.root).root == lake_at(workspace.root / "lake").root == workspace.root / "lake"
    with pytest.raises(BadInput, match=r"neither a workspace nor a lake with a log: it holds no dataset\.json"):
        lake_at(tmp_path)


@pytest.mark.parametrize(
    ("spec", "kept", "sentence"),
    [
        (USERS, 3, "table users of .* has 3 rows; fitting takes at least 10"),
        (SESSIONS, 7, "table sessions of .* has 7 rows; fitting takes at least 50"),
        (IMPRESSIONS, 20, "table impressions of .* has 20 rows; fitting takes at least 500"),
    ],
)
def test_a_table_with_too_few_rows_is_refused_with_its_count(copy: Workspace, spec, kept: int, sentence: str):
    copy.lake.write(spec, copy.lake.read(spec).slice(0, kept))
    with pytest.raises(BadInput, match=sentence):
        read_log(copy.lake)


@pytest.mark.parametrize(
    ("spec", "column", "value", "sentence"),
    [
        (USERS, "registered_at", 2 * 10**15, "table users: 0 of 90 people registered before the log ends on 2024-05-12"),
        (FRIENDSHIPS, "friend_id", None, r"table friendships: \d+ rows join a user_id with itself, the first is 10\d\d"),
        (SESSIONS, "requests", 0, r"table sessions: \d+ rows count no request, the first is 0"),
        (IMPRESSIONS, "position", -3, r"table impressions: \d+ rows have a position that is not between 0 and 9999"),
        (IMPRESSIONS, "position", 4, r"table impressions: \d+ rows repeat a position of their request_id, the first is \d+"),
        (IMPRESSIONS, "propensity", 1.5, r"rows have a propensity outside 0 to 1, the first is 1\.5"),
        (IMPRESSIONS, "shown_at", 2 * 10**15, "have a shown_at outside the log, which is 2024-05-06 to 2024-05-12, the first is 2033"),
    ],
)  # fmt: skip
def test_rows_that_no_log_can_hold_are_refused_with_their_count_and_the_first(
    copy: Workspace, spec, column: str, value: float | None, sentence: str
):
    table = copy.lake.read(spec)
    place = table.schema.get_field_index(column)
    values = table["user_id"] if value is None else pa.array([value] * table.num_rows, table.schema.field(place).type)
    copy.lake.write(spec, table.set_column(place, table.schema.field(place), values))
    with pytest.raises(BadInput, match=sentence):
        read_log(copy.lake)


@pytest.mark.parametrize(("spec", "key"), [(USERS, "user_id"), (POSTS, "post_id"), (IMPRESSIONS, "position of their")])
def test_rows_that_are_there_twice_are_refused(copy: Workspace, spec, key: str):
    table = copy.lake.read(spec)
    copy.lake.write(spec, pa.concat_tables([table, table.slice(0, 2)]))
    with pytest.raises(BadInput, match=f"table {spec.name}: 2 rows repeat a {key}"):
        read_log(copy.lake)


@pytest.mark.parametrize(("spec", "key", "column"), [(POSTS, "post_id", "topic"), (USERS, "user_id", "registered_at")])
def test_a_later_known_row_of_a_post_or_a_person_is_a_version_and_the_last_one_is_fitted(
    copy: Workspace, spec, key: str, column: str
):
    before, table = read_log(copy.lake), copy.lake.read(spec).sort_by(key)
    again = table.slice(2, 3)
    for name, add in (("known_at", 5), (column, 3)):
        place = table.schema.get_field_index(name)
        moved = pc.add(again[name], pa.scalar(add, table.schema.field(name).type))
        again = again.set_column(place, table.schema.field(name), moved)
    copy.lake.write(spec, pa.concat_tables([again, table]))
    after = read_log(copy.lake)
    name = f"{column}_{spec.name[0].upper()}"
    changed_N = getattr(after, name) - getattr(before, name)
    assert changed_N.nonzero()[0].tolist() == [2, 3, 4] and set(changed_N[2:5]) == {3}
    np.testing.assert_array_equal(after.root_author_P, before.root_author_P)


@pytest.mark.parametrize("viewed_ms", [0, 800])
def test_looks_that_are_the_same_for_all_are_no_looks(copy: Workspace, viewed_ms: int):
    table = copy.lake.read(IMPRESSIONS)
    place = table.schema.get_field_index("viewed_ms")
    field = table.schema.field(place)
    copy.lake.write(IMPRESSIONS, table.set_column(place, field, pa.array([viewed_ms] * table.num_rows, field.type)))
    log = read_log(copy.lake)
    assert log.impressions is not None
    assert log.impressions.viewed_I.all()
    assert "does not say what was looked at" in log.absent["viewed_ms"]


def test_a_log_of_more_days_than_a_simulated_one_can_have_asks_for_their_number(copy: Workspace, tmp_path: Path):
    dataset = copy.dataset()
    dataclasses.replace(dataset, end=dataset.start + 1_200 * DAY).save(copy.dataset_path)
    with pytest.raises(BadInput, match="the log spans 1200 days and a simulated one has at most 1000: say with --days"):
        open_log(copy.root, Workspace(tmp_path / "target"), {})
    assert open_log(copy.root, Workspace(tmp_path / "target"), {"days": 20}).days == 1_200


def test_a_log_without_friendships_or_with_strangers_to_its_users_is_refused(copy: Workspace):
    users = copy.lake.read(USERS)
    copy.lake.write(USERS, users.slice(0, users.num_rows - 1))
    with pytest.raises(
        BadInput, match=r"rows name a (user_id|author_id|friend_id) that the lake does not have, the first is \d+"
    ):
        read_log(copy.lake)
    copy.lake.write(USERS, users)
    shutil.rmtree(copy.lake.root / "friendships")
    with pytest.raises(BadInput, match="has no table friendships: a log without it cannot be fitted"):
        read_log(copy.lake)


def test_the_command_refuses_in_one_sentence_and_writes_nothing(copy: Workspace, tmp_path: Path):
    target = tmp_path / "target"
    shutil.rmtree(copy.lake.root / "posts")
    answer = CliRunner().invoke(main, ["simulate", "--workspace", str(target), "--like", str(copy.root)])
    assert answer.exit_code == 2
    assert "has no table posts: a log without it cannot be fitted" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not target.exists()


def test_the_log_of_the_workspace_itself_is_not_replaced_by_one_like_it(workspace: Workspace):
    with pytest.raises(BadInput, match="is the log of this workspace, which the simulated one would replace"):
        open_log(workspace.root, workspace, {})


def test_sizes_that_cannot_be_simulated_are_refused_before_anything_is_fitted(workspace: Workspace, tmp_path: Path):
    with pytest.raises(BadInput, match="users is 5; a friend graph needs at least 10"):
        open_log(workspace.root, Workspace(tmp_path), {"users": 5})
    with pytest.raises(BadInput, match="too short for three windows"):
        open_log(workspace.root, Workspace(tmp_path), {"days": 2})


def test_a_log_too_short_for_worlds_of_its_length_is_refused_however_long_the_simulated_one_shall_be(
    copy: Workspace, tmp_path: Path
):
    dataset = copy.dataset()
    end = dataset.start + 2 * DAY
    dataclasses.replace(dataset, end=end, warmup_us=0).save(copy.dataset_path)
    shown = copy.lake.read(IMPRESSIONS)
    copy.lake.write(IMPRESSIONS, shown.filter(pa.array(shown["shown_at"].to_numpy() < end)))
    with pytest.raises(BadInput, match="too short for three windows"):
        open_log(copy.root, Workspace(tmp_path / "target"), {"days": 20})
