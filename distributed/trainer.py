"""One training loop for every model: the model knows nothing of ranks, the loop knows nothing of the task."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from distributed.groups import Mesh
from distributed.mesh import ParallelLayout
from distributed.placement import Placement
from distributed.rank import Rank
from distributed.sampler import EpochBatches, shard
from distributed.sharded_data import ShardedData
from distributed.step import global_norm

Loss = Callable[[nn.Module, np.ndarray], tuple[torch.Tensor, float]]
"""(module, row indices (B,)) -> (sum over rows of weighted losses, sum of weights). Never called without rows."""

Validation = Callable[[nn.Module, np.ndarray], torch.Tensor]
"""(module, row indices (B,), possibly none) -> (K, 2) sums and weights. The early-stopping figure is the mean over K of sum / weight,
lower is better; a k without weight anywhere is left out."""


@dataclass(frozen=True)
class TrainerSettings:
    """`batch_size` is global, in rows. `patience`: epochs without a better validation figure before the end.

    `precision`: "float64" gives the same result on any number of ranks to rounding; "float32" is faster and is not.
    """

    epochs: int = 10
    batch_size: int = 4096
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    warmup_share: float = 0.05
    clip_norm: float | None = 1.0
    patience: int = 2
    seed: int = 7
    precision: str = "float64"

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of `precision`; ValueError when it is not one of the two."""
        if self.precision not in ("float32", "float64"):
            raise ValueError(f"precision is {self.precision!r}, not float32 or float64")
        return getattr(torch, self.precision)


@dataclass
class TrainResult:
    """What came of it. `state` is the best epoch's state dict on the CPU; the module is left in that state."""

    state: dict[str, torch.Tensor]
    learning_rate: float
    best_epoch: int
    best_validation: float
    history: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    skipped_steps: int = 0
    largest_norm: float = 0.0
    samples_per_second: float = 0.0


def train(module: nn.Module, loss: Loss, train_rows: int, validate: Validation, validation_rows: int,
          settings: TrainerSettings, rank: Rank, *, layout: ParallelLayout | None = None,
          report: Callable[[str], None] | None = None) -> TrainResult:  # fmt: skip
    """Trains `module` in place; every rank returns the same result, bitwise.

    Each global batch is split over the ranks. `layout` (by default all ranks along dp_replicate) may have dp_replicate and
    dp_shard; along dp_shard each rank keeps a shard of the optimizer's state (ZeRO 1). A batch whose loss or gradient is
    not finite is skipped on all ranks together and counted. `report` gets one line per epoch, on the first rank.
    """
    module.to(device=rank.device, dtype=settings.dtype)
    _start_equal(module, rank)
    layout = layout or ParallelLayout(dp_replicate=rank.world_size)
    mesh = Mesh(layout.only("dp_replicate", "dp_shard", what="this trainer"), rank)
    placements = {name: Placement() for name, _ in module.named_parameters()}
    data = ShardedData(module, {}, mesh, placements, zero=1 if layout.dp_shard > 1 else 0)
    batches = EpochBatches(train_rows, settings.batch_size, settings.seed)
    optimizer = torch.optim.AdamW(data.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = _warmup_then_cosine(batches.per_epoch * settings.epochs, settings)
    result = TrainResult(state={}, learning_rate=settings.learning_rate, best_epoch=-1, best_validation=math.inf)
    seconds, tried = 0.0, 0
    for epoch in range(settings.epochs):
        begun = time.perf_counter()
        module.train()
        loss_total, weight_total = 0.0, 0.0
        for indices_B in batches.epoch(epoch):
            optimizer.param_groups[0]["lr"] = settings.learning_rate * schedule(tried)
            tried += 1
            mean, weight, norm = _gradients(module, loss, shard(indices_B, rank), data, settings, mesh)
            if not (math.isfinite(mean) and math.isfinite(norm)):
                result.skipped_steps += 1
                data.drop_gradients()
                continue
            optimizer.step()
            data.after_step()
            result.steps += 1
            result.largest_norm = max(result.largest_norm, norm)
            loss_total, weight_total = loss_total + mean * weight, weight_total + weight
        seconds += time.perf_counter() - begun
        figure = validation_figure(module, validate, validation_rows, rank)
        result.samples_per_second = (epoch + 1) * train_rows / seconds
        result.history.append({"epoch": epoch, "train": loss_total / max(weight_total, 1e-300), "validation": figure})
        if report and rank.first:
            report(f"  epoch {epoch + 1}: train {result.history[-1]['train']:.5f}, validation {figure:.5f}, "
                   f"{result.samples_per_second:,.0f} samples/s, {rank.world_size} rank(s)")  # fmt: skip
        if figure < result.best_validation:
            result.best_epoch, result.best_validation = epoch, figure
            result.state = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
        elif epoch - result.best_epoch >= settings.patience:
            break
    if not result.state:
        raise ValueError(
            f"no epoch of {len(result.history)} had a finite validation figure; {result.skipped_steps} steps were skipped"
        )
    module.load_state_dict(result.state)
    return result


def validation_figure(
    module: nn.Module, validate: Validation, rows: int, rank: Rank, batch_size: int = 16_384
) -> float:
    """The early-stopping figure over `rows` rows, each rank evaluating its share; the same on all ranks."""
    module.eval()
    mine_N = shard(np.arange(rows), rank)
    sums_K2: torch.Tensor | None = None
    with torch.no_grad():
        for start in range(0, max(len(mine_N), 1), batch_size):
            part_K2 = validate(module, mine_N[start : start + batch_size]).double()
            sums_K2 = part_K2 if sums_K2 is None else sums_K2 + part_K2
    assert sums_K2 is not None
    rank.sum_(sums_K2)
    present_K = sums_K2[:, 1] > 0
    return (sums_K2[present_K, 0] / sums_K2[present_K, 1]).mean().item() if present_K.any() else math.nan


def _start_equal(module: nn.Module, rank: Rank) -> None:
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            rank.copy_from_first_(tensor)


def _gradients(module: nn.Module, loss: Loss, indices_B: np.ndarray, data: ShardedData, settings: TrainerSettings,
               mesh: Mesh) -> tuple[float, float, float]:  # fmt: skip
    """Leaves the global batch's clipped gradient in place; returns (mean loss, weight, norm), equal on all ranks.

    Ranks add up *sums* over rows and divide once by the global weight: averaging each rank's mean would be wrong as soon as
    ranks hold different numbers of rows or labels. With no weight anywhere the gradients are zero and the loss is 0.
    """
    rank = mesh.rank
    # A rank without rows runs no backward, so what is sent must not hang on it: all is sent at `finish`.
    data.begin(last=False)
    if len(indices_B):
        loss_sum, weight = loss(module, indices_B)
        loss_sum.backward()
    else:
        loss_sum, weight = torch.zeros((), device=rank.device, dtype=settings.dtype), 0.0
    totals = torch.stack([loss_sum.detach().double(), loss_sum.new_tensor(weight, dtype=torch.float64)])
    total_loss, total_weight = rank.sum_(totals).tolist()
    data.finish()
    scale = 1.0 / total_weight if total_weight > 0 else 0.0
    _scale_(data, scale)
    norm = global_norm(data, mesh)
    if settings.clip_norm is not None and math.isfinite(norm) and norm > settings.clip_norm:
        _scale_(data, settings.clip_norm / norm)
    return total_loss * scale, total_weight, norm


def _scale_(data: ShardedData, factor: float) -> None:
    for parameter in data.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _warmup_then_cosine(steps: int, settings: TrainerSettings) -> Callable[[int], float]:
    warmup = max(1, round(settings.warmup_share * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return factor
