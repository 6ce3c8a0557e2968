"""Trains the sequence ranker: samples and the log's actions in, a calibrated network and its figures beside its peers out."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from contracts.errors import BadInput
from contracts.progress import say, stage
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS, POSTS
from contracts.workspace import Workspace
from distributed import LayoutError
from ranking.inputs import WINDOWS, RankerInputs, load_inputs
from ranking.judge import judge, training_report
from ranking.layouts import TrainingLayout, asked_layout
from ranking.on_ranks import fit_on_ranks
from ranking.sequence.artifact import KIND, mmoe_aucs, write
from ranking.sequence.fit import Problem, fit_sequence, layout_sizes, predict
from ranking.sequence.history import histories
from ranking.sequence.network import build_network
from ranking.sequence.tokens import SequenceData, Vocabulary, sequence_data
from ranking.settings import SequenceSettings
from ranking.tries import Beside, made_of


@dataclass(frozen=True)
class SequenceInputs:
    """What the sequence ranker trains on beside what every ranker does; `windows` by name."""

    inputs: RankerInputs
    windows: dict[str, SequenceData]
    vocabulary: Vocabulary

    @property
    def problem(self) -> Problem:
        """What ranks are given."""
        return Problem(
            self.windows["train"], self.windows["validation"], self.vocabulary.rows, self.inputs.transform.slots
        )


def load_sequences(workspace: Workspace, settings: SequenceSettings) -> SequenceInputs:
    """Samples with each request's history; `BadInput` when the samples cannot be trained on."""
    inputs = load_inputs(workspace, settings)
    found = {}
    for name in WINDOWS:
        samples = inputs.samples[name]
        first_G = np.cumsum(samples.group_sizes_G) - samples.group_sizes_G
        found[name] = histories(
            workspace.lake, samples.user_ids_N[first_G], samples.requested_at_N[first_G], settings.history
        )
    acted_on = found["train"].authors_RK[found["train"].there_RK]
    vocabulary = Vocabulary.fit(inputs.transform, np.concatenate([acted_on, inputs.samples["train"].author_ids_N]),
                                settings.author_codes, settings.author_rows)  # fmt: skip
    windows = {
        name: sequence_data(inputs.samples[name], inputs.data[name], found[name], vocabulary, settings.candidates)
        for name in WINDOWS
    }
    return SequenceInputs(inputs, windows, vocabulary)


def train_sequence_ranker(workspace: Workspace, settings: SequenceSettings | None = None, nproc: int = 1,
                          layout: TrainingLayout | str | None = None, step_log: Path | None = None,
                          checkpoints: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Trains it on `nproc` ranks under any legal `layout` (default dp_replicate=nproc) and puts it in force as artifact
    "sequence_ranker"; returns its metrics, among them each task's test AUC beside logistic regression's and, where it was
    trained on the same samples, the MMoE's. `step_log`: where a line a step and rank goes; `checkpoints`: a folder for one an
    epoch, from which a training that was stopped goes on. Under torchrun each rank calls this, and the first one writes.

    `BadInput` when the samples or the layout cannot be used, before any rank is started.
    """
    settings = settings or SequenceSettings()
    asked = layout if isinstance(layout, TrainingLayout) else asked_layout(layout, nproc)
    refuse_unless_fits(settings, asked)
    with stage("load samples and histories"):
        loaded = load_sequences(workspace, settings)
    inputs, windows = loaded.inputs, loaded.windows
    begun = time.perf_counter()
    with stage(f"train the sequence ranker on {len(windows['train']):,} histories, {asked}"):
        index, result = fit_on_ranks(
            "sequence ranker", fit_sequence, (loaded.problem, settings, asked), settings, nproc,
            Beside(step_log, checkpoints, made_of(settings, _hashes(workspace))),
        )  # fmt: skip
    if index != 0:
        return {"artifact": KIND, "rank": index}
    seconds = time.perf_counter() - begun
    network = build_network(loaded.vocabulary.rows, inputs.transform.slots, inputs.data["train"], settings)
    network.load_state_dict(result.state)
    network.to(torch.float64)
    with stage("calibrate, compare with MMoE and logistic regression, write"), threadpool_limits(settings.threads):
        logits = {name: predict(network, windows[name]) for name in ("validation", "test")}
        metrics, platt_T2 = judge(logits, inputs)
        beside = mmoe_aucs(workspace)
        if not beside:
            say("! no MMoE of these samples is in force to compare with: run `feedloop train ranker` first")
        for task, value in beside.items():
            if task in metrics["test"]:
                metrics["test"][task]["auc_mmoe"] = value
        metrics["training"] = training_report(result, inputs, seconds, str(asked), settings.precision) | {
            "histories": len(windows["train"]), "mean_history": float(windows["train"].there_SK.sum(1).mean()),
            "tokens_per_expert": result.routed,
        }  # fmt: skip
        version = write(workspace, network.state_dict(), loaded.vocabulary, platt_T2, inputs, windows["test"],
                        logits["test"], settings, metrics)  # fmt: skip
    return {"artifact": KIND, "version": version, **metrics}


def _hashes(workspace: Workspace) -> dict[str, str]:
    """Of the tables that histories and candidates are read from."""
    return {"samples": workspace.samples.manifest(SAMPLES).content_hash,
            **{spec.name: workspace.lake.manifest(spec).content_hash for spec in (ACTIONS, POSTS)}}  # fmt: skip


def refuse_unless_fits(settings: SequenceSettings, layout: TrainingLayout) -> None:
    """`BadInput` unless the shape is one that can be and `layout` can hold it."""
    if settings.width % settings.heads or settings.width // settings.heads % 2:
        raise BadInput(f"width={settings.width} over {settings.heads} heads is no even number of channels a head")
    if settings.sparse_experts and settings.top_k > settings.sparse_experts:
        raise BadInput(f"a token cannot go to {settings.top_k} of {settings.sparse_experts} experts")
    try:
        layout.refuse_more_pieces_than(settings.batch_size)
        layout.refuse_unless_sequence(layout_sizes(settings))
    except LayoutError as error:
        raise BadInput(str(error)) from None
