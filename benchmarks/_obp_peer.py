"""Run by the Python of `.venv-peers/obp` with a folder of arrays: what the Open Bandit Pipeline makes of them, as JSON.

Imports nothing of this project, since that environment has only the package's own world.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
from obp import ope

HYPERPARAMETER = {"clipped_ips": 3.0, "clipped_dr": 3.0, "switch_dr": 2.0, "dros": 10.0, "sg_ips": 0.1, "sg_dr": 0.1}
SINGLE = {
    "clipped_ips": ope.InverseProbabilityWeighting, "clipped_dr": ope.DoublyRobust, "switch_dr": ope.SwitchDoublyRobust,
    "dros": ope.DoublyRobustWithShrinkage, "sg_ips": ope.SubGaussianInverseProbabilityWeighting,
    "sg_dr": ope.SubGaussianDoublyRobust,
}  # fmt: skip
TUNED = {
    "clipped_ips": ope.InverseProbabilityWeightingTuning, "clipped_dr": ope.DoublyRobustTuning,
    "switch_dr": ope.SwitchDoublyRobustTuning, "dros": ope.DoublyRobustWithShrinkageTuning,
    "sg_ips": ope.SubGaussianInverseProbabilityWeightingTuning, "sg_dr": ope.SubGaussianDoublyRobustTuning,
}  # fmt: skip


def bandit_estimators(candidates: dict) -> dict:
    """Name -> estimator of single actions, one of a kind fixed and one tuned by SLOPE."""
    plain = {
        "ips": ope.InverseProbabilityWeighting(), "snips": ope.SelfNormalizedInverseProbabilityWeighting(),
        "dm": ope.DirectMethod(), "dr": ope.DoublyRobust(), "sndr": ope.SelfNormalizedDoublyRobust(),
    }  # fmt: skip
    fixed = {f"{name} at {HYPERPARAMETER[name]:g}": one(lambda_=HYPERPARAMETER[name]) for name, one in SINGLE.items()}
    tuned = {f"{name} by SLOPE": TUNED[name](lambdas=[float(x) for x in candidates[name]]) for name in TUNED}
    return {**plain, **fixed, **tuned}


def bandit_points(arrays: dict, candidates: dict) -> dict:
    """Point estimates of one log; `fixed_dist` is the deterministic policy for the replay method."""
    inputs = {"reward": arrays["reward"], "action": arrays["action"], "pscore": arrays["pscore"], "position": arrays["position"],
              "action_dist": arrays["action_dist"], "estimated_rewards_by_reg_model": arrays["q"]}  # fmt: skip
    points = {name: float(one.estimate_policy_value(**inputs)) for name, one in bandit_estimators(candidates).items()}
    points["replay"] = float(
        ope.ReplayMethod().estimate_policy_value(**{**inputs, "action_dist": arrays["fixed_dist"]})
    )
    return points


def slate_points(arrays: dict) -> dict:
    """Point estimates of one log of slates."""
    length, items = int(arrays["length"]), int(arrays["items"])
    whole = {
        "sips": ope.SlateStandardIPS(len_list=length), "ips": ope.SlateIndependentIPS(len_list=length),
        "rips": ope.SlateRewardInteractionIPS(len_list=length),
        "snsips": ope.SelfNormalizedSlateStandardIPS(len_list=length),
        "snips": ope.SelfNormalizedSlateIndependentIPS(len_list=length),
        "snrips": ope.SelfNormalizedSlateRewardInteractionIPS(len_list=length),
        "cascade_dr": ope.SlateCascadeDoublyRobust(len_list=length, n_unique_action=items),
    }  # fmt: skip
    inputs = {name: array for name, array in arrays.items() if name not in ("length", "items")}
    return {name: float(one.estimate_policy_value(**inputs)) for name, one in whole.items()}


def million(arrays: dict, candidates: dict, resamples: int) -> dict:
    """Seconds for points and bootstrap intervals of the whole set."""
    inputs = {"reward": arrays["reward"], "action": arrays["action"], "pscore": arrays["pscore"], "position": arrays["position"],
              "action_dist": arrays["action_dist"], "estimated_rewards_by_reg_model": arrays["q"]}  # fmt: skip
    chosen = {n: e for n, e in bandit_estimators(candidates).items() if " at " not in n}
    seconds, points, intervals = {}, {}, {}
    for name, one in {**chosen, "replay": ope.ReplayMethod()}.items():
        mine = {**inputs, "action_dist": arrays["fixed_dist"]} if name == "replay" else inputs
        began = time.perf_counter()
        points[name] = float(one.estimate_policy_value(**mine))
        found = one.estimate_interval(**mine, n_bootstrap_samples=resamples, random_state=7)
        seconds[name] = time.perf_counter() - began
        intervals[name] = [v for k, v in found.items() if "CI" in k]
        print(f"obp: {name} {seconds[name]:.1f} s", file=sys.stderr)
    return {"seconds": seconds, "points": points, "intervals": intervals}


def main() -> None:
    """`_obp_peer.py FOLDER`: reads every NAME.npz and `task.json` there, writes `obp.json`."""
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    found: dict = {}
    for name, kind in task["logs"].items():
        with np.load(folder / f"{name}.npz") as file:
            arrays = dict(file)
        if kind == "slates":
            found[name] = slate_points(arrays)
        elif kind == "million":
            found[name] = million(arrays, task["candidates"], task["resamples"])
        else:
            found[name] = bandit_points(arrays, task["candidates"])
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    (folder / "obp.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
