"""Runs one pipeline step: each rank carries out its order of operations, and the times are written down."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distributed.errors import LayoutError
from distributed.groups import Group
from distributed.pipeline.messages import Messages, ShapeOf, needed, produced
from distributed.pipeline.split import stages_of
from distributed.pipeline.stage import Loss, StageWork
from distributed.planner.schedules import Op, Schedule
from distributed.planner.simulate import Event, StageCost, Timeline, simulate

Look = Callable[[Op], None]


@dataclass(frozen=True)
class PipelineResult:
    """`loss_sum` over all micro-batches and stages, the same on every rank of the pipeline. `events` are this rank's
    operations as they ran, in seconds from its step's start, waiting left out; `held` and `deferred` the most
    micro-batches (x stages) kept at once for a backward and for a weight gradient."""

    loss_sum: float
    schedule: Schedule
    events: tuple[Event, ...]
    held: int
    deferred: int

    def timeline(self, group: Group) -> Timeline:
        """All ranks' events on one clock; every rank of the pipeline must call it. `timeline.bubble_rate` is measured."""
        everyone: list[Any] = [None] * group.size
        mine = (self.events, self.held, self.held + self.deferred)
        if group.size > 1:
            dist.all_gather_object(everyone, mine, group.handle)
        else:
            everyone = [mine]
        events, held, both = zip(*everyone)
        return Timeline(self.schedule.name, tuple(events), tuple(held), tuple(both))


def run_pipeline(schedule: Schedule, stages: Mapping[int, nn.Module], batches: Sequence[Any], loss: Loss, group: Group,
                 device: torch.device | None = None, shape_of: ShapeOf | None = None, before: Look | None = None,
                 after: Look | None = None) -> PipelineResult:  # fmt: skip
    """Forward and backward of all `batches` (micro-batches, of any sizes); gradients of the loss *sum* gather in `.grad`.

    `stages` are this rank's modules by stage number (`stages_of`), called as `module(activation, batch)`; every rank
    has all batches, whose ids, masks and labels stages take what they need from. Divide gradients by the global weight
    afterwards, never by the number of micro-batches. `shape_of`, where shapes between stages are known, saves a header a
    message. `before` and `after` are told of each operation, on this rank, as it begins and has ended. `LayoutError` when
    the schedule does not suit.
    """
    _check(schedule, stages, batches, group)
    last = len(schedule.paths[0]) - 1
    work = {stage: StageWork(module, stage == 0, loss if stage == last else None) for stage, module in stages.items()}
    mail = Messages(schedule, group, device or torch.device("cpu"), shape_of)
    events: list[Event] = []
    held = deferred = 0
    begun = time.perf_counter()
    for slot in schedule.orders[group.index]:
        for op in slot:
            key = needed(op, last)
            given = None
            if key is not None:
                given = mail.take(key, op.stage - 1 if op.kind == "F" else op.stage + 1)
            start = time.perf_counter() - begun
            if before is not None:
                before(op)
            handed = _carry_out(op, work[op.stage], given, batches[op.micro])
            if after is not None:
                after(op)
            _synchronize(device)
            events.append(Event(group.index, start, time.perf_counter() - begun, (op,)))
            sent = produced(op, last)
            if sent is not None:
                assert handed is not None
                mail.put(sent, handed)
            held = max(held, sum(stage.held for stage in work.values()))
            deferred = max(deferred, sum(stage.deferred for stage in work.values()))
    mail.finish()
    total = torch.tensor([sum(stage.loss_sum for stage in work.values())], dtype=torch.float64, device=device)
    return PipelineResult(group.all_reduce_(total).item(), schedule, tuple(events), held, deferred)


def _carry_out(op: Op, stage: StageWork, given: torch.Tensor | None, batch: Any) -> torch.Tensor | None:
    if op.kind == "F":
        return stage.forward(op.micro, given, batch)
    if op.kind == "D":
        return stage.backward(op.micro, given)
    if op.kind == "B":
        return stage.backward_input(op.micro, given)
    stage.backward_weight(op.micro)
    return None


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _check(schedule: Schedule, stages: Mapping[int, nn.Module], batches: Sequence[Any], group: Group) -> None:
    if len(schedule.paths) > 1:
        raise LayoutError(
            f"{schedule.name} holds every stage twice, which is not built; dualpipe-v does the same with one"
        )
    if needs_links(group) and not group.links:
        raise LayoutError("pipeline messages over NCCL need a group for each direction: give run_pipeline linked(mesh)")
    if schedule.ranks != group.size:
        raise LayoutError(f"{schedule.name} is for {schedule.ranks} pipeline ranks; there are {group.size}")
    if sorted(stages) != stages_of(schedule, group.index):
        raise LayoutError(f"pipeline rank {group.index} holds stages {stages_of(schedule, group.index)} under {schedule.name}, "
                          f"not {sorted(stages)}")  # fmt: skip
    planned = 1 + max(op.micro for slot in schedule.orders[group.index] for op in slot)
    if planned != len(batches):
        raise LayoutError(f"{schedule.name} is for {planned} micro-batches; there are {len(batches)}")
    _refuse_circles(schedule)


def needs_links(group: Group) -> bool:
    """Whether messages of this group must go over links."""
    return group.handle is not None and dist.get_backend(group.handle) == "nccl"


@functools.lru_cache(maxsize=32)
def _refuse_circles(schedule: Schedule) -> None:
    """`PlanError` when ranks would wait for each other: said at once, where the collectives would wait for their time-out."""
    simulate(schedule, [StageCost(1.0, 1.0, 1.0)] * len(schedule.paths[0]))
