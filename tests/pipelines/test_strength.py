"""Learned tie strength: what it is learned from is what was known, and nothing of the week that it is to predict."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from contracts.clock import DAY, HOUR
from contracts.features import Counter
from contracts.strength import AHEAD_US, TIE_STRENGTH
from contracts.tables import ACTIONS, FRIENDSHIPS, USERS
from contracts.tasks import CONTACTS
from contracts.workspace import Workspace
from pipelines.events import event_frame
from pipelines.strength import StrengthSettings, build_strength, circles, rows
from pipelines.strength.learn import PairRows
from pipelines.strength.rows import INPUT_NAMES, LONGEST_DAYS, READ, friend_rows
from tests.pipelines.reference import Reference
from tests.pipelines.small_log import START, Tables, random_log, save, table

pytestmark = pytest.mark.spark
DAYS = 24
SETTINGS = StrengthSettings(fewest_contacts=5, trees=20, rows_per_leaf=5, threads=1)
MOMENTS = START + 9 * DAY + 5 * HOUR, START + 12 * DAY, START + 16 * DAY


@pytest.fixture(scope="module")
def log() -> Tables:
    return random_log(np.random.default_rng(11), users=16, days=DAYS, posts=130, requests=260)


@pytest.fixture(scope="module")
def workspace(log: Tables, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return save(tmp_path_factory.mktemp("strength"), log, days=DAYS)


def built(workspace: Workspace, spark: SparkSession, settings: StrengthSettings = SETTINGS) -> dict:
    return build_strength(workspace, spark, settings=settings)


@pytest.fixture(scope="module")
def report(workspace: Workspace, spark: SparkSession) -> dict:
    return built(workspace, spark)


@pytest.fixture(scope="module")
def found(workspace: Workspace, spark: SparkSession) -> PairRows:
    """What the rows say at MOMENTS and where the validation window begins."""
    moments = (*MOMENTS, workspace.dataset().split().validation[0])
    with friend_rows(spark, workspace.lake, event_frame(spark, workspace.lake), START, moments) as rows_found:
        return PairRows.of(rows_found.toArrow())


def at_moment(found: PairRows, moment: int) -> PairRows:
    kept = found.as_of_N == moment
    return PairRows(*(getattr(found, name)[kept] for name in PairRows.__dataclass_fields__))


def expected_inputs(reference: Reference, user: int, friend: int, at: int) -> dict[str, float]:
    """INPUT_NAMES of one friendship by brute force."""
    values = {}
    ids = {"user_id": user, "friend_id": friend}
    for prefix, family, key in READ:
        state = reference.state(family, tuple(ids[column] for column in key), at)
        for part, value in zip(family.parts, state, strict=True):
            if isinstance(part, Counter):
                values[f"{prefix}_{part.name}"] = value / (1 - 0.5 ** ((at - START) / part.half_life_us))
            else:
                days = min(LONGEST_DAYS, (at - value) / DAY) if value else LONGEST_DAYS
                values[f"{prefix}_days_since_{part.name}"] = days
    forth = reference.facts({"user_id": user, "author_id": friend, "post_id": -1}, at)
    back = reference.facts({"user_id": friend, "author_id": user, "post_id": -1}, at)
    return values | {
        "friendship_days": forth["friendship_days"], "special_care": forth["special_care"],
        "special_care_back": back["special_care"], "returned": back["is_friend"],
        "mutual_friends": forth["mutual_friends"], "user_friends": forth["viewer_friends"],
        "friend_friends": forth["author_friends"], "user_tenure_days": forth["viewer_tenure_days"],
        "friend_tenure_days": back["viewer_tenure_days"], "same_city": forth["same_city"],
    }  # fmt: skip


def test_what_is_known_of_a_friendship_equals_a_brute_force_count(found: PairRows, log: Tables) -> None:
    reference = Reference(log)
    friends = {
        (at, edge["user_id"], edge["friend_id"])
        for at in np.unique(found.as_of_N).tolist()
        for edge in reference.rows["friendships"]
        if edge["known_at"] < at and (edge["ended_at"] is None or edge["ended_at"] > at)
    }
    keys = list(zip(found.as_of_N.tolist(), found.user_id_N.tolist(), found.friend_id_N.tolist(), strict=True))
    assert keys == sorted(friends)
    for at in range(0, len(keys), 2):
        moment, user, friend = keys[at]
        expected = expected_inputs(reference, user, friend, moment)
        assert expected.keys() == set(INPUT_NAMES)
        np.testing.assert_allclose(found.inputs_NF[at], [expected[name] for name in INPUT_NAMES], rtol=1e-6, atol=1e-6)
    same = [name for name in INPUT_NAMES if len(np.unique(found.input(name))) == 1]
    assert not same, "inputs that are the same everywhere: the log does not test them"


def test_a_contact_counts_for_the_week_in_which_it_happened_from_when_it_was_known(
    found: PairRows, log: Tables
) -> None:
    at, reference = MOMENTS[1], Reference(log)
    found, late = at_moment(found, at), 0
    for user, friend, known_at in zip(found.user_id_N, found.friend_id_N, found.contact_known_at_N, strict=True):
        contacts = [
            event["known_at"]
            for event in reference.events
            if (event["user_id"], event["author_id"]) == (user, friend)
            and event["kind"] in CONTACTS
            and at <= event["occurred_at"] < at + AHEAD_US
        ]
        assert known_at == min(contacts, default=np.iinfo(np.int64).max)
        late += bool(contacts) and min(contacts) >= at + AHEAD_US
    assert found.contacted(at + AHEAD_US).sum() > 10
    assert found.contacted(at + 2 * AHEAD_US).sum() == found.contacted(at + AHEAD_US).sum() + late


def _act(log: Tables, user: int, friend: int, occurred_at: int, known_at: int, kind: str = "like") -> pa.Table:
    post = next(row for row in log["posts"].to_pylist() if row["author_id"] == friend)
    return table(ACTIONS, action_id=[300_000_000 + occurred_at % 1000], user_id=[user], post_id=[post["post_id"]],
                 author_id=[friend], kind=[kind], occurred_at=[occurred_at], known_at=[known_at])  # fmt: skip


def planted(log: Tables, at: int) -> Tables:
    """The log plus what nobody knew before `at`: contacts, friendships and moves of city, of everybody with everybody."""
    people = sorted(set(log["users"]["user_id"].to_pylist()))
    authors = set(log["posts"]["author_id"].to_pylist())
    pairs = [(one, other) for one in people for other in people if one != other]
    acts = [_act(log, *pair, at + HOUR, at + HOUR) for pair in pairs if pair[1] in authors]
    late = [
        _act(log, *pair, at - DAY, at) for pair in pairs if pair[1] in authors
    ]  # of a training week, known too late
    count = len(pairs)
    befriended = table(
        FRIENDSHIPS, user_id=[one for one, _ in pairs], friend_id=[other for _, other in pairs],
        since=[at - 50 * DAY] * count, kind=["special_care"] * count, known_at=[at] * count,
    )  # fmt: skip
    moved = table(USERS, user_id=people, registered_at=[START - 999 * DAY] * len(people), city=["Wels"] * len(people),
                  known_at=[at] * len(people))  # fmt: skip
    more = {"actions": [*acts, *late], "friendships": [befriended], "users": [moved]}
    return {name: pa.concat_tables([some, *more.get(name, [])]) for name, some in log.items()}


def strengths(workspace: Workspace, at: int) -> list[dict]:
    return [row for row in workspace.features.read(TIE_STRENGTH).to_pylist() if row["as_of"] == at]


def test_what_becomes_known_at_or_after_a_moment_moves_no_strength_of_it(
    workspace: Workspace, report: dict, log: Tables, spark: SparkSession, tmp_path: Path
) -> None:
    """Contacts after it, contacts before it that became known after, friendships and profiles known after."""
    dataset = workspace.dataset()
    at = dataset.split().validation[0]
    other = save(tmp_path, planted(log, at), days=DAYS)
    built(other, spark)
    assert len(strengths(workspace, at)) > 50
    assert strengths(other, at) == strengths(workspace, at)
    assert len(strengths(other, dataset.end)) > len(strengths(workspace, dataset.end)), "the plants must show later"


def test_reading_rows_before_they_are_known_is_caught_by_the_same_comparison(
    workspace: Workspace, found: PairRows, log: Tables, spark: SparkSession, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    at = workspace.dataset().split().validation[0]
    honest, other = at_moment(found, at), save(tmp_path, planted(log, at), days=DAYS)

    def early(some: DataFrame) -> DataFrame:
        return some.withColumn("known_at", some["known_at"] - 2 * HOUR)

    for module in (circles, rows):
        read = module.frame
        monkeypatch.setattr(module, "frame", lambda *asked, read=read: early(read(*asked)))
    with friend_rows(spark, other.lake, early(event_frame(spark, other.lake)), START, [at]) as read_early:
        leaking = PairRows.of(read_early.toArrow())
    assert len(leaking) > len(honest), "friendships that formed later"
    kept = np.isin(leaking.user_id_N * 1000 + leaking.friend_id_N, honest.user_id_N * 1000 + honest.friend_id_N)
    for name in ("tie_contacts_14d", "special_care", "user_tenure_days", "same_city"):
        assert not np.array_equal(leaking.input(name)[kept], honest.input(name)), name


@pytest.mark.slow
def test_the_same_log_gives_the_same_bytes_in_any_order_and_in_any_pieces(
    workspace: Workspace, report: dict, log: Tables, spark: SparkSession, tmp_path: Path
) -> None:
    shuffled = {name: some.take(np.random.default_rng(3).permutation(some.num_rows)) for name, some in log.items()}
    other = save(tmp_path, shuffled, days=DAYS)
    built(other, spark, SETTINGS.model_copy(update={"rows_at_once": 60}))
    assert other.features.manifest(TIE_STRENGTH).content_hash == workspace.features.manifest(TIE_STRENGTH).content_hash
    models = [place.artifacts.load("tie_strength").files for place in (workspace, other)]
    assert models[0] == models[1]


def test_every_moment_that_has_a_closed_week_before_it_is_predicted_for_all_friendships(
    workspace: Workspace, report: dict
) -> None:
    found = workspace.features.read(TIE_STRENGTH).to_pylist()
    assert len({row["as_of"] for row in found}) == len(report["moments"]) >= 2
    assert report["rows"] == len(found)
    assert all(0.0 < row["probability"] < 1.0 for row in found)
    assert len({(row["as_of"], row["user_id"], row["friend_id"]) for row in found}) == len(found)
    assert report["judged"]["validation"]["all"]["learned"]["auc"] is not None


def test_a_log_without_a_closed_week_has_no_strength_and_says_why(
    workspace: Workspace, log: Tables, spark: SparkSession, tmp_path: Path
) -> None:
    short = save(tmp_path, log, days=13)
    report = built(short, spark)
    assert report["rows"] == 0 and not report["judged"]
    assert len(report["left_out"]) == 2 and all("closed" in why for why in report["left_out"].values())
    assert short.features.read(TIE_STRENGTH).num_rows == 0
    assert not short.artifacts.versions("tie_strength")
