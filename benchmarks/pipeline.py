"""Pipeline schedules: the measured bubble of stages that sleep alike beside the closed formula: ranks need no cores so.

Bubbles of real work, and step times beside PyTorch's own pipelining: `benchmarks.distributed`.
"""

import time
from typing import Any

import torch
from torch import nn

from benchmarks.claims import Claim, Result, run
from distributed import ParallelLayout, Rank, launch
from distributed.groups import Mesh
from distributed.pipeline import run_pipeline, stages_of
from distributed.planner.schedules import build_schedule
from distributed.planner.simulate import StageCost, closed_bubble_s, simulate

BUBBLES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 1))


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


class Sleeping(nn.Module):
    """A stage that takes the same time for forward, gradient of inputs and gradient of weights."""

    def __init__(self, seconds: float, first: bool):
        super().__init__()
        self.seconds, self.scale = seconds, nn.Parameter(torch.ones(1))
        self.entrance = nn.Parameter(torch.ones(4)) if first else None

    def forward(self, activation: torch.Tensor | None, batch: int) -> torch.Tensor:
        """A row of four from the stage before, or from the stage's own entrance."""
        given = self.entrance if activation is None else activation
        assert given is not None
        return _Sleep.apply(given, self.seconds, self.seconds) * _Sleep.apply(self.scale, 0.0, self.seconds)


def _bubbles(rank: Rank, micro_batches: int, seconds: float) -> list[float]:
    group = Mesh(ParallelLayout(pp=rank.world_size), rank).group("pp")
    found = []
    for name, virtual in BUBBLES:
        schedule = build_schedule(name, group.size, micro_batches, virtual)
        chunks = len(schedule.paths[0]) // group.size
        stages = {number: Sleeping(seconds / chunks, number == 0) for number in stages_of(schedule, group.index)}
        runs = []
        for _ in range(3):
            result = run_pipeline(
                schedule, stages, list(range(micro_batches)), lambda output, batch: output.sum(), group
            )
            timeline = result.timeline(group)
            runs.append((timeline.makespan_s, timeline.bubble_rate))
        # The least disturbed of three: whatever else the machine does only adds.
        found.append(min(runs)[1])
    return found


def measure(quick: bool) -> Result:
    """Bubbles on 4 ranks, every schedule in one run."""
    ranks, micro_batches, seconds = 4, 8, 0.03 if quick else 0.1
    result = Result(sizes={"ranks": ranks, "micro_batches": micro_batches, "operation_s": seconds})
    measured = launch(_bubbles, (micro_batches, seconds), ranks)[0]
    for (name, virtual), rate in zip(BUBBLES, measured):
        schedule = build_schedule(name, ranks, micro_batches, virtual)
        chunks = len(schedule.paths[0]) // ranks
        whole, cost = StageCost(1, 1, 1), StageCost(1 / chunks, 1 / chunks, 1 / chunks)
        planned = simulate(schedule, [cost] * len(schedule.paths[0]))
        idle = closed_bubble_s(name, ranks, whole, virtual)
        closed = idle / (idle + planned.busy_s[0])
        result.claims.append(Claim(f"bubble of {name}, {ranks} ranks, {micro_batches} micro-batches", rate, "of the step",
                                   "closed formula", closed, "within 0.05", abs(rate - closed) <= 0.05))  # fmt: skip
    return result


if __name__ == "__main__":
    run("pipeline", measure)
