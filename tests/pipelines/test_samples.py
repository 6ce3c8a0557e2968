"""Samples: every feature equals a brute-force count, and nothing from after the request moves any of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from contracts.clock import DAY, HOUR, MINUTE
from contracts.errors import BadInput
from contracts.features import FAMILIES, FEATURE_NAMES, FEATURES
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.tables import ACTIONS, FRIENDSHIPS, POSTS, REQUESTS, USERS
from contracts.workspace import Workspace
from pipelines import events
from pipelines.features import build_states
from pipelines.samples import build_samples, circles, facts, impressions
from tests.pipelines.reference import Reference
from tests.pipelines.small_log import SPECS, START, Tables, random_log, save, table

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def log() -> Tables:
    return random_log(np.random.default_rng(7))


@pytest.fixture(scope="module")
def made(log: Tables, spark: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, dict]:
    workspace = save(tmp_path_factory.mktemp("samples"), log)
    return workspace, build_samples(workspace, spark)  # type: ignore[arg-type]


def worst_difference(samples: pa.Table, reference: Reference) -> tuple[float, str]:
    """The largest difference, relative to 1 + size, between the samples' features and the reference's, and where it is."""
    worst = (0.0, "none")
    for row in samples.to_pylist():
        expected = reference.features(row, row["requested_at"])
        for name in FEATURE_NAMES:
            difference = abs(row[name] - expected[name]) / (1 + abs(expected[name]))
            worst = max(worst, (difference, f"{name}: {row[name]} instead of {expected[name]}"))
    return worst


def test_every_feature_equals_a_brute_force_count_over_the_log(made: tuple[Workspace, dict], log: Tables) -> None:
    samples = made[0].samples.read(SAMPLES)
    assert samples.num_rows > 300
    difference, where = worst_difference(samples, Reference(log))
    assert difference < 1e-9, where
    for name in FEATURE_NAMES:
        assert pc.count_distinct(samples[name]).as_py() > 1, f"{name} is the same everywhere: the log does not test it"


def test_counting_by_when_things_happened_and_not_by_when_they_were_known_is_caught(
    made: tuple[Workspace, dict], log: Tables
) -> None:
    difference, _ = worst_difference(made[0].samples.read(SAMPLES), Reference(log, respects_arrival=False))
    assert difference > 1e-3


def test_the_rows_are_the_impressions_of_the_windows_whose_labels_are_final(
    made: tuple[Workspace, dict], log: Tables
) -> None:
    workspace, report = made
    dataset = workspace.dataset()
    requested = {row["request_id"]: row["requested_at"] for row in log["requests"].to_pylist()}
    expected = {}
    for row in log["impressions"].to_pylist():
        for name in ("train", "validation", "test"):
            start, end = getattr(dataset.split(), name)
            if start <= requested[row["request_id"]] < end and start <= row["shown_at"] < end:
                expected[row["request_id"], row["position"]] = name
    samples = workspace.samples.read(SAMPLES).to_pylist()
    assert {(row["request_id"], row["position"]): row["split"] for row in samples} == expected
    assert len(samples) == len(expected) == report["rows"]
    assert set(expected.values()) == {"train", "validation", "test"}
    assert all(row["shown_at"] + dataset.attribution_us <= dataset.end for row in samples)


def test_a_label_is_an_action_of_that_kind_inside_the_attribution_window(
    made: tuple[Workspace, dict], log: Tables
) -> None:
    workspace, _ = made
    window = workspace.dataset().attribution_us
    actions = log["actions"].to_pylist()
    positives = 0
    for row in workspace.samples.read(SAMPLES).to_pylist():
        for task in ("click", "like", "share", "hide"):
            expected = any(
                a["kind"] == task
                and (a["user_id"], a["post_id"]) == (row["user_id"], row["post_id"])
                and a["request_id"] in (None, row["request_id"])
                and row["shown_at"] <= a["occurred_at"] < row["shown_at"] + window
                for a in actions
            )
            assert row[f"label_{task}"] == int(expected)
            positives += expected
        assert row["label_comment"] is None, "the log has no comment task"
    assert positives > 20


LATE_ID = 200_000_000


def _actions(kind: str, user: int, row: dict, occurred_at: int, known_at: int) -> pa.Table:
    return table(
        ACTIONS, action_id=[LATE_ID], user_id=[user], post_id=[row["post_id"]], author_id=[row["author_id"]], kind=[kind],
        occurred_at=[occurred_at], known_at=[known_at],
    )  # fmt: skip


def _planted(log: Tables, row: dict) -> Tables:
    """The log plus everything that one sample must not see: all of it becomes known at or after its request."""
    at, viewer, author = row["requested_at"], row["user_id"], row["author_id"]
    edges = log["friendships"].to_pylist()
    friend = next(
        e["friend_id"] for e in edges if e["user_id"] == viewer and e["ended_at"] is None and e["known_at"] < at
    )
    more = {
        "actions": [
            _actions("hide", viewer, row, at, at),  # at the very microsecond of the request
            _actions("comment", viewer, row, at - HOUR, at + MINUTE),  # happened before, known after
            _actions("like", friend, row, at + 1, at + 1),  # a friend engages just after
        ],
        "friendships": [  # began long ago, known just after
            table(FRIENDSHIPS, user_id=[viewer, author], friend_id=[author, viewer], since=[at - 50 * DAY] * 2,
                  kind=["special_care"] * 2, known_at=[at + 1] * 2)
        ],
        "users": [
            table(USERS, user_id=[viewer, author], registered_at=[START - 999 * DAY] * 2, city=["Wels"] * 2, known_at=[at] * 2)
        ],
        "posts": [  # edited into another topic, kind and visibility just after
            table(POSTS, post_id=[row["post_id"]], author_id=[author], created_at=[at - 9 * DAY], edited_at=[at + 1],
                  known_at=[at + 1], kind=["quote"], topic=[99], visibility=["private"], origin_post_id=[1])
        ],
    }  # fmt: skip
    return {name: pa.concat_tables([rows, *more.get(name, [])]) for name, rows in log.items()}


SHOWS_IN = (
    "viewer_hides_7d",
    "viewer_comments_7d",
    "friends_engaged",
    "special_care",
    "viewer_tenure_days",
    "post_topic",
)


def _moved(before: list[dict], after: list[dict]) -> tuple[set[tuple], set[str]]:
    """Which samples, and which features, differ between two builds of the same impressions."""
    now = {(row["request_id"], row["position"]): row for row in after}
    rows, names = set(), set()
    for row in before:
        other = now[row["request_id"], row["position"]]
        changed = {name for name in FEATURE_NAMES if other[name] != row[name]}
        names |= changed
        if changed:
            rows.add((row["request_id"], row["position"]))
    return rows, names


@pytest.fixture(scope="module")
def planted(
    made: tuple[Workspace, dict], log: Tables, spark: object, tmp_path_factory: pytest.TempPathFactory
) -> tuple:
    """The samples before and after planting, and the sample whose request the plants come after."""
    before = made[0].samples.read(SAMPLES).to_pylist()
    posts_left = {row["post_id"] for row in before[-150:]}
    row = next(
        r
        for r in before[len(before) // 3 :]
        if r["user_id"] != r["author_id"] and not r["is_friend"] and r["post_id"] in posts_left
    )
    workspace = save(tmp_path_factory.mktemp("planted"), _planted(log, row))
    build_samples(workspace, spark)  # type: ignore[arg-type]
    return before, workspace.samples.read(SAMPLES).to_pylist(), row


def test_what_becomes_known_at_or_after_a_request_moves_none_of_its_features(planted: tuple) -> None:
    before, after, row = planted
    until = [r for r in before if r["requested_at"] <= row["requested_at"]]
    assert len(until) > 100
    assert _moved(until, after) == (set(), set())
    _, names = _moved([r for r in before if r["requested_at"] > row["requested_at"] + 2 * MINUTE], after)
    assert names.issuperset(SHOWS_IN), "each planted row must show in later requests, or this test shows nothing of it"


@pytest.fixture(scope="module")
def leaking(planted: tuple, log: Tables, spark: object, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Which features of the sample move when the same build reads every row two hours before it was known."""
    before, _, row = planted
    workspace = save(tmp_path_factory.mktemp("leaking"), _planted(log, row))
    with pytest.MonkeyPatch.context() as patched:
        for module in (events, circles, facts, impressions):
            read = module.frame
            patched.setattr(module, "frame", lambda *asked, read=read: _early(read(*asked)))
        build_samples(workspace, spark)  # type: ignore[arg-type]
    of_request = [r for r in before if (r["request_id"], r["position"]) == (row["request_id"], row["position"])]
    return _moved(of_request, workspace.samples.read(SAMPLES).to_pylist())[1]


def _early(rows: DataFrame) -> DataFrame:
    return rows.withColumn("known_at", F.col("known_at") - 2 * HOUR) if "known_at" in rows.columns else rows


@pytest.mark.parametrize("feature", ["viewer_hides_7d", "viewer_comments_7d", "friends_engaged"])
def test_a_feature_that_uses_an_action_after_the_impression_is_caught(leaking: set[str], feature: str) -> None:
    assert feature in leaking


@pytest.mark.parametrize("feature", ["viewer_tenure_days", "same_city"])
def test_a_feature_that_uses_a_profile_changed_later_is_caught(leaking: set[str], feature: str) -> None:
    assert feature in leaking


@pytest.mark.parametrize("feature", ["is_friend", "special_care", "friendship_days"])
def test_a_feature_that_uses_a_friendship_formed_later_is_caught(leaking: set[str], feature: str) -> None:
    assert feature in leaking


@pytest.mark.parametrize("feature", ["post_topic", "post_age_hours", "post_is_share"])
def test_a_feature_that_uses_a_post_edited_later_is_caught(leaking: set[str], feature: str) -> None:
    assert feature in leaking


def test_state_as_of_a_moment_equals_a_brute_force_count(
    log: Tables, spark: object, made: tuple[Workspace, dict]
) -> None:
    workspace, _ = made
    dataset = workspace.dataset()
    build_states(workspace, spark)  # type: ignore[arg-type]
    reference = Reference(log)
    for name, family in FAMILIES.items():
        rows = workspace.features.read(STATES[name]).to_pylist()
        assert {row["as_of"] for row in rows} == {dataset.split().validation[0], dataset.end}
        for moment in (dataset.split().validation[0], dataset.end):
            kinds = {kind for part in (*family.counters, *family.latests) for kind in part.kinds}
            keys = {
                tuple(e[c] for c in family.key)
                for e in reference.events
                if e["known_at"] < moment and e["kind"] in kinds
            }
            found = {tuple(row[c] for c in family.key): row["values"] for row in rows if row["as_of"] == moment}
            assert found.keys() == keys
            for key, values in found.items():
                np.testing.assert_allclose(values, reference.state(family, key, moment), rtol=1e-9, atol=1e-12)


def test_state_and_samples_agree_at_the_same_moment(made: tuple[Workspace, dict], spark: object) -> None:
    """What serving starts from (state) is what models were trained on (samples)."""
    workspace, _ = made
    row = workspace.samples.read(SAMPLES).to_pylist()[-1]
    build_states(workspace, spark, moments=[row["requested_at"]])  # type: ignore[arg-type]
    for feature in FEATURES:
        if feature.counter is None or "topic" in feature.key:
            continue
        family = FAMILIES[feature.counter[0]]
        key = tuple(row[column] for column in feature.key)
        state = {
            tuple(r[c] for c in family.key): r["values"]
            for r in workspace.features.read(STATES[family.name]).to_pylist()
        }
        value = state[key][family.slot(feature.counter[1])] if key in state else 0.0
        assert row[feature.name] == pytest.approx(value, rel=1e-9, abs=1e-12), feature.name


def test_the_same_log_gives_the_same_bytes(
    made: tuple[Workspace, dict], log: Tables, spark: object, tmp_path: Path
) -> None:
    shuffled = {name: rows.take(np.random.default_rng(3).permutation(rows.num_rows)) for name, rows in log.items()}
    workspace = save(tmp_path, shuffled)
    build_samples(workspace, spark)  # type: ignore[arg-type]
    assert workspace.samples.manifest(SAMPLES).content_hash == made[0].samples.manifest(SAMPLES).content_hash


def test_a_missing_table_or_an_empty_window_is_told_and_nothing_is_written(
    spark: object, log: Tables, tmp_path: Path
) -> None:
    partial = {name: rows for name, rows in log.items() if name != "requests"}
    workspace = save(tmp_path, partial)
    with pytest.raises(BadInput, match="requests"):
        build_samples(workspace, spark)  # type: ignore[arg-type]
    workspace.lake.write(SPECS["requests"], REQUESTS.schema.empty_table())
    with pytest.raises(BadInput, match="no impression"):
        build_samples(workspace, spark)  # type: ignore[arg-type]
    assert not workspace.samples.exists(SAMPLES)


def with_columns(rows: pa.Table, **columns: pa.Array) -> pa.Table:
    """`rows` with these columns in place of theirs."""
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), values.cast(rows.schema.field(name).type))
    return rows


def test_two_posts_at_one_position_are_two_samples_with_the_very_features_they_have_at_two(
    made: tuple[Workspace, dict], log: Tables, spark: object, tmp_path: Path
) -> None:
    shown = with_columns(log["impressions"], position=pc.divide(log["impressions"]["position"], 2))
    workspace = save(tmp_path, log | {"impressions": shown})
    build_samples(workspace, spark)  # type: ignore[arg-type]
    order = [("request_id", "ascending"), ("post_id", "ascending")]
    there, here = (one.samples.read(SAMPLES).sort_by(order) for one in (made[0], workspace))
    moved = ["position", "examination"]
    assert here.drop_columns(moved).equals(there.drop_columns(moved))
    assert here["position"].to_pylist() == [position // 2 for position in there["position"].to_pylist()]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("impressions", r"^table impressions: 8 rows repeat a request_id and post_id, the first is 41, \d+$"),
        ("requests", r"^table requests: 8 rows repeat a request_id, the first is 41$"),
    ],
)
def test_rows_that_would_multiply_samples_are_refused_with_their_count_and_the_first(
    made: tuple[Workspace, dict], log: Tables, spark: object, tmp_path: Path, name: str, sentence: str
) -> None:
    again = log[name].slice(40 if name == "requests" else 200, 4)
    if name == "impressions":
        again = with_columns(again, position=pc.add(again["position"], 7))
    workspace = save(tmp_path, log | {name: pa.concat_tables([log[name], again])})
    with pytest.raises(BadInput, match=sentence):
        build_samples(workspace, spark)  # type: ignore[arg-type]
    assert not workspace.samples.exists(SAMPLES)
