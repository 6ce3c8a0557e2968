"""Batch and online features beside each other: what Spark wrote into the samples against what the walk hydrates.

Shapes: N sampled impressions.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.features import FEATURE_NAMES, INPUT_NAMES
from contracts.samples import SAMPLES
from contracts.workspace import Workspace
from simulator.replay.walk import ExactInputs

TOLERANCE = 1e-6


def compare_features(workspace: Workspace, exact: ExactInputs, start: int, end: int) -> dict[str, Any]:
    """Largest |batch - online| of every feature over the impressions shown in [start, end) (UTC us).

    Differences are absolute for values up to 1 and relative above. Returns rows compared, the features beyond the
    tolerance with their largest difference and an example, and a sentence.
    """
    request_N, post_N = exact.request_N, exact.post_N
    if len(request_N) == 0:
        return {"rows": 0, "largest_difference": None, "differing": {}, "sentence": "not compared"}
    table = workspace.samples.read(SAMPLES, ["request_id", "post_id", *FEATURE_NAMES], start, end)
    table = table.filter(pc.is_in(table["request_id"], pa.array(np.unique(request_N)))).combine_chunks()
    batch_keys = np.stack([table["request_id"].to_numpy(), table["post_id"].to_numpy()], axis=1)
    online_keys = np.stack([request_N, post_N], axis=1)
    _, codes = np.unique(np.concatenate([batch_keys, online_keys]), axis=0, return_inverse=True)
    codes = codes.ravel()
    row_of = np.full(codes.max() + 1, -1)
    row_of[codes[: len(batch_keys)]] = np.arange(len(batch_keys))
    row_N = row_of[codes[len(batch_keys) :]]
    found = row_N >= 0
    differing, largest = {}, 0.0
    for name in FEATURE_NAMES:
        batch_N, online_N = table[name].to_numpy()[row_N[found]], exact.inputs_NF[found, INPUT_NAMES.index(name)]
        difference_N = np.abs(batch_N - online_N) / np.maximum(1.0, np.abs(batch_N))
        worst = int(np.argmax(difference_N)) if len(difference_N) else 0
        if len(difference_N) and difference_N[worst] > TOLERANCE:
            differing[name] = {
                "largest_difference": float(difference_N[worst]), "rows": int((difference_N > TOLERANCE).sum()),
                "batch": float(batch_N[worst]), "online": float(online_N[worst]),
                "request_id": int(request_N[found][worst]), "post_id": int(post_N[found][worst]),
            }  # fmt: skip
        largest = max(largest, float(difference_N[worst]) if len(difference_N) else 0.0)
    rows = int(found.sum())
    if differing:
        worst_name = max(differing, key=lambda name: differing[name]["largest_difference"])
        one = differing[worst_name]
        sentence = (f"{len(differing)} of {len(FEATURE_NAMES)} features differ between batch and online by more than {TOLERANCE:g} "
                    f"over {rows:,} impressions; most in {worst_name}: {one['batch']:g} in batch, {one['online']:g} online, "
                    f"at request {one['request_id']}, post {one['post_id']}")  # fmt: skip
    else:
        sentence = (
            f"all {len(FEATURE_NAMES)} features agree over {rows:,} impressions, largest difference {largest:.1e}"
        )
    return {"rows": rows, "largest_difference": largest, "differing": differing, "sentence": sentence}
