"""Pipeline schedules: measured bubble beside the closed formula, and step time beside PyTorch's own pipelining.

The bubble is measured with layers that sleep, so that ranks need no cores of their own; step times with layers that work.
"""

import copy
import time
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from benchmarks.claims import Claim, Result, run
from distributed import ParallelLayout, Rank, launch
from distributed.groups import Group, Mesh
from distributed.pipeline import run_pipeline, stages_of
from distributed.planner.schedules import build_schedule
from distributed.planner.simulate import StageCost, closed_bubble_s, simulate

BUBBLES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 1))
PEERS = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
WIDTH = 256


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


class Working(nn.Sequential):
    """A stage of matrix products."""

    def __init__(self, layers: int):
        super().__init__(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))


class _Fed(nn.Module):
    """The same stage for this module's runner, which gives the first one its micro-batch."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, activation: torch.Tensor | None, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.inner(batch[0] if activation is None else activation)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def _step_times(rank: Rank, name: str, micro_batches: int, rows: int, steps: int) -> tuple[float, float, float]:
    """(ours s, PyTorch's s, largest difference of a gradient), each the least disturbed of steps taken in turn."""
    group = Mesh(ParallelLayout(pp=rank.world_size), rank).group("pp")
    schedule = build_schedule(name, group.size, micro_batches, 2 if name == "interleaved" else 1)
    total = len(schedule.paths[0])
    ours: dict[int, nn.Module] = {}
    theirs: dict[int, nn.Module] = {}
    for number in stages_of(schedule, group.index):
        torch.manual_seed(number)
        theirs[number] = Working(8 // total)
        ours[number] = _Fed(copy.deepcopy(theirs[number]))
    torch.manual_seed(99)
    inputs, targets = torch.randn(micro_batches * rows, WIDTH), torch.randn(micro_batches * rows, WIDTH)
    batches = list(zip(inputs.chunk(micro_batches), targets.chunk(micro_batches)))
    peer = _peer(name, theirs, total, micro_batches, group, rank)
    first, last = 0 in ours, total - 1 in ours
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(steps + 1):
        for module in (*ours.values(), *theirs.values()):
            module.zero_grad(set_to_none=True)
        for which in (0, 1) if step % 2 else (1, 0):
            rank.sum_(torch.zeros(1))
            begun = time.perf_counter()
            if which == 0:
                run_pipeline(schedule, ours, batches, lambda output, batch: _loss(output, batch[1]), group,
                             shape_of=lambda micro: ((rows, WIDTH), torch.float32))  # fmt: skip
            else:
                peer.step(*((inputs,) if first else ()), **({"target": targets, "losses": []} if last else {}))
            rank.sum_(torch.zeros(1))
            seconds[which].append(time.perf_counter() - begun)
    apart = max(
        float((one.grad - other.grad).abs().max() / other.grad.abs().max())
        for number in ours
        for one, other in zip(ours[number].parameters(), theirs[number].parameters())
    )
    return min(seconds[0][1:]), min(seconds[1][1:]), apart


def _peer(name: str, modules: dict[int, nn.Module], total: int, micro_batches: int, group: Group, rank: Rank) -> Any:
    stages = [
        PipelineStage(module, number, total, rank.device, group=group.handle) for number, module in modules.items()
    ]
    kind = get_schedule_class(PEERS[name])
    several = name in ("interleaved", "zb-v")
    return kind(stages if several else stages[0], micro_batches, loss_fn=_loss, scale_grads=False)


def measure(quick: bool) -> Result:
    """Bubbles on 4 ranks and step times on 2, every schedule in one run."""
    ranks, micro_batches, seconds = 4, 8, 0.03 if quick else 0.1
    rows, steps = (64, 20) if quick else (256, 30)
    result = Result(sizes={"bubble": {"ranks": ranks, "micro_batches": micro_batches, "operation_s": seconds},
                           "steps": {"ranks": 2, "micro_batches": 4, "rows": rows, "width": WIDTH, "layers": 8,
                                     "steps": steps}})  # fmt: skip
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
    for name, theirs in PEERS.items():
        own_s, peer_s, apart = max(launch(_step_times, (name, 4, rows, steps), 2), key=lambda times: times[0])
        result.claims.append(Claim(f"step of {name}, 2 ranks", own_s * 1e3, "ms", f"PyTorch {theirs}", peer_s * 1e3,
                                   "at most 1.05 x", own_s <= 1.05 * peer_s))  # fmt: skip
        result.claims.append(Claim(f"gradients of {name} apart", apart, "relative", f"PyTorch {theirs}", None,
                                   "below 1e-4", apart < 1e-4))  # fmt: skip
    return result


if __name__ == "__main__":
    run("pipeline", measure)
