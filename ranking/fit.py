"""What every rank runs to fit the ranker: rows in batches, the network, the masked loss, the early-stopping figure.

Legend: N rows, B rows of a batch, M numeric inputs, C categories, T tasks.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from contracts.progress import say
from contracts.tasks import TASK_NAMES
from distributed import ParallelLayout, Rank, TrainerSettings, TrainResult
from distributed.groups import Mesh
from distributed.parallelize import Cut
from distributed.placement import Placement
from distributed.trainer import prepare, train_work
from distributed.work import Loss, ModuleWork, Validation
from ranking.layouts import TrainingLayout
from ranking.mmoe import MMoE, masked_log_loss
from ranking.parallel import cut_mixture, share_mixture
from ranking.settings import RankerSettings, SequenceSettings
from ranking.transform import NUMERIC_NAMES
from ranking.tries import Beside, best_of_tries, trainer_settings


@dataclass(frozen=True)
class TaskData:
    """Transformed rows of one window: numeric (N, M), slots (N, C), labels (N, T, NaN where unlearnt), weights (N,)."""

    numeric_NM: np.ndarray
    slots_NC: np.ndarray
    labels_NT: np.ndarray
    weights_N: np.ndarray

    def batch(self, rows_B: np.ndarray, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
        """Tensors (numeric, slots, labels, weights) of the given rows; labels and weights in float32 at least."""
        wide = torch.promote_types(dtype, torch.float32)
        labels_BT, weights_B = (torch.from_numpy(a[rows_B]).to(device, wide) for a in (self.labels_NT, self.weights_N))
        numeric_BM = torch.from_numpy(self.numeric_NM[rows_B]).to(device, dtype)
        return [numeric_BM, torch.from_numpy(self.slots_NC[rows_B]).to(device), labels_BT, weights_B]


def build(slots_C: list[int], train_data: TaskData, settings: RankerSettings) -> MMoE:
    """A fresh network for these rows, float64, the same for the same seed."""
    torch.manual_seed(settings.seed)
    return MMoE(
        len(NUMERIC_NAMES), slots_C, len(TASK_NAMES), experts=settings.experts, expert_width=settings.expert_width,
        tower_width=settings.tower_width, embedding_dim=settings.embedding_dim,
        prior_logits_T=prior_logits(train_data),
    ).double()  # fmt: skip


def fit(rank: Rank, train_data: TaskData, validation_data: TaskData, slots_C: list[int],
        settings: RankerSettings, layout: TrainingLayout | None = None, beside: Beside | None = None
        ) -> tuple[int, TrainResult]:  # fmt: skip
    """Trains a fresh network under `layout` (by default all ranks along dp_replicate); returns (rank, result).

    Stops on the log loss, averaged over tasks after division by each task's entropy: otherwise the commonest action alone
    would decide.
    """
    layout, beside = layout or TrainingLayout(ParallelLayout(dp_replicate=rank.world_size)), beside or Beside()
    entropies_T = entropies(validation_data).to(rank.device)
    compute = compute_type(settings)
    dtype = compute or trainer_settings(settings).dtype

    def loss(module: nn.Module, rows_B: np.ndarray) -> tuple[torch.Tensor, float]:
        numeric_BM, slots_BC, labels_BT, weights_B = train_data.batch(rows_B, dtype, rank.device)
        return masked_log_loss(module(numeric_BM, slots_BC), labels_BT, weights_B).sum(), weights_B.sum().item()

    def validate(module: nn.Module, rows_B: np.ndarray) -> torch.Tensor:
        numeric_BM, slots_BC, labels_BT, weights_B = validation_data.batch(rows_B, dtype, rank.device)
        sums_T = masked_log_loss(module(numeric_BM, slots_BC), labels_BT, weights_B).double() / entropies_T
        return torch.stack([sums_T, (torch.isfinite(labels_BT) * weights_B.unsqueeze(1)).sum(dim=0)], dim=1)

    def attempt(of_trainer: TrainerSettings, checkpoints: Path | None) -> TrainResult:
        network = build(slots_C, train_data, settings)
        prepare(network, of_trainer, rank)
        work = _placed(network, loss, validate, Mesh(layout.axes, rank), layout, compute)
        return train_work(work, len(train_data.weights_N), len(validation_data.weights_N), of_trainer, report=say,
                          step_log=beside.step_log, checkpoints=checkpoints, made_of=beside.made_of)  # fmt: skip

    return rank.index, best_of_tries(attempt, settings, beside)


def compute_type(settings: RankerSettings | SequenceSettings) -> torch.dtype | None:
    """The narrower type that layers compute in, if any."""
    return None if settings.compute is None else getattr(torch, settings.compute)


def entropies(validation_data: TaskData) -> torch.Tensor:
    """The entropy of each task's label rate (T,): what the log loss of a constant would be."""
    rates_T = _label_rates(validation_data.labels_NT)
    return torch.from_numpy(-(rates_T * np.log(rates_T) + (1 - rates_T) * np.log1p(-rates_T)))


def prior_logits(train_data: TaskData) -> torch.Tensor:
    """The logit of each task's label rate (T,)."""
    rates_T = _label_rates(train_data.labels_NT)
    return torch.from_numpy(np.log(rates_T) - np.log1p(-rates_T))


def _placed(network: MMoE, loss: Loss, validate: Validation, mesh: Mesh, layout: TrainingLayout,
            compute: torch.dtype | None) -> ModuleWork:  # fmt: skip
    placements = {name: Placement() for name, _ in network.named_parameters()}
    if layout.axes.tp > 1:
        cut_mixture(network, Cut(mesh.group("tp"), False, placements))
    if layout.ep > 1:
        share_mixture(network, mesh, layout.ep, placements)
    return ModuleWork(network, loss, validate, mesh, zero=layout.zero_stage, placements=placements,
                      together=layout.axes.tp > 1 or layout.ep > 1, micro_batches=layout.micro_batches,
                      compute=compute)  # fmt: skip


def _label_rates(labels_NT: np.ndarray) -> np.ndarray:
    """Label rates (T,), half a label away from 0 and 1, and 0.5 for a task without labels."""
    known_T = np.isfinite(labels_NT).sum(axis=0)
    return (np.nansum(labels_NT, axis=0) + 0.5) / (known_T + 1.0)
