"""Off-policy evaluation: agreement with the Open Bandit Pipeline, time and memory beside it, and coverage of known truths.

`python -m benchmarks.evaluation`; needs `scripts/peers.sh obp` once, and the Open Bandit sample in `../shared/data/obd-sample`
or where `FEEDLOOP_OBD_SAMPLE` says. `--quick` takes few logs, whose coverage is noisy.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._million_rounds import synthetic
from benchmarks.claims import Claim, Result, run
from benchmarks.coverage_study import Row, known_world_study
from benchmarks.environment_study import environment_study
from benchmarks.obp_agreement import PEER, ROOT, ask_peer, compare_with_peer
from benchmarks.open_bandit import load
from simulator.evaluation import ESTIMATORS, value

APART = (
    "ips",
    "snips",
    "dr",
    "sndr",
    "pbm",
    "pbm_dr",
    "sips",
    "snsips",
    "rips",
    "snrips",
    "cascade_dr",
    "sncascade_dr",
)
TIRED = ("sips", "snsips", "rips", "snrips", "cascade_dr", "sncascade_dr")
FEEDS = ("ips", "snips", "dr", "sndr", "pbm", "pbm_dr")


def measure(quick: bool) -> Result:
    """Everything that the evaluation claims of itself."""
    result = Result()
    sample = Path(os.environ.get("FEEDLOOP_OBD_SAMPLE", ROOT.parent / "shared" / "data" / "obd-sample"))
    if sample.is_dir():
        _published(result, sample)
    else:
        result.not_measured.append(f"the Open Bandit sample: {sample} is no folder")
    if PEER.is_file():
        if sample.is_dir():
            _agreement(result, sample)
        _speed(result, 100_000 if quick else 1_000_000, 50 if quick else 1_000)
    else:
        result.not_measured.append("the Open Bandit Pipeline: run `scripts/peers.sh obp` first")
    _coverage(result, quick)
    return result


def _published(result: Result, sample: Path) -> None:
    log = load(sample, "all", "random to bts")
    estimate = value(ESTIMATORS["ips"](log.logged(), log.target()))
    result.claims.append(Claim("IPS on the Open Bandit sample, random log, campaign all", estimate, "click rate", "published",
                               0.00455288, "equal to 5e-9", abs(estimate - 0.00455288) < 5e-9))  # fmt: skip


def _agreement(result: Result, sample: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        both = compare_with_peer(sample, Path(folder))
    off = {
        f"{log}: {name}": abs(ours - theirs) for log, found in both.items() for name, (ours, theirs) in found.items()
    }
    worst = max(off, key=lambda one: off[one])
    result.sizes["compared with obp"] = {"estimates": len(off), "logs": list(both), "worst": worst}
    result.claims.append(Claim(f"largest difference from obp 0.5.7 over {len(off)} point estimates", off[worst], "value",
                               goal="at most 1e-9", met=off[worst] <= 1e-9))  # fmt: skip


def _speed(result: Result, rounds: int, resamples: int) -> None:
    sizes = {"rounds": rounds, "actions": 10, "resamples": resamples, "threads": 1, "seed": 11}
    result.sizes["speed"] = sizes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The peer goes first: it leaves the arrays that our side reads.
        theirs = ask_peer(folder, {"log": ("million", synthetic(rounds, 10, seed=11))}, resamples)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", "benchmarks._million_rounds", name], check=True, env=environment, cwd=ROOT
        )
        ours = json.loads((folder / "ours.json").read_text())
    names = list(ours["points"])
    off = max(abs(ours["points"][one] - theirs["log"]["points"][one]) for one in names)
    seconds = sum(theirs["log"]["seconds"][one] for one in names)
    words = f"{len(names)} estimators, SLOPE and {resamples:,} resamples on {rounds:,} rounds"
    result.sizes["speed"] |= {"estimators": names, "largest difference of points": off, "intervals": ours["intervals"],
                              "intervals of obp": theirs["log"]["intervals"], "seconds of obp": theirs["log"]["seconds"]}  # fmt: skip
    goal = "at least 20 times faster" if resamples >= 1_000 else ""
    result.claims += [
        Claim(words, ours["seconds"], "s", "obp 0.5.7", seconds, goal, seconds >= 20 * ours["seconds"]),
        Claim("peak memory of that, the log included", ours["peak_gb"], "GB", "obp 0.5.7", theirs["peak_gb"]),
    ]  # fmt: skip


def _coverage(result: Result, quick: bool) -> None:
    logs = 5 if quick else 250
    shared = {"logs": logs, "resamples": 100 if quick else 1_000}
    worlds = {"positions apart": (1.0, 101, APART), "posts tire of like ones above": (0.5, 102, TIRED)}
    for world, (fatigue, seed, right) in worlds.items():
        sizes: dict[str, Any] = {**shared, "requests": 2_000, "viewers": 1_000, "seed": seed, "fatigue": fatigue}
        _table(result, f"known world, {world}", known_world_study(**sizes), right, sizes, quick)
    sizes = {**shared, "users": 300, "viewers": 300, "seed": 103}
    _table(result, "behaviour environment", environment_study(**sizes), FEEDS, sizes, quick)


def _table(
    result: Result, world: str, rows: dict[str, Row], right: tuple[str, ...], sizes: dict[str, Any], quick: bool
) -> None:
    result.sizes[world] = {**sizes, "rows": {name: asdict(row) for name, row in rows.items()}}
    print(f"{world}: {sizes}")
    for name, row in rows.items():
        print(f"  {name:13s}" + "".join(f" {label} {figure:.3f}" for label, figure in asdict(row).items()))
    covered = {name: rows[name].bootstrap for name in right}
    robust, plain = ("dr", "ips") if "ips" in right else ("cascade_dr", "rips")
    least = min((rows[name].tau, name) for name in right)
    judged = not quick  # ten logs say nothing of a coverage
    for word, name in (("least", min(right, key=covered.__getitem__)), ("most", max(right, key=covered.__getitem__))):
        share = covered[name]
        result.claims.append(Claim(f"{world}: {word} coverage of {len(right)} estimators' 95% intervals ({name})", share, "share",
                                   goal="0.92 to 0.98" if judged else "", met=0.92 <= share <= 0.98))  # fmt: skip
    result.claims += [
        Claim(f"{world}: relative error of {robust}", rows[robust].error, "of the truth", plain, rows[plain].error,
              "below the peer" if judged else "", rows[robust].error < rows[plain].error),
        Claim(f"{world}: Kendall's tau of ten policies, lowest of {len(right)} estimators ({least[1]})", least[0], "tau",
              goal="at least 0.8" if judged else "", met=least[0] >= 0.8),
    ]  # fmt: skip


if __name__ == "__main__":
    run("evaluation", measure)
