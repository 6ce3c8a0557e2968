"""The log that the pipelines are timed on is what it is said to be, and a state that is off is seen beside the peer."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks._process_tree import run_watched
from benchmarks._skewed_log import write_log
from benchmarks.pipelines import compare
from contracts.events import event_stream
from contracts.features import FAMILIES
from contracts.states import STATES
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from contracts.workspace import Workspace

EVENTS = 20_000


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Workspace, dict[str, int], pa.Table]:
    workspace = Workspace(tmp_path_factory.mktemp("log"))
    counts = write_log(workspace, EVENTS)
    tables = (workspace.lake.read(spec) for spec in (POSTS, IMPRESSIONS, ACTIONS))
    return workspace, counts, event_stream(*tables)


def test_the_log_holds_the_events_that_it_counts_and_about_as_many_as_asked(made):
    _, counts, events = made
    assert events.num_rows == counts["events"] == pytest.approx(EVENTS, rel=0.03)


def test_the_log_is_skewed_and_knows_some_rows_hours_late(made):
    _, counts, events = made
    events_A = np.sort(np.bincount(events["author_id"].to_numpy()))[::-1]
    assert events_A[0] > 0.04 * counts["events"] and events_A[:5].sum() > 10 * np.median(events_A[:50])
    late_us = events["known_at"].to_numpy() - events["occurred_at"].to_numpy()
    assert late_us.min() > 0 and 0.0005 < (late_us > 3.6e9).mean() < 0.02


def test_the_same_seed_writes_the_same_bytes(made, tmp_path):
    again = Workspace(tmp_path)
    write_log(again, EVENTS)
    for spec in (POSTS, IMPRESSIONS, ACTIONS):
        assert again.lake.manifest(spec).content_hash == made[0].lake.manifest(spec).content_hash


def _states(workspace: Workspace, folder, moments: list[int], off: float) -> None:
    """States of two keys on both sides, which differ by `off` in one value."""
    for name, family in FAMILIES.items():
        parts = []
        for moment in moments:
            keys = {key: pa.array([1, 2], STATES[name].schema.field(key).type) for key in family.key}
            value_NF = np.arange(2.0 * family.width).reshape(2, family.width)
            rows = {"as_of": [moment] * 2, **keys, "values": value_NF.tolist()}
            parts.append(pa.table(rows, schema=STATES[name].schema))
            value_NF[1, 0] += off
            pq.write_table(
                pa.table(rows | {"values": value_NF.tolist()}, schema=STATES[name].schema),
                folder / f"{name}-{moment}.parquet",
            )
        workspace.features.write(STATES[name], pa.concat_tables(parts))


@pytest.mark.parametrize("off", [0.0, 1e-6])
def test_a_value_that_differs_from_the_peers_is_found(made, tmp_path, off):
    dataset = made[0].dataset()
    moments, workspace = [dataset.split().validation[0], dataset.end], Workspace(tmp_path / "workspace")
    _states(workspace, tmp_path, moments, off)
    worst, states = compare(workspace, tmp_path, moments)
    assert states == 4 * len(FAMILIES)
    assert worst == pytest.approx(off / 7 if off else 0.0, rel=1e-3, abs=1e-15)


def test_a_missing_state_is_an_infinite_difference(made, tmp_path):
    dataset = made[0].dataset()
    moments, workspace = [dataset.split().validation[0], dataset.end], Workspace(tmp_path / "workspace")
    _states(workspace, tmp_path, moments, 0.0)
    path = tmp_path / f"tie-{moments[0]}.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    assert compare(workspace, tmp_path, moments)[0] == float("inf")


def test_memory_of_a_child_counts_too():
    hold = "import time; held = bytearray(200_000_000); time.sleep(1.5)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}]); print('{{}}')"
    assert run_watched([sys.executable, "-c", outer])["peak_mb"] > 200
