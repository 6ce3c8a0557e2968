"""One training loop for every model under every layout: the model knows nothing of ranks, the loop nothing of the task."""

import contextlib
import math
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distributed.affinity import placement
from distributed.average import MovingAverage
from distributed.errors import LayoutError
from distributed.groups import Mesh
from distributed.mesh import ParallelLayout
from distributed.rank import Rank
from distributed.sampler import EpochBatches
from distributed.schedules import rate_factor
from distributed.step import global_norm
from distributed.step_log import StepLog
from distributed.work import Loss, ModuleWork, Validation, Work, scale_, start_equal

if TYPE_CHECKING:
    from distributed.checkpoint.epochs import EpochCheckpoints


@dataclass(frozen=True)
class TrainerSettings:
    """`batch_size` is global, in rows. `patience`: epochs without a better validation figure before the end.

    `schedule` is one of `distributed.schedules.SHAPES`, `decay_share` the share of all steps over which "wsd" falls.
    `average_decay`: validation, and the state that is kept, are of a moving average of the weights.
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
    schedule: str = "cosine"
    decay_share: float = 0.2
    average_decay: float | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of `precision`; ValueError when it is not one of the two."""
        if self.precision not in ("float32", "float64"):
            raise ValueError(f"precision is {self.precision!r}, not float32 or float64")
        return getattr(torch, self.precision)


@dataclass
class TrainResult:
    """What came of it. `state` is the best epoch's whole state dict on the CPU. `routed`: choices per expert of each sparse
    layer over the whole training. `earlier_seconds`: of the runs that this one went on from."""

    state: dict[str, torch.Tensor]
    learning_rate: float
    best_epoch: int
    best_validation: float
    history: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    skipped_steps: int = 0
    largest_norm: float = 0.0
    samples_per_second: float = 0.0
    earlier_seconds: float = 0.0
    routed: dict[str, list[int]] = field(default_factory=dict)


_KEPT = ("best_epoch", "best_validation", "history", "steps", "skipped_steps", "largest_norm", "routed")
"""What of a result a checkpoint keeps beside the weights."""


def train(module: nn.Module, loss: Loss, train_rows: int, validate: Validation, validation_rows: int,
          settings: TrainerSettings, rank: Rank, *, layout: ParallelLayout | None = None,
          report: Callable[[str], None] | None = None) -> TrainResult:  # fmt: skip
    """Trains a plain `module` in place, over data ranks alone, and leaves it in the best epoch's state.

    `layout` (by default all ranks along dp_replicate) may have dp_replicate and dp_shard; along dp_shard each rank keeps a
    shard of the optimizer's state (ZeRO 1). The rest is as in `train_work`.
    """
    layout = (layout or ParallelLayout(dp_replicate=rank.world_size)).only(
        "dp_replicate", "dp_shard", what="a plain module"
    )
    prepare(module, settings, rank)
    work = ModuleWork(module, loss, validate, Mesh(layout, rank), zero=1 if layout.dp_shard > 1 else 0)
    result = train_work(work, train_rows, validation_rows, settings, report=report)
    module.load_state_dict(result.state)
    return result


def prepare(module: nn.Module, settings: TrainerSettings, rank: Rank) -> None:
    """Before a module is put on a mesh: its device and type, and the first rank's numbers on all."""
    module.to(device=rank.device, dtype=settings.dtype)
    start_equal(module, rank)


def train_work(work: Work, train_rows: int, validation_rows: int, settings: TrainerSettings, *,
               report: Callable[[str], None] | None = None, step_log: Path | None = None,
               checkpoints: Path | None = None, made_of: Mapping[str, Any] | None = None) -> TrainResult:  # fmt: skip
    """Trains what was put on the mesh; every rank returns the same result, bitwise.

    A batch whose loss or gradient is not finite is skipped on all ranks together and counted. `report` gets the placement of
    several ranks and one line per epoch, on the first rank. `step_log`: a file for a line a step and rank
    (`distributed.step_log`), begun anew. `checkpoints`: a folder for the last and the best epoch; a training that finds its
    own there goes on after it, under whatever layout, and ends as if it had never stopped. `made_of` (JSON): what beside the
    settings makes a training another one, such as a hash of its rows. `LayoutError` on all ranks when no epoch has a finite figure.
    """
    started, rank = time.perf_counter(), work.mesh.rank
    batches = EpochBatches(train_rows, settings.batch_size, settings.seed)
    optimizer = torch.optim.AdamW(work.data.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = rate_factor(settings.schedule, batches.per_epoch * settings.epochs, settings.warmup_share,
                           settings.decay_share)  # fmt: skip
    average = None if settings.average_decay is None else MovingAverage(work.data, settings.average_decay)
    log = StepLog(work.mesh, step_log)
    result = TrainResult(state={}, learning_rate=settings.learning_rate, best_epoch=-1, best_validation=math.inf)
    if report and rank.first and rank.world_size > 1:
        report(textwrap.indent(placement(work.mesh.layout), "  "))
    rows = {"train_rows": train_rows, "validation_rows": validation_rows}
    kept = _kept(checkpoints, work, optimizer, average, {**asdict(settings), **rows, **(made_of or {})})
    begin, seconds = _go_on(kept, work, average, result)
    tried, routed_before = begin * batches.per_epoch, result.routed
    for epoch in range(begin, settings.epochs):
        if epoch > 0 and result.best_epoch != epoch - 1 and epoch - 1 - result.best_epoch >= settings.patience:
            break
        begun = time.perf_counter()
        work.module.train()
        loss_total, weight_total = 0.0, 0.0
        for rows_B in batches.epoch(epoch):
            optimizer.param_groups[0]["lr"] = settings.learning_rate * schedule(tried)
            log.begin()
            mean, weight = work.gradients(rows_B, tried)
            if _step(work, optimizer, mean, settings, result):
                loss_total, weight_total = loss_total + mean * weight, weight_total + weight
                if average is not None:
                    average.update()
            log.end(tried, len(rows_B), *work.taken())
            tried += 1
        seconds += time.perf_counter() - begun
        log.flush()
        work.module.eval()
        with _averaged(average):
            figure = _mean_figure(work.figures(validation_rows))
            if figure < result.best_validation:
                result.best_epoch, result.best_validation = epoch, figure
                result.state = work.state()
        result.history.append({"epoch": epoch, "train": loss_total / max(weight_total, 1e-300), "validation": figure})
        if report and rank.first:
            report(f"  epoch {epoch + 1}: train {result.history[-1]['train']:.5f}, validation {figure:.5f}, "
                   f"{log.progress()}, {rank.world_size} rank(s)")  # fmt: skip
        result.routed = _added(routed_before, work.routed())
        if kept is not None:
            run_seconds = result.earlier_seconds + time.perf_counter() - started
            kept.save(epoch, result.best_epoch, {**{name: getattr(result, name) for name in _KEPT}, "seconds": seconds,
                                                 "run_seconds": run_seconds})  # fmt: skip
    result.samples_per_second = len(result.history) * train_rows / seconds
    if not result.state:
        raise LayoutError(
            f"no epoch of {len(result.history)} had a finite validation figure at learning rate {settings.learning_rate:g} "
            f"and precision {settings.precision}; {result.skipped_steps} steps were skipped. A lower rate, or a wider type, helps"
        )
    return result


def _kept(folder: Path | None, work: Work, optimizer: torch.optim.Optimizer, average: MovingAverage | None,
          settings: dict[str, Any]) -> "EpochCheckpoints | None":  # fmt: skip
    if folder is None:
        return None
    # Brings in more than a training without checkpoints needs.
    from distributed.checkpoint.epochs import EpochCheckpoints

    return EpochCheckpoints(folder, work, optimizer, average, settings)


def _go_on(kept: "EpochCheckpoints | None", work: Work, average: MovingAverage | None, result: TrainResult
           ) -> tuple[int, float]:  # fmt: skip
    """(the first epoch to come, seconds so far); with the last epoch's weights, and its best epoch's state in `result`."""
    last = None if kept is None else kept.last()
    if kept is None or last is None:
        return 0, 0.0
    told = kept.load(last)
    if told["best_epoch"] >= 0:
        kept.load(told["best_epoch"])
        with _averaged(average):
            result.state = work.state()
        kept.load(last)
    for name in _KEPT:
        setattr(result, name, told[name])
    result.earlier_seconds = told.get("run_seconds") or told["seconds"]
    return last + 1, told["seconds"]


def _averaged(average: MovingAverage | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if average is None else average.in_place()


def _added(one: dict[str, list[int]], other: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: [a + b for a, b in zip(one.get(name, [0] * len(counts)), counts)] for name, counts in other.items()}


def _step(work: Work, optimizer: torch.optim.Optimizer, mean: float, settings: TrainerSettings, result: TrainResult
          ) -> bool:  # fmt: skip
    """Clips and applies the gradient in place, or drops it when it or the loss is not finite; whether it was applied."""
    norm = global_norm(work.data, work.mesh)
    if not (math.isfinite(mean) and math.isfinite(norm)):
        result.skipped_steps += 1
        work.data.drop_gradients()
        return False
    if settings.clip_norm is not None and norm > settings.clip_norm:
        scale_(work.data, settings.clip_norm / norm)
    optimizer.step()
    work.data.after_step()
    work.after_step()
    result.steps += 1
    result.largest_norm = max(result.largest_norm, norm)
    return True


def _mean_figure(sums_K2: torch.Tensor) -> float:
    present_K = sums_K2[:, 1] > 0
    return (sums_K2[present_K, 0] / sums_K2[present_K, 1]).mean().item() if present_K.any() else math.nan
