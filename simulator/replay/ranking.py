"""The ranker's probabilities against what viewers did: every metric per task, on the viewed impressions of a window.

Shapes: N viewed impressions, F inputs, T tasks.
"""

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

TIES = "equal scores go by rising post id; AUC counts them half"
_ROWS = 65_536


def ranker_metrics(
    workspace: Workspace, split: TimeSplit, ranker: RankerScorer, tasks: tuple[str, ...]
) -> tuple[dict[str, Any], int]:
    """(metrics by task, rows) of all viewed impressions of the test window; tasks that the log lacks are left out."""
    start, end = split.test
    columns = [
        "request_id",
        "user_id",
        "post_id",
        "viewed",
        "split",
        "requested_at",
        *(f"label_{task}" for task in tasks),
        *FEATURE_NAMES,
    ]
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
    metrics = {}
    for task in tasks:
        label_N = table[f"label_{task}"].cast(pa.float64()).to_numpy()
        known = ~np.isnan(label_N)
        if known.any():
            probability_N = probability_NT[known, TASK_NAMES.index(task)]
            metrics[task] = task_metrics(label_N[known], probability_N, *(column[known] for column in ids))
    return metrics, table.num_rows
