"""Trains the ranker: samples in, a calibrated multi-task network out, with its logistic baseline beside it.

Legend: N rows, M numeric inputs, C categories, T tasks.
"""

import time
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from contracts.errors import BadInput
from contracts.features import FEATURE_VERSION, INPUT_NAMES
from contracts.files import canonical_json
from contracts.progress import say, stage
from contracts.samples import SAMPLES
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from distributed import LayoutError, ParallelLayout, RankFailed, TrainResult, launch
from distributed.launch import given_world_size
from ranking.baseline import logistic_aucs
from ranking.calibration import fit_platt
from ranking.data import Samples, check_samples, exposure_weights, load_samples, tasks_with_labels
from ranking.export import ServedRanker, export_onnx
from ranking.fit import TaskData, build, fit
from ranking.gates import gate_report
from ranking.metrics import task_metrics
from ranking.mmoe import MMoE
from ranking.settings import RankerSettings
from ranking.transform import InputTransform, one_hot

_EXPORT_TOLERANCE = 1e-4


def train_ranker(workspace: Workspace, settings: RankerSettings | None = None, nproc: int = 1,
                 layout: str | None = None) -> dict[str, Any]:  # fmt: skip
    """Trains the ranker on `nproc` ranks and puts it in force as artifact "ranker"; returns its metrics.

    `layout` defaults to dp_replicate=nproc. Files: `model.onnx` (raw inputs to calibrated probabilities, float32),
    `checkpoint.pt`, `transform.json`, `model.json`. Under torchrun each rank calls this, and the first one writes.
    `BadInput` when the samples or the layout cannot be used.
    """
    settings = settings or RankerSettings()
    try:
        world_size = given_world_size(nproc)
        parsed = ParallelLayout.parse(f"dp_replicate={world_size}" if layout is None else layout)
        parsed.only("dp_replicate", "dp_shard", what="the ranker").check(world_size)
    except LayoutError as error:
        raise BadInput(str(error)) from None
    check_samples(workspace)
    with stage("load samples"):
        samples = {name: load_samples(workspace, name) for name in ("train", "validation", "test")}
        tasks_T = _learnable(samples["train"], workspace)
        transform = InputTransform.fit(samples["train"].inputs_NF, settings.category_codes, settings.category_rows)
        data = {name: _transformed(part, transform, tasks_T, settings) for name, part in samples.items()}
    begun = time.perf_counter()
    with stage(f"train the ranker on {len(samples['train']):,} viewed impressions, {parsed}"):
        try:
            index, result = launch(fit, (data["train"], data["validation"], transform.slots, settings, parsed), nproc,
                                   timeout_s=settings.collective_timeout_s, threads=settings.threads)[0]  # fmt: skip
        except RankFailed as error:
            raise RuntimeError(f"the ranker was not trained: {error}") from error
    if index != 0:
        return {"artifact": "ranker", "rank": index}
    seconds = time.perf_counter() - begun
    network = build(transform.slots, data["train"], settings)
    network.load_state_dict(result.state)
    network.to(torch.float64).eval()
    with stage("calibrate, compare with logistic regression, export"), threadpool_limits(settings.threads):
        metrics, platt_T2 = _judge(network, samples, data, transform, tasks_T)
        metrics |= _training_report(result, samples["train"], seconds, parsed, settings)
        for warning in metrics["warnings"]:
            say(f"! {warning}")
        served = ServedRanker(transform, network, platt_T2, tasks_T)
        version = _write(workspace, served, result, samples["test"].inputs_NF[:2048], settings, metrics)
    return {"artifact": "ranker", "version": version, **metrics}


def _learnable(train_samples: Samples, workspace: Workspace) -> np.ndarray:
    tasks_T = tasks_with_labels(train_samples)
    if not tasks_T.any():
        raise BadInput(
            f"no task has both labels among {len(train_samples)} viewed train samples: there is nothing to learn"
        )
    declared = workspace.dataset().tasks
    for name, learnt in zip(TASK_NAMES, tasks_T):
        if name in declared and not learnt:
            say(f"! task {name} has no positive or no negative training label and is left out")
    return tasks_T


def _transformed(
    samples: Samples, transform: InputTransform, tasks_T: np.ndarray, settings: RankerSettings
) -> TaskData:
    with torch.no_grad():
        numeric_NM, slots_NC = (tensor.numpy() for tensor in transform(torch.from_numpy(samples.inputs_NF)))
    labels_NT = np.where(tasks_T, samples.labels_NT, np.nan)
    clip = settings.exposure_clip if samples.split == "train" else None
    return TaskData(numeric_NM, slots_NC, labels_NT, exposure_weights(samples.propensities_N, clip))


def _judge(network: MMoE, samples: dict[str, Samples], data: dict[str, TaskData], transform: InputTransform,
           tasks_T: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:  # fmt: skip
    """Metrics per window and task, gates, baseline; and the calibration (T, 2) fitted on validation."""
    logits_NT: dict[str, np.ndarray] = {}
    for name in ("validation", "test"):
        with torch.no_grad():
            logits_NT[name] = network(
                torch.from_numpy(data[name].numeric_NM), torch.from_numpy(data[name].slots_NC)
            ).numpy()
    platt_T2 = np.tile([1.0, 0.0], (len(TASK_NAMES), 1))
    for task in np.flatnonzero(tasks_T):
        labels_N = data["validation"].labels_NT[:, task]
        known_N = np.isfinite(labels_N)
        platt_T2[task] = fit_platt(logits_NT["validation"][known_N, task], labels_N[known_N])
    metrics: dict[str, Any] = {"tasks_with_labels": [name for name, has in zip(TASK_NAMES, tasks_T) if has]}
    for window, logits in logits_NT.items():
        calibrated_NT = 1.0 / (1.0 + np.exp(-(logits * platt_T2[:, 0] + platt_T2[:, 1])))
        metrics[window] = task_metrics(samples[window], calibrated_NT, tasks_T)
    train_ND, test_ND = (
        one_hot(data[name].numeric_NM, data[name].slots_NC, transform.slots) for name in ("train", "test")
    )
    linear = logistic_aucs(train_ND, data["train"].labels_NT, test_ND, data["test"].labels_NT, tasks_T)
    for task_name, value in linear.items():
        metrics["test"][task_name]["auc_logistic_regression"] = value
    with torch.no_grad():
        tensors = (torch.from_numpy(data["validation"].numeric_NM), torch.from_numpy(data["validation"].slots_NC))
        shares_NTE = network.gate_shares(*tensors).numpy()
    metrics["gates"], metrics["warnings"] = gate_report(shares_NTE, logits_NT["validation"], tasks_T)
    metrics["platt"] = {TASK_NAMES[t]: platt_T2[t].tolist() for t in np.flatnonzero(tasks_T)}
    return metrics, platt_T2


def _training_report(result: TrainResult, train_samples: Samples, seconds: float, layout: ParallelLayout,
                     settings: RankerSettings) -> dict[str, Any]:  # fmt: skip
    return {
        "training": {
            "rows": len(train_samples), "requests": len(train_samples.group_sizes_G), "inputs": len(INPUT_NAMES),
            "layout": str(layout), "precision": settings.precision, "seconds": round(seconds, 2),
            "samples_per_second": round(result.samples_per_second),
            "learning_rate": result.learning_rate, "best_epoch": result.best_epoch + 1,
            "best_validation": result.best_validation, "history": result.history, "steps": result.steps,
            "skipped_steps": result.skipped_steps, "largest_gradient_norm": result.largest_norm,
        }
    }  # fmt: skip


def _write(workspace: Workspace, served: ServedRanker, result: TrainResult, sample_NF: np.ndarray,
           settings: RankerSettings, metrics: dict[str, Any]) -> str:  # fmt: skip
    from ranking.scorers import RankerScorer

    parents = {"samples": workspace.samples.manifest(SAMPLES).content_hash}
    with torch.no_grad():
        exact_NT = served(torch.from_numpy(sample_NF)).numpy()
    with workspace.artifacts.create("ranker", parents=parents, settings=settings.model_dump(mode="json"),
                                    feature_version=FEATURE_VERSION) as artifact:  # fmt: skip
        torch.save({"network": result.state, "transform": served.transform.as_dict()}, artifact.path / "checkpoint.pt")
        (artifact.path / "transform.json").write_bytes(canonical_json(served.transform.as_dict()))
        description = {
            "feature_names": INPUT_NAMES, "task_names": TASK_NAMES, "tasks_with_labels": metrics["tasks_with_labels"],
        }  # fmt: skip
        (artifact.path / "model.json").write_bytes(canonical_json(description))
        export_onnx(served.float(), artifact.path / "model.onnx")
        difference = float(np.abs(RankerScorer.load(artifact).probabilities(sample_NF) - exact_NT).max())
        if difference > _EXPORT_TOLERANCE:
            raise RuntimeError(
                f"the exported ranker differs from the trained one by {difference}, more than {_EXPORT_TOLERANCE}"
            )
        metrics["export_difference"] = difference
        artifact.metrics = metrics
    return artifact.version
