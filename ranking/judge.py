"""Judges a ranker's logits: calibration fitted on validation, metrics per window and task, the logistic baseline beside them.

Legend: N rows, T tasks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from contracts.features import INPUT_NAMES
from contracts.tasks import TASK_NAMES
from distributed import TrainResult
from ranking.baseline import logistic_aucs
from ranking.calibration import fit_platt
from ranking.inputs import RankerInputs
from ranking.metrics import task_metrics
from ranking.transform import one_hot


def judge(logits: Mapping[str, np.ndarray], inputs: RankerInputs) -> tuple[dict[str, Any], np.ndarray]:
    """(metrics, calibration (T, 2)) of the logits (N, T) of the validation and the test window."""
    tasks_T, data = inputs.tasks_T, inputs.data
    platt_T2 = np.tile([1.0, 0.0], (len(TASK_NAMES), 1))
    for task in np.flatnonzero(tasks_T):
        labels_N = data["validation"].labels_NT[:, task]
        known_N = np.isfinite(labels_N)
        platt_T2[task] = fit_platt(logits["validation"][known_N, task], labels_N[known_N])
    metrics: dict[str, Any] = {"tasks_with_labels": [name for name, has in zip(TASK_NAMES, tasks_T) if has]}
    for window, logits_NT in logits.items():
        calibrated_NT = 1.0 / (1.0 + np.exp(-(logits_NT * platt_T2[:, 0] + platt_T2[:, 1])))
        metrics[window] = task_metrics(inputs.samples[window], calibrated_NT, tasks_T)
    train_ND, test_ND = (
        one_hot(data[name].numeric_NM, data[name].slots_NC, inputs.transform.slots) for name in ("train", "test")
    )
    linear = logistic_aucs(train_ND, data["train"].labels_NT, test_ND, data["test"].labels_NT, tasks_T)
    for task_name, value in linear.items():
        metrics["test"][task_name]["auc_logistic_regression"] = value
    metrics["platt"] = {TASK_NAMES[t]: platt_T2[t].tolist() for t in np.flatnonzero(tasks_T)}
    return metrics, platt_T2


def training_report(result: TrainResult, inputs: RankerInputs, seconds: float, layout: str, precision: str
                    ) -> dict[str, Any]:  # fmt: skip
    """How the training went, for the artifact's metrics; `seconds` are this run's, to which those it went on from are added."""
    train = inputs.samples["train"]
    return {
        "rows": len(train), "requests": len(train.group_sizes_G), "inputs": len(INPUT_NAMES),
        "layout": layout, "precision": precision, "seconds": round(result.earlier_seconds + seconds, 2),
        "samples_per_second": round(result.samples_per_second),
        "learning_rate": result.learning_rate, "best_epoch": result.best_epoch + 1,
        "best_validation": result.best_validation, "history": result.history, "steps": result.steps,
        "skipped_steps": result.skipped_steps, "largest_gradient_norm": result.largest_norm,
    }  # fmt: skip
