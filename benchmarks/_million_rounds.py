"""`python -m benchmarks._million_rounds FOLDER`: the whole estimator set with bootstrap intervals on the arrays that the peer gets.

In a process of its own, so that the peak memory is its own. Shapes: R rounds, A actions.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from simulator.evaluation import (
    ESTIMATORS,
    FAMILIES,
    SLATE_ESTIMATORS,
    LoggedData,
    Target,
    bootstrap,
    percentile_interval,
    slope,
    value,
)

PLAIN = ("ips", "snips", "dm", "dr", "sndr")


def synthetic(rounds: int, actions: int, seed: int) -> dict[str, np.ndarray]:
    """A contextual bandit's log as the peer takes it: softmax policies of 5 features, rewards 0 or 1."""
    generator = np.random.default_rng(seed)
    context_RF, weight_FA = generator.normal(size=(rounds, 5)), generator.normal(size=(5, actions))
    score_RA = context_RF @ weight_FA
    chance_RA = 1 / (1 + np.exp(2.0 - 0.5 * score_RA))
    logging_RA, target_RA = (_softmax(sharpness * score_RA) for sharpness in (-0.3, 0.4))
    action_R = np.minimum((logging_RA.cumsum(axis=1) < generator.random((rounds, 1))).sum(axis=1), actions - 1)
    at = (np.arange(rounds), action_R)
    best_RA = (np.arange(actions) == score_RA.argmax(axis=1)[:, None]).astype(float)
    return {
        "reward": (generator.random(rounds) < chance_RA[at]).astype(float), "action": action_R, "pscore": logging_RA[at],
        "position": np.zeros(rounds, np.int64), "action_dist": target_RA[:, :, None], "fixed_dist": best_RA[:, :, None],
        "q": (0.8 * chance_RA)[:, :, None],
    }  # fmt: skip


def judge(arrays: dict[str, np.ndarray], resamples: int) -> dict:
    """Seconds, point estimates and 95% intervals of the whole set, from the same arrays as the peer's."""
    began = time.perf_counter()
    rounds = np.arange(len(arrays["reward"]))
    at = (rounds, arrays["action"], arrays["position"])
    q_RA, choice_RA = (arrays[name][rounds, :, arrays["position"]] for name in ("q", "action_dist"))
    log = LoggedData(
        rounds, np.ones((len(rounds), 1), bool), arrays["action"][:, None], arrays["reward"][:, None], arrays["pscore"][:, None],
        np.full(len(rounds), q_RA.shape[1]), baseline_RK=arrays["q"][at][:, None],
    )  # fmt: skip
    target = Target(arrays["action_dist"][at][:, None], np.einsum("ra,ra->r", q_RA, choice_RA)[:, None])
    terms = {name: ESTIMATORS[name](log, target) for name in PLAIN}
    terms |= {f"{name} by SLOPE": slope(family, log, target).terms for name, family in FAMILIES.items()}
    terms["replay"] = SLATE_ESTIMATORS["replay"](log, Target(arrays["fixed_dist"][at][:, None]))
    prepared = time.perf_counter()
    resampled = bootstrap(terms, log.viewer_R, resamples, np.random.default_rng(7))
    found = {
        "points": {name: value(one) for name, one in terms.items()},
        "intervals": {name: percentile_interval(resampled[name]) for name in terms},
    }
    ended = time.perf_counter()
    return {**found, "seconds": ended - began, "bootstrap_seconds": ended - prepared}


def main() -> None:
    """Reads `log0.npz` and `task.json` in the folder, writes `ours.json`."""
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    with np.load(folder / "log0.npz") as file:
        arrays = dict(file)
    found = judge(arrays, task["resamples"])
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    (folder / "ours.json").write_text(json.dumps(found))


def _softmax(score_RA: np.ndarray) -> np.ndarray:
    raised_RA = np.exp(score_RA - score_RA.max(axis=1, keepdims=True))
    return raised_RA / raised_RA.sum(axis=1, keepdims=True)


if __name__ == "__main__":
    main()
