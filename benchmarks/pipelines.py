"""The feature-state job from one to fifty million events, beside the same states in DuckDB: time, memory, growth.

`python -m benchmarks.pipelines`; needs `scripts/peers.sh duckdb` once.
"""

import json
import math
import sys
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks._process_tree import run_watched
from benchmarks._skewed_log import write_log
from benchmarks.claims import Claim, Result, run
from contracts.features import FAMILIES
from contracts.progress import stage
from contracts.states import STATES
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from contracts.workspace import Workspace

ROOT = Path(__file__).parent.parent
PEER = ROOT / ".venv-peers" / "duckdb" / "bin" / "python"
FULL, QUICK = (1_000_000, 10_000_000, 50_000_000), (100_000, 300_000)
JUDGED = 10_000_000
"""Events at which Spark is held against the peer."""
LARGEST_RATIO, LARGEST_GROWTH, LARGEST_DIFFERENCE = 4.0, 1.15, 1e-9
CORES = {"SPARK_MASTER": "local[2]"}


def measure(quick: bool) -> Result:
    """Seconds, peak memory and growth of `feedloop features` without the checks, by events; each size in a fresh process."""
    sizes = QUICK if quick else FULL
    found = [_one_size(events) for events in sizes]
    result = Result(sizes={"runs": found})
    judged = next((one for one in found if one["asked"] == JUDGED), found[-1])
    for one in found:
        result.claims += _claims(one, judged is one and not quick)
    # Spark's own start-up weighs on the small sizes and flatters the growth from there, so each step stands too.
    steps = [(found[0], found[-1]), *pairwise(found)] if len(found) > 2 else [(found[0], found[-1])]
    for small, large in steps:
        growth = _per_event(large) / _per_event(small)
        power = 1 + math.log(growth) / math.log(large["events"] / small["events"])
        what = f"pipelines: from {_millions(small)} to {_millions(large)} events"
        goal = f"at most {LARGEST_GROWTH} x" if (small, large) == steps[0] else ""
        result.claims += [
            Claim(f"{what}, seconds per million events", 1e6 * _per_event(large), "s", _millions(small),
                  1e6 * _per_event(small), goal, not goal or growth <= LARGEST_GROWTH),
            Claim(f"{what}, growth exponent of the time", power, "power"),
        ]  # fmt: skip
    if not PEER.is_file():
        result.not_measured.append("the same states in DuckDB: run `scripts/peers.sh duckdb` first")
    return result


def _one_size(events: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pipelines-") as folder:
        workspace = Workspace(Path(folder) / "workspace")
        with stage(f"a log of {events:,} events, to disk"):
            counts = write_log(workspace, events)
        one: dict[str, Any] = {"asked": events, **counts}
        with stage(f"{events:,} events, Spark"):
            one["spark"] = run_watched([sys.executable, "-m", "benchmarks._feature_states", str(workspace.root)], CORES)
        if PEER.is_file():
            peer = Path(folder) / "peer"
            with stage(f"{events:,} events, DuckDB"):
                moments = _ask(workspace, peer)
                one["duckdb"] = run_watched([str(PEER), str(Path(__file__).with_name("_duckdb_peer.py")), str(peer)])
            with stage(f"{events:,} events, both compared"):
                one["difference"], one["states"] = compare(workspace, peer, moments)
    return one


def _ask(workspace: Workspace, peer: Path) -> list[int]:
    """Writes the peer's task; returns the moments."""
    dataset = workspace.dataset()
    moments = [dataset.split().validation[0], dataset.end]
    files = {spec.name: workspace.lake.files(spec) for spec in (POSTS, IMPRESSIONS, ACTIONS)}
    peer.mkdir()
    families = [asdict(family) for family in FAMILIES.values()]
    (peer / "task.json").write_text(json.dumps({"files": files, "families": families, "moments": moments}))
    return moments


def compare(workspace: Workspace, peer: Path, moments: list[int]) -> tuple[float, int]:
    """The largest difference between the two sides' values, relative to 1 + the value, and the states compared.

    Infinite where the keys or their order differ.
    """
    worst, states = 0.0, 0
    for name, family in FAMILIES.items():
        for moment in moments:
            ours = workspace.features.read(STATES[name], start=moment, end=moment + 1)
            theirs = pq.read_table(peer / f"{name}-{moment}.parquet")
            states += ours.num_rows
            if any(not _same(ours[key], theirs[key]) for key in ("as_of", *family.key)):
                return math.inf, states
            values, expected = (pc.list_flatten(side["values"]).to_numpy() for side in (ours, theirs))
            if len(values) != len(expected):
                return math.inf, states
            if len(values):
                worst = max(worst, float(np.max(np.abs(values - expected) / (1 + np.abs(expected)))))
    return worst, states


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    return len(one) == len(other) and bool(np.array_equal(one.to_numpy(), other.to_numpy()))


def _claims(one: dict[str, Any], judged: bool) -> list[Claim]:
    spark, what = one["spark"], f"pipelines: feature states of {_millions(one)} events"
    peer = one.get("duckdb", {})
    seconds = peer.get("seconds")
    goal = f"at most {LARGEST_RATIO:g} x" if judged and seconds else ""
    named = f"DuckDB {peer['version']}" if peer else ""
    met = not goal or spark["seconds"] <= LARGEST_RATIO * seconds
    per_s, peers_per_s = one["events"] / spark["seconds"], one["events"] / seconds if seconds else None
    claims = [
        Claim(f"{what}, Spark", spark["seconds"], "s", named, seconds, goal, met),
        Claim(f"{what}, speed", per_s, "events/s", named, peers_per_s),
        Claim(f"{what}, peak memory of all its processes", spark["peak_mb"], "MB", named, peer.get("peak_mb")),
        Claim(f"{what}, start of the session (not in the above)", spark["start_s"], "s"),
    ]
    if peer:
        claims.append(Claim(
            f"{what}: largest difference in {one['states']:,} states", one["difference"], "relative to 1 + value", named,
            goal=f"at most {LARGEST_DIFFERENCE:g}", met=one["difference"] <= LARGEST_DIFFERENCE,
        ))  # fmt: skip
    return claims


def _per_event(one: dict[str, Any]) -> float:
    return one["spark"]["seconds"] / one["events"]


def _millions(one: dict[str, Any]) -> str:
    return f"{one['asked'] / 1e6:g} million"


if __name__ == "__main__":
    run("pipelines", measure)
