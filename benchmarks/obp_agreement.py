"""The same logs given to this project's estimators and to the Open Bandit Pipeline's: arrays for one, figures of the other.

Shapes: R rounds or requests, A items, K positions.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.known_world import KnownWorld, SampledLog
from benchmarks.open_bandit import CAMPAIGNS, DIRECTIONS, OpenBanditLog, load
from simulator.evaluation import ESTIMATORS, FAMILIES, SLATE_ESTIMATORS, LoggedData, Target, slope, value

ROOT = Path(__file__).parent.parent
PEER = ROOT / ".venv-peers" / "obp" / "bin" / "python"
FIXED = {"clipped_ips": 3.0, "clipped_dr": 3.0, "switch_dr": 2.0, "dros": 10.0, "sg_ips": 0.1, "sg_dr": 0.1}
SLATES = ("sips", "ips", "rips", "snsips", "snips", "snrips", "cascade_dr")
CANDIDATES = {name: family.candidates for name, family in FAMILIES.items()}


def open_bandit_logs(folder: Path) -> Iterator[tuple[str, OpenBanditLog]]:
    """Name and log of every campaign in every direction."""
    for campaign in CAMPAIGNS:
        for direction in DIRECTIONS:
            yield f"{campaign}, {direction}", load(folder, campaign, direction)


def bandit_points(log: LoggedData, target: Target, fixed: Target) -> dict[str, float]:
    """Every estimator of single actions that both have; `fixed` is the policy that replay can answer for."""
    found = {name: value(ESTIMATORS[name](log, target)) for name in ("ips", "snips", "dm", "dr", "sndr")}
    for name, family in FAMILIES.items():
        found[f"{name} at {FIXED[name]:g}"] = value(family.estimator(log, target, FIXED[name]))
        found[f"{name} by SLOPE"] = value(slope(family, log, target).terms)
    return {**found, "replay": value(SLATE_ESTIMATORS["replay"](log, fixed))}


def bandit_arrays(log: OpenBanditLog) -> dict[str, np.ndarray]:
    """The log as the other package takes it."""
    rounds, items = len(log.item_R), len(log.choice_AK)
    fixed_AK = (np.arange(items)[:, None] == log.best_K).astype(float)
    return {
        "reward": log.click_R, "action": log.item_R, "pscore": log.propensity_R, "position": log.position_R, "q": log.q_RAK,
        "action_dist": np.broadcast_to(log.choice_AK, (rounds, items, 3)),
        "fixed_dist": np.broadcast_to(fixed_AK, (rounds, items, 3)),
    }  # fmt: skip


def slate_logs(seed: int = 3) -> Iterator[tuple[str, KnownWorld, SampledLog, np.ndarray]]:
    """Two logs of slates whose posts tire of each other, with a policy that seeks and one that avoids what people like."""
    generator = np.random.default_rng(seed)
    world = KnownWorld.make(generator, fatigue=0.6)
    policies = world.policies(10, generator)
    for name, policy_CS in (("slates, seeking", policies[8]), ("slates, avoiding", policies[1])):
        yield name, world, world.draw(2_000, 200, generator), policy_CS


def slate_points(log: LoggedData, target: Target) -> dict[str, float]:
    """Every estimator of slates that both have."""
    return {name: value({**ESTIMATORS, **SLATE_ESTIMATORS}[name](log, target)) for name in SLATES}


def slate_arrays(
    world: KnownWorld, sampled: SampledLog, target: Target, policy_CS: np.ndarray
) -> dict[str, np.ndarray]:
    """The log as the other package takes it: a row for each position, the whole choice at each given what stands above."""
    log = sampled.log
    assert log.prefix_propensity_RK is not None
    assert target.prefix_probability_RK is not None
    requests, length = log.post_RK.shape
    items = int(world.slates_SK.max()) + 1
    choice_RKA, q_RKA = world.continuations(sampled, policy_CS)
    return {
        "length": np.array(length), "items": np.array(items), "slate_id": np.repeat(np.arange(requests), length),
        "position": np.tile(np.arange(length), requests), "action": log.post_RK.ravel(), "reward": log.reward_RK.ravel(),
        "pscore": np.repeat(log.prefix_propensity_RK[:, -1], length),
        "evaluation_policy_pscore": np.repeat(target.prefix_probability_RK[:, -1], length),
        "pscore_item_position": log.propensity_RK.ravel(),
        "evaluation_policy_pscore_item_position": target.probability_RK.ravel(),
        "pscore_cascade": log.prefix_propensity_RK.ravel(),
        "evaluation_policy_pscore_cascade": target.prefix_probability_RK.ravel(),
        "evaluation_policy_action_dist": choice_RKA.ravel(), "q_hat": q_RKA.ravel(),
    }  # fmt: skip


def ask_peer(folder: Path, logs: dict[str, tuple[str, dict[str, np.ndarray]]], resamples: int = 0) -> dict[str, Any]:
    """What the other package makes of logs of kind "bandit", "slates" or "million"; one thread, like the other side."""
    task = {"logs": {f"log{i}": kind for i, (kind, _) in enumerate(logs.values())}, "resamples": resamples,
            "candidates": CANDIDATES}  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    for i, (_, arrays) in enumerate(logs.values()):
        np.savez(folder / f"log{i}.npz", allow_pickle=False, **arrays)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([str(PEER), str(Path(__file__).with_name("_obp_peer.py")), str(folder)], check=True, env=environment)
    found = json.loads((folder / "obp.json").read_text())
    return {**{name: found[f"log{i}"] for i, name in enumerate(logs)}, "peak_gb": found["peak_gb"]}


def compare_with_peer(sample: Path, folder: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """Log -> estimator -> (ours, theirs), on the Open Bandit sample and on slates."""
    ours: dict[str, dict[str, float]] = {}
    logs: dict[str, tuple[str, dict[str, np.ndarray]]] = {}
    for name, log in open_bandit_logs(sample):
        ours[name] = bandit_points(log.logged(), log.target(), log.fixed_target())
        logs[name] = ("bandit", bandit_arrays(log))
    for name, world, sampled, policy_CS in slate_logs():
        target = world.target(sampled, policy_CS)
        ours[name] = slate_points(sampled.log, target)
        logs[name] = ("slates", slate_arrays(world, sampled, target, policy_CS))
    theirs = ask_peer(folder, logs)
    return {name: {one: (ours[name][one], theirs[name][one]) for one in ours[name]} for name in ours}
