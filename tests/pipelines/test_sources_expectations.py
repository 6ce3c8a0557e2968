"""Expectations: every column has one, each planted fault is named with its day, and a broken day alone is kept out."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from contracts.clock import DAY, day_of
from contracts.errors import BadInput
from contracts.tables import TABLES
from contracts.workspace import Workspace
from pipelines.expectations.declared import EXPECTATIONS
from tests.pipelines.small_log import SPECS, START, Tables, random_log, save

pytestmark = pytest.mark.spark
DAY_3, DAY_4 = str(day_of(START + 3 * DAY)), str(day_of(START + 4 * DAY))


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def on_day(table: pa.Table, column: str, day: int) -> np.ndarray:
    """Places of the rows of a day of the log."""
    at = table[column].to_numpy()
    return np.flatnonzero((at >= START + day * DAY) & (at < START + (day + 1) * DAY))


def changed(table: pa.Table, place: int, **values: object) -> pa.Table:
    """`table` with other values in one row."""
    rows = table.to_pylist()
    rows[place] = rows[place] | values
    return pa.Table.from_pylist(rows, schema=table.schema)


def test_every_column_of_every_table_has_an_expectation() -> None:
    for name, spec in TABLES.items():
        said = {rule.column for rule in EXPECTATIONS[name].rules} | {
            one.column for one in EXPECTATIONS[name].references
        }
        assert said == set(spec.schema.names), name


FAULTS: dict[str, tuple[str, Callable[[dict], dict]]] = {
    "position lies from 0 to 1000000": ("impressions", lambda row: {"position": -1}),
    "propensity lies above 0 and not above 1": ("impressions", lambda row: {"propensity": 1.5}),
    "viewed_ms lies from 0 to 86400000": ("impressions", lambda row: {"viewed_ms": -5}),
    "known_at is not before shown_at": ("impressions", lambda row: {"known_at": row["shown_at"] - 1}),
    "post_id is a post_id of posts": ("impressions", lambda row: {"post_id": 10**9}),
    "request_id is a request_id of requests": ("impressions", lambda row: {"request_id": 10**9}),
    "features holds finite numbers": ("impressions", lambda row: {"features": [1.0, float("nan")]}),
    "kind is one of click, like, comment, share, dwell, profile, hide, report": ("actions", lambda row: {"kind": "poke"}),
    "user_id is a user_id of users": ("actions", lambda row: {"user_id": 10**9}),
    "value is finite, and for dwell from 0 to 86,400 s": ("actions", lambda row: {"kind": "dwell", "value": -1.0}),
    "slate_size lies from 0 to 10000": ("requests", lambda row: {"slate_size": -1}),
    "origin_post_id is another post": ("posts", lambda row: {"origin_post_id": row["post_id"]}),
    "edited_at is not before created_at": ("posts", lambda row: {"edited_at": row["created_at"] - 1}),
    "visibility is one of public, friends, list, private": ("posts", lambda row: {"visibility": "secret"}),
    "audience has no empty entries": ("posts", lambda row: {"audience": [1, -1]}),
    "city is not empty text": ("users", lambda row: {"city": ""}),
    "friend_id is another one": ("friendships", lambda row: {"friend_id": row["user_id"]}),
    "ended_at is not before since": ("friendships", lambda row: {"ended_at": row["since"] - 1}),
    "since lies in 1990 to 2099": ("friendships", lambda row: {"since": 5, "ended_at": None}),
}  # fmt: skip


def test_each_planted_fault_is_named_with_its_table_and_day(
    spark: object, tmp_path: Path, rng: np.random.Generator
) -> None:
    from pipelines.expectations.check import breaches_of

    tables = random_log(rng)
    expected, spoiled_rows = set(), Counter[str]()
    for words, (name, fault) in FAULTS.items():
        rows = tables[name].to_pylist()
        place = len(rows) // 3 + spoiled_rows[name]
        spoiled_rows[name] += 1
        tables[name] = changed(tables[name], place, **fault(rows[place]))
        day = tables[name][TABLES[name].day_column][place].as_py()
        expected.add((name, str(day_of(day)), words, 1))
    actions = tables["actions"]
    tables["actions"] = pa.concat_tables([actions, actions.slice(0, 1)])
    expected.add(("actions", str(day_of(actions["occurred_at"][0].as_py())), "action_id is there once", 1))
    found = breaches_of(save(tmp_path, tables).lake, spark)
    # Nothing else: an action of an unknown user, say, is no fault of its request.
    assert {(one.table, one.day, one.expectation, one.rows) for one in found} == expected


def spoiled(tables: Tables) -> Tables:
    """Half of the actions of day 3 without a known kind, and one impression of day 4 at an impossible place."""
    actions = tables["actions"]
    for place in on_day(actions, "occurred_at", 3)[::2]:
        actions = changed(actions, int(place), kind="poke")
    shown = tables["impressions"]
    shown = changed(shown, int(on_day(shown, "shown_at", 4)[0]), position=-1)
    return tables | {"actions": actions, "impressions": shown}


def test_a_broken_day_is_kept_out_of_all_event_tables_and_the_other_days_go_on(
    spark: object, tmp_path: Path, rng: np.random.Generator
) -> None:
    from pipelines.expectations import ExpectationSettings, keep_out_broken_days

    tables = spoiled(random_log(rng))
    workspace = save(tmp_path, tables)
    before = {name: workspace.lake.manifest(SPECS[name]).days for name in tables}
    report = keep_out_broken_days(workspace, spark, ExpectationSettings(limit=0.05))
    assert report["kept_out"] == {name: [DAY_3] for name in ("requests", "impressions", "actions")}
    assert {(one["table"], one["day"]) for one in report["breaches"]} == {("actions", DAY_3), ("impressions", DAY_4)}
    for name, days in before.items():
        gone = {DAY_3} if name in report["kept_out"] else set()
        assert workspace.lake.manifest(SPECS[name]).days == {
            day: entry for day, entry in days.items() if day not in gone
        }
    aside = workspace.root / "lake" / "quarantine" / "days" / "actions" / f"dt={DAY_3}"
    kept = pa.parquet.read_table(next(aside.iterdir()))
    assert kept.num_rows == before["actions"][DAY_3]["rows"] and pc.sum(pc.equal(kept["kind"], "poke")).as_py() > 1
    assert not pc.any(pc.equal(workspace.lake.read(SPECS["actions"])["kind"], "poke")).as_py()
    assert json.loads((workspace.root / "lake/quarantine/expectations.json").read_text()) == report
    once = {name: workspace.lake.manifest(SPECS[name]).content_hash for name in tables}
    # Actions of day 4 may name requests of day 3, which are kept out and not unheard of.
    again = keep_out_broken_days(workspace, spark, ExpectationSettings(limit=0.05))
    assert again["kept_out"] == report["kept_out"] and [one["day"] for one in again["breaches"]] == [DAY_4]
    assert {name: workspace.lake.manifest(SPECS[name]).content_hash for name in tables} == once


def test_a_table_without_a_sound_day_is_refused_and_stays_as_it_is(tmp_path: Path, rng: np.random.Generator) -> None:
    from pipelines.expectations.check import Breach, ExpectationSettings, keep_out

    workspace = save(tmp_path, random_log(rng))
    before = everything(workspace.root)
    days = workspace.lake.manifest(SPECS["requests"]).days
    breaches = [Breach("requests", day, "policy is not empty text", 2, entry["rows"]) for day, entry in days.items()]
    with pytest.raises(
        BadInput, match=r"every day of table requests is broken: requests of .* policy is not empty text does not"
    ):
        keep_out(workspace, breaches, ExpectationSettings())
    assert everything(workspace.root) == before


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("source", ["hetrec-lastfm", "open-bandit", "kuairand27k-likehate", "yidian"])
def test_published_logs_break_nothing(source: str, spark: object, shared_data: Path, tmp_path: Path) -> None:
    from pipelines.expectations.check import breaches_of
    from pipelines.sources import SOURCES

    folder = {"hetrec-lastfm": "hetrec-lastfm-2k", "open-bandit": "obd-sample", "yidian": "format-samples"}.get(
        source, source
    )
    workspace = Workspace(tmp_path)
    SOURCES[source](shared_data / folder, workspace)
    assert breaches_of(workspace.lake, spark) == []


@pytest.mark.slow
def test_the_environments_log_breaks_nothing(spark: object, tmp_path: Path) -> None:
    from pipelines.expectations.check import breaches_of
    from simulator.environment import EnvironmentSettings, simulate

    workspace = Workspace(tmp_path)
    simulate(workspace, EnvironmentSettings(users=150, days=12, seed=3))
    assert breaches_of(workspace.lake, spark) == []
