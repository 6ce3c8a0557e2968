"""The ranker's probabilities against what viewers did: every metric per task, on the viewed impressions of a window.

Shapes: N viewed impressions, F inputs, T tasks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.features import FEATURE_NAMES, assemble
from contracts.samples import SAMPLES
from contracts.splits import TimeSplit
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from ranking.scorers import RankerScorer
from simulator.evaluation.ranking_metrics import task_metrics
from simulator.evaluation.slices import FEATURES, slice_masks, sliced_metrics

TIES = "equal scores go by rising post id; AUC counts them half"
_ROWS = 65_536


@dataclass(frozen=True)
class Ranked:
    """`tasks`: metrics by task over all rows; `slices`: slice -> task -> metrics; `rows`: viewed impressions measured."""

    tasks: dict[str, Any]
    slices: dict[str, dict[str, Any]]
    rows: int


def ranker_metrics(workspace: Workspace, split: TimeSplit, ranker: RankerScorer, tasks: tuple[str, ...]) -> Ranked:
    """The ranker on all viewed impressions of the test window, overall and by slice; tasks that the log lacks are left out."""
    start, end = split.test
    columns = ["request_id", "user_id", "post_id", "position", "viewed", "split", "requested_at",
               *(f"label_{task}" for task in tasks), *FEATURE_NAMES]  # fmt: skip
    table = workspace.samples.read(SAMPLES, columns, start, end + split.window_us)
    asked_for = pc.and_(pc.greater_equal(table["requested_at"], start), pc.less(table["requested_at"], end))
    kept = pc.and_(pc.and_(pc.equal(table["split"], "test"), table["viewed"]), asked_for)
    table = table.filter(kept).combine_chunks()
    parts = [
        ranker.probabilities(assemble({name: part[name].to_numpy() for name in FEATURE_NAMES}))
        for part in (table.slice(at, _ROWS) for at in range(0, table.num_rows, _ROWS))
    ]
    probability_NT = np.concatenate(parts) if parts else np.zeros((0, len(TASK_NAMES)))
    ids = [table[name].to_numpy() for name in ("user_id", "request_id", "post_id")]
    masks = slice_masks({name: table[name].to_numpy() for name in FEATURES}, table["position"].to_numpy())
    overall: dict[str, Any] = {}
    slices: dict[str, dict[str, Any]] = {name: {} for name in masks}
    for task in tasks:
        label_N = table[f"label_{task}"].cast(pa.float64()).to_numpy()
        known = ~np.isnan(label_N)
        if not known.any():
            continue
        probability_N = probability_NT[known, TASK_NAMES.index(task)]
        rows = (label_N[known], probability_N, *(column[known] for column in ids))
        overall[task] = task_metrics(*rows)
        for name, metrics in sliced_metrics({name: mask[known] for name, mask in masks.items()}, *rows).items():
            slices[name][task] = metrics
    return Ranked(overall, slices, table.num_rows)
