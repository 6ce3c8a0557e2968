"""Bubbles of real work: each schedule's recorded timeline beside the closed formula and the simulation at its own times.

Closed formulas are for equal stages. Where the backward comes in two parts stages are not equal: the first one has no
gradient to send and does all of it as weight gradients. `benchmarks.pipeline` compares those with stages that sleep alike.
"""

from dataclasses import dataclass

import torch
from torch import nn

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.pipeline import run_pipeline, stages_of
from distributed.planner.schedules import build_schedule
from distributed.planner.simulate import StageCost, Timeline, closed_bubble_s, simulate

SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 1), ("dualpipe-v", 1))
_WIDTH, _LAYERS = 384, 8


@dataclass(frozen=True)
class Bubble:
    """Idle shares of the step: on the recorded timeline, by the closed formula, and simulated with each stage's times."""

    name: str
    measured: float
    closed: float | None
    simulated: float


class Working(nn.Module):
    """A stage of matrix products; the first one begins with a parameter, so that its backward is as long as the others'."""

    def __init__(self, layers: int, rows: int, first: bool):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(layers)))
        self.entrance = nn.Parameter(torch.ones(rows, _WIDTH)) if first else None

    def forward(self, activation: torch.Tensor | None, batch: int) -> torch.Tensor:
        """(rows, width) of the stage before, or from the entrance."""
        given = self.entrance if activation is None else activation
        return self.layers(given)


def bubbles(rank: Rank, micro_batches: int, rows: int, runs: int) -> list[Bubble]:
    """Every schedule on as many ranks as run truly in parallel: more ranks than cores would measure the cores."""
    group = Mesh(ParallelLayout(pp=rank.world_size), rank).group("pp")
    found = []
    for name, virtual in SCHEDULES:
        schedule = build_schedule(name, group.size, micro_batches, virtual)
        total = len(schedule.paths[0])
        stages = {n: Working(_LAYERS // total, rows, n == 0) for n in stages_of(schedule, group.index)}
        timelines = []
        for _ in range(runs):
            rank.sum_(torch.zeros(1))
            result = run_pipeline(schedule, stages, list(range(micro_batches)),
                                  lambda output, batch: output.square().sum(), group)  # fmt: skip
            timelines.append(result.timeline(group))
        # The least disturbed: whatever else the machine does only adds.
        timeline = min(timelines, key=lambda one: one.makespan_s)
        costs = _costs(timeline, total)
        closed = None
        if not any(cost.backward_weight for cost in costs):
            # The formula's cost is a rank's share of one micro-batch: all its stages.
            forward, backward = (
                sum(getattr(cost, part) for cost in costs) / group.size for part in ("forward", "backward_input")
            )
            idle = closed_bubble_s(name, group.size, StageCost(forward, backward, 0.0), virtual)
            closed = idle / (idle + micro_batches * (forward + backward))
        found.append(Bubble(name, timeline.bubble_rate, closed, simulate(schedule, costs).bubble_rate))
    return found


def _costs(timeline: Timeline, stages: int) -> list[StageCost]:
    """Mean seconds of each stage's operations; a whole backward stands as its input part."""
    spent: dict[tuple[str, int], list[float]] = {}
    for rank in timeline.events:
        for event in rank:
            (op,) = event.ops
            spent.setdefault((op.kind, op.stage), []).append(event.end - event.start)

    def mean(kind: str, stage: int) -> float:
        times = spent.get((kind, stage), [0.0])
        return sum(times) / len(times)

    return [StageCost(mean("F", n), mean("B", n) or mean("D", n), mean("W", n)) for n in range(stages)]
