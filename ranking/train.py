"""Trains the ranker: samples in, a calibrated multi-task network out, with its logistic baseline beside it.

Legend: N rows, M numeric inputs, C categories, T tasks.
"""

import time
from pathlib import Path
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
from distributed import LayoutError, TrainResult
from ranking.export import ServedRanker, export_onnx
from ranking.fit import build, fit
from ranking.gates import gate_report
from ranking.inputs import RankerInputs, load_inputs
from ranking.judge import judge, training_report
from ranking.layouts import TrainingLayout, asked_layout
from ranking.mmoe import MMoE
from ranking.on_ranks import fit_on_ranks
from ranking.settings import RankerSettings
from ranking.tries import Beside, made_of

_EXPORT_TOLERANCE = 1e-4


def train_ranker(workspace: Workspace, settings: RankerSettings | None = None, nproc: int = 1,
                 layout: TrainingLayout | str | None = None, step_log: Path | None = None,
                 checkpoints: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Trains the ranker on `nproc` ranks and puts it in force as artifact "ranker"; returns its metrics.

    `layout` defaults to dp_replicate=nproc; `step_log`: where a line a step and rank goes; `checkpoints`: a folder for one an
    epoch, from which a training that was stopped goes on. Files: `model.onnx` (raw inputs to calibrated probabilities, float32),
    `checkpoint.pt`, `transform.json`, `model.json`. Under torchrun each rank calls this, and the first one writes.
    `BadInput` when the samples or the layout cannot be used.
    """
    settings = settings or RankerSettings()
    asked = layout if isinstance(layout, TrainingLayout) else asked_layout(layout, nproc)
    try:
        asked.refuse_unless_mmoe(settings.experts)
        asked.refuse_more_pieces_than(settings.batch_size)
    except LayoutError as error:
        raise BadInput(str(error)) from None
    with stage("load samples"):
        inputs = load_inputs(workspace, settings)
    data, transform = inputs.data, inputs.transform
    begun = time.perf_counter()
    with stage(f"train the ranker on {len(inputs.samples['train']):,} viewed impressions, {asked}"):
        index, result = fit_on_ranks(
            "ranker",
            fit,
            (data["train"], data["validation"], transform.slots, settings, asked),
            settings,
            nproc,
            Beside(step_log, checkpoints, made_of(settings, {"samples": workspace.samples.manifest(SAMPLES).content_hash})),
        )
    if index != 0:
        return {"artifact": "ranker", "rank": index}
    seconds = time.perf_counter() - begun
    network = build(transform.slots, data["train"], settings)
    network.load_state_dict(result.state)
    network.to(torch.float64).eval()
    with stage("calibrate, compare with logistic regression, export"), threadpool_limits(settings.threads):
        metrics, platt_T2 = _judge(network, inputs)
        metrics["training"] = training_report(result, inputs, seconds, str(asked), settings.precision)
        for warning in metrics["warnings"]:
            say(f"! {warning}")
        served = ServedRanker(transform, network, platt_T2, inputs.tasks_T)
        version = _write(workspace, served, result, inputs.samples["test"].inputs_NF[:2048], settings, metrics)
    return {"artifact": "ranker", "version": version, **metrics}


def _judge(network: MMoE, inputs: RankerInputs) -> tuple[dict[str, Any], np.ndarray]:
    """Metrics per window and task, gates, baseline; and the calibration (T, 2) fitted on validation."""
    with torch.no_grad():
        tensors = {
            name: (torch.from_numpy(inputs.data[name].numeric_NM), torch.from_numpy(inputs.data[name].slots_NC))
            for name in ("validation", "test")
        }
        logits = {name: network(*pair).numpy() for name, pair in tensors.items()}
        shares_NTE = network.gate_shares(*tensors["validation"]).numpy()
    metrics, platt_T2 = judge(logits, inputs)
    metrics["gates"], metrics["warnings"] = gate_report(shares_NTE, logits["validation"], inputs.tasks_T)
    return metrics, platt_T2


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
