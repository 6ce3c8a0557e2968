"""What every rank runs to fit the sequence ranker, under any layout."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contracts.progress import say
from distributed import Rank, TrainerSettings, TrainResult
from distributed.groups import Mesh
from distributed.mesh import ModelSizes
from distributed.models.transformer import Stack
from distributed.parallelize import Cut
from distributed.stack_work import StackWork
from distributed.tensor_parallel import GatherAlike, VocabularyBags
from distributed.trainer import prepare, train_work
from ranking.fit import compute_type, entropies
from ranking.layouts import TrainingLayout
from ranking.parallel import cut_mixture
from ranking.sequence.network import SequenceRanker, build_network, network_sizes
from ranking.sequence.tokens import SequenceData
from ranking.settings import SequenceSettings
from ranking.tries import Beside, best_of_tries


@dataclass(frozen=True)
class Problem:
    """What is to be fitted: the windows, the rows of the token table and of each category's embedding."""

    train: SequenceData
    validation: SequenceData
    rows: int
    slots_C: list[int]


def layout_sizes(settings: SequenceSettings) -> ModelSizes:
    """What a layout must divide."""
    sizes = network_sizes(settings).for_layout(settings.history + settings.candidates)
    return dataclasses.replace(sizes, dense_experts=settings.experts)


def fit_sequence(rank: Rank, problem: Problem, settings: SequenceSettings, layout: TrainingLayout,
                 beside: Beside | None = None) -> tuple[int, TrainResult]:  # fmt: skip
    """Trains a fresh network under `layout`; returns (rank, result), whose state is that of the whole network.

    Loss, early stopping and tries are those of the MMoE (`ranking.fit`). The routers' losses take part in training alone.
    """
    entropies_T = entropies(problem.validation.tasks).to(rank.device)
    beside = beside or Beside()
    style = dataclasses.replace(layout.style, compute=compute_type(settings))

    def attempt(of_trainer: TrainerSettings, checkpoints: Path | None) -> TrainResult:
        network = build_network(problem.rows, problem.slots_C, problem.train.tasks, settings)
        prepare(network, of_trainer, rank)

        def figures(hidden_BLD: torch.Tensor, tokens: Any) -> torch.Tensor:
            losses_T, weights_T = network.task_losses(hidden_BLD, tokens)
            return torch.stack([losses_T.double() / entropies_T, weights_T.double()], dim=1)

        work = StackWork(
            network, Mesh(layout.axes, rank), style, problem.train.tokens, _batches(problem.train, rank),
            _batches(problem.validation, rank), figures, cut_ends=cut_ends, micro_batches=layout.micro_batches,
            schedule=layout.schedule, virtual=layout.virtual,
        )  # fmt: skip
        return train_work(work, len(problem.train), len(problem.validation), of_trainer, report=say,
                          step_log=beside.step_log, checkpoints=checkpoints, made_of=beside.made_of)  # fmt: skip

    return rank.index, best_of_tries(attempt, settings, beside)


def _batches(data: SequenceData, rank: Rank) -> Any:
    return lambda samples_B, first: data.batch(samples_B, first, rank.device)


def cut_ends(model: Stack, cut: Cut) -> None:
    """The sequence ranker's ends over tp: the table by rows, the mixture's experts; the rest each rank computes alike, or
    (with sequence parallelism) on its own tokens."""
    assert isinstance(model, SequenceRanker)
    model.table = VocabularyBags(cut.table("table.weight", model.table.weight), cut.group, cut.sequence)
    for name in ("candidate.weight", "candidate.bias", "norm.weight"):
        cut.whole(name)
    if cut.sequence:
        model.gather = GatherAlike(cut.group)
        model.sequence_shard = model.drop_embedding.sequence_shard = (cut.group.index, cut.group.size)
    cut_mixture(model.head, cut, "head.")


def predict(network: SequenceRanker, data: SequenceData, samples: int = 1024) -> np.ndarray:
    """Logits (N, T) of every row of a window, on one process; NaN for a row that is no candidate of any sample."""
    logits_NT = np.full((len(data.tasks.labels_NT), data.tasks.labels_NT.shape[1]), np.nan)
    network.eval()
    with torch.no_grad():
        for start in range(0, len(data), samples):
            tokens = data.batch(np.arange(start, min(start + samples, len(data))), 0, torch.device("cpu"))
            logits_NT[tokens.rows_A] = network(tokens, 0, network.logits).numpy()
    return logits_NT
