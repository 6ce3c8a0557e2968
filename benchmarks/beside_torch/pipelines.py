"""Pipelines: `torch.distributed.pipelining` against this module's runner, schedule by schedule, on the same stages."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from benchmarks.beside_torch.workload import Case, StepOf, Workload
from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.models.transformer import CrossEntropySum, Tokens, Transformer, through
from distributed.parallelize import ParallelStyle, parallelize
from distributed.pipeline import stage_layers, stages_of
from distributed.pipelined import PipelinedTransformer
from distributed.planner.schedules import build_schedule

PEERS = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
_VIRTUAL = 2


def ours(rank: Rank, work: Workload, schedule: str) -> StepOf:
    """One step of this module: every micro-batch is one sample."""
    mesh = Mesh(ParallelLayout(pp=rank.world_size), rank)
    style = ParallelStyle()
    parallel = parallelize(work.model(), mesh, style, work.length)
    piped = PipelinedTransformer(parallel, mesh, style, schedule, _VIRTUAL if schedule == "interleaved" else 1)
    optimizer = torch.optim.AdamW(piped.data.parameters(), lr=work.learning_rate)
    tokens = work.tokens()
    batches = [tokens.rows(number, number + 1) for number in range(work.samples)]

    def one(key: int) -> float:
        loss, _ = piped.gradients(batches, key)
        optimizer.step()
        piped.data.after_step()
        return loss

    return one


class PeerStage(nn.Module):
    """Consecutive blocks with the embedding before the first and norm and head after the last, as PyTorch calls a stage.

    What is the same for every micro-batch (positions, documents) is the stage's own: PyTorch passes one tensor on.
    """

    def __init__(self, model: Transformer, run: range, first: bool, last: bool, tokens: Tokens):
        super().__init__()
        self.embedding = model.embedding if first else None
        self.blocks = nn.ModuleList(model.blocks[number] for number in run)
        self.norm = model.norm if last else None
        self.head = model.head if last else None
        self.tokens = tokens

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Ids (B, L) or hidden states (B, L, D) to hidden states or logits (B, L, V)."""
        hidden_BLD = given if self.embedding is None else self.embedding(given)
        hidden_BLD, _ = through(self.blocks, hidden_BLD, self.tokens, 0)
        if self.norm is None or self.head is None:
            return hidden_BLD
        return F.linear(self.norm(hidden_BLD), self.head.weight)


def theirs(rank: Rank, work: Workload, schedule: str) -> StepOf:
    """One step of PyTorch's schedule over the same stages."""
    plan = build_schedule(schedule, rank.world_size, work.samples, _VIRTUAL if schedule == "interleaved" else 1)
    total = len(plan.paths[0])
    runs = stage_layers([1.0] * work.layers, total)
    model, tokens = work.model(), work.tokens()
    held = [
        (number, PeerStage(model, runs[number], number == 0, number + 1 == total, tokens.rows(0, 1)))
        for number in stages_of(plan, rank.index)
    ]
    stages = [PipelineStage(module, number, total, rank.device) for number, module in held]
    cross_entropy = CrossEntropySum()

    def loss_of(logits_BLV: torch.Tensor, targets_BL: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits_BLV, targets_BL) / tokens.weight

    kind = get_schedule_class(PEERS[schedule])
    several = schedule in ("interleaved", "zb-v")
    runner: Any = kind(stages if several else stages[0], work.samples, loss_fn=loss_of, scale_grads=False)
    optimizer = torch.optim.AdamW([p for _, module in held for p in module.parameters()], lr=work.learning_rate)
    first, last = held[0][0] == 0, any(number + 1 == total for number, _ in held)
    del model

    def one(key: int) -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        runner.step(*((tokens.ids,) if first else ()), **({"target": tokens.targets, "losses": losses} if last else {}))
        optimizer.step()
        shown = torch.stack(losses).sum() if last else torch.zeros(())
        dist.all_reduce(shown)
        return shown.item()

    return one


def cases(work: Workload) -> list[Case]:
    """Every schedule that PyTorch has too."""
    return [Case(f"pp, {name}", f"PyTorch {peer}", partial(ours, schedule=name), partial(theirs, schedule=name), work)
            for name, peer in PEERS.items()]  # fmt: skip
