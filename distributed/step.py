"""One optimizer step under any layout: micro-batches, loss per token, the norm over the whole model, clipping."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from distributed.experts import balance_, take_load
from distributed.groups import Mesh
from distributed.models.attention import wide
from distributed.models.transformer import Tokens
from distributed.parallelize import Parallelized
from distributed.sharded_data import ShardedData


@dataclass(frozen=True)
class Step:
    """What a step did; bitwise the same on all ranks. `loss` is per token; `applied` is false when it was not finite."""

    loss: float
    tokens: int
    norm: float
    applied: bool


def global_norm(data: ShardedData, mesh: Mesh) -> float:
    """The L2 norm of the whole model's gradient: every entry counted once, wherever its copies lie.

    Pieces are summed in their own type, float32 at least, and their sums in float64.
    """
    norms = [torch.linalg.vector_norm(piece, dtype=wide(piece.dtype)) for piece in data.counted()]
    total = torch.zeros((), dtype=torch.float64, device=mesh.rank.device)
    if norms:
        total = torch.stack(norms).double().square().sum()
    return math.sqrt(mesh.world.all_reduce_(total).item())


def gradients(parallel: Parallelized, data: ShardedData, mesh: Mesh, micro_batches: Sequence[Tokens], key: int
              ) -> tuple[float, float]:  # fmt: skip
    """Leaves the gradient of the loss per token of the global batch in place; returns (loss per token, tokens).

    `micro_batches` are this data rank's whole sequences, as many on every rank, of any number of samples each. Tokens are
    counted before the first forward, so that no split into ranks or micro-batches weighs them differently.
    """
    parts = [parallel.part(batch) for batch in micro_batches]
    device = mesh.rank.device
    count = torch.tensor(float(sum(part.weight for part in parts)), dtype=torch.float64, device=device)
    tokens = mesh.data.all_reduce_(count).item()
    divisor = tokens if tokens > 0 else 1.0
    total = torch.zeros((), dtype=torch.float64, device=device)
    for number, part in enumerate(parts):
        data.begin(last=number + 1 == len(parts))
        loss = parallel.model(part, key) / divisor
        loss.backward()
        total += loss.detach().double()
    data.finish()
    return mesh.data.all_reduce_(total).item(), tokens


def step(parallel: Parallelized, data: ShardedData, optimizer: torch.optim.Optimizer, mesh: Mesh,
         micro_batches: Sequence[Tokens], key: int, largest_norm: float | None = 1.0) -> Step:  # fmt: skip
    """One step; a loss or norm that is not finite leaves the parameters as they are, on all ranks together.

    The load of sparse layers is taken: routers that balance by a bias follow it when the step is applied.
    """
    loss, tokens = gradients(parallel, data, mesh, micro_batches, key)
    load = take_load(parallel.model)
    norm = global_norm(data, mesh)
    applied = math.isfinite(loss) and math.isfinite(norm)
    if applied:
        if largest_norm is not None and norm > largest_norm:
            for parameter in data.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(largest_norm / norm)
        optimizer.step()
        balance_(parallel.model, load, *parallel.tokens_over)
    data.after_step()
    return Step(loss, int(tokens), norm, applied)
