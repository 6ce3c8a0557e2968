"""State carried on from an earlier moment equals state counted in full, and the past is counted again when it changes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from contracts.clock import DAY, HOUR
from contracts.features import FAMILIES
from contracts.states import STATES
from contracts.tables import ACTIONS, TABLES
from contracts.workspace import Workspace
from pipelines.features import build_states
from tests.pipelines.small_log import START, Tables, random_log, save, table

pytestmark = pytest.mark.spark
FIRST, THEN = START + 6 * DAY + 5 * HOUR, START + 9 * DAY


@pytest.fixture(scope="module")
def log() -> Tables:
    return random_log(np.random.default_rng(5))


def state(workspace: Workspace, name: str, moment: int) -> dict[tuple, list[float]]:
    rows = workspace.features.read(STATES[name]).to_pylist()
    return {tuple(row[key] for key in FAMILIES[name].key): row["values"] for row in rows if row["as_of"] == moment}


def largest_difference(one: Workspace, other: Workspace, moment: int) -> float:
    worst = 0.0
    for name in FAMILIES:
        left, right = state(one, name, moment), state(other, name, moment)
        assert left.keys() == right.keys() and left
        for key, values in left.items():
            worst = max(worst, float(np.max(np.abs(np.subtract(values, right[key])) / (1 + np.abs(right[key])))))
    return worst


def hashes(workspace: Workspace) -> list[str]:
    return [workspace.features.manifest(spec).content_hash for spec in STATES.values()]


def test_a_day_carried_on_from_the_day_before_equals_a_full_count(
    spark: SparkSession, log: Tables, tmp_path: Path
) -> None:
    known_then = {name: rows.filter(pc.less(rows["known_at"], FIRST)) for name, rows in log.items()}
    carried, full = save(tmp_path / "carried", known_then), save(tmp_path / "full", log)
    build_states(carried, spark, [FIRST])
    for name, rows in log.items():
        carried.lake.write(TABLES[name], rows)
    report = build_states(carried, spark, [FIRST, THEN], carry_on=True)
    assert set(report["counted"].values()) == {"carried on"}
    build_states(full, spark, [FIRST, THEN])
    assert largest_difference(carried, full, FIRST) == 0.0
    assert largest_difference(carried, full, THEN) < 1e-12

    once = hashes(carried)
    build_states(carried, spark, [FIRST, THEN], carry_on=True)
    assert hashes(carried) == once, "a second run must leave the same bytes"


def test_a_row_that_comes_late_into_the_counted_past_makes_it_be_counted_again(
    spark: SparkSession, log: Tables, tmp_path: Path
) -> None:
    workspace, full = save(tmp_path / "late", log), save(tmp_path / "full", log)
    build_states(workspace, spark, [FIRST])
    some = log["impressions"].slice(0, 1).to_pylist()[0]
    late = table(
        ACTIONS, action_id=[10**6], request_id=[some["request_id"]], user_id=[some["user_id"]], post_id=[some["post_id"]],
        author_id=[some["author_id"]], kind=["like"], occurred_at=[FIRST - DAY], known_at=[FIRST - HOUR],
    )  # fmt: skip
    grown = pa.concat_tables([log["actions"], late])
    for each in (workspace, full):
        each.lake.write(ACTIONS, grown)
    report = build_states(workspace, spark, [THEN], carry_on=True)
    build_states(full, spark, [THEN])
    assert set(report["counted"].values()) == {"in full"}
    assert hashes(workspace) == hashes(full)


def test_state_of_other_declarations_is_not_carried_on(
    spark: SparkSession, log: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = save(tmp_path, log)
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.features.FEATURE_VERSION", "another")
        build_states(workspace, spark, [FIRST])
    report = build_states(workspace, spark, [THEN], carry_on=True)
    assert set(report["counted"].values()) == {"in full"}


def test_an_empty_day_carries_state_on_by_decay_alone(spark: SparkSession, log: Tables, tmp_path: Path) -> None:
    quiet = {name: rows.filter(pc.less(rows["known_at"], FIRST)) for name, rows in log.items()}
    workspace = save(tmp_path, quiet)
    build_states(workspace, spark, [FIRST])
    before = state(workspace, "viewer", FIRST)
    build_states(workspace, spark, [THEN], carry_on=True)
    after = state(workspace, "viewer", THEN)
    factor = 2.0 ** (-(THEN - FIRST) / FAMILIES["viewer"].counters[0].half_life_us)
    assert {key: values[0] for key, values in after.items()} == pytest.approx(
        {key: values[0] * factor for key, values in before.items()}, rel=1e-12
    )
