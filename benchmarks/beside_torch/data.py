"""Data parallelism: DDP against dp_replicate, fully_shard against ZeRO 2 and 3; one step each, clipped by the global norm."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.beside_torch.workload import Case, StepOf, Workload
from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.models.transformer import Tokens
from distributed.parallelize import ParallelStyle, parallelize
from distributed.sharded_data import ShardedData
from distributed.step import step

CLIP = 1.0


def ours(rank: Rank, work: Workload, axes: str, style: ParallelStyle) -> StepOf:
    """One step of this module under a layout without pipeline."""
    mesh = Mesh(ParallelLayout.parse(axes.format(rank.world_size)), rank)
    parallel = parallelize(work.model(), mesh, style, work.length)
    units = {f"blocks.{number}": block for number, block in enumerate(parallel.model.blocks)}
    data = ShardedData(parallel.model, units, mesh, parallel.placements, style.zero)
    optimizer = torch.optim.AdamW(data.parameters(), lr=work.learning_rate)
    tokens = work.tokens(mesh.data.index)
    return lambda key: step(parallel, data, optimizer, mesh, [tokens], key, CLIP).loss


def training_step(module: nn.Module, tokens: Tokens, work: Workload, ranks: int, rank: Rank) -> StepOf:
    """The usual loop around a PyTorch module whose gradients are the mean over `ranks` data ranks."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=work.learning_rate)

    def one(key: int) -> float:
        optimizer.zero_grad()
        total = torch.tensor(float(tokens.weight))
        if ranks > 1:
            dist.all_reduce(total)
        loss = module(tokens, key) / total
        (loss * ranks).backward()
        clip(module)
        optimizer.step()
        shown = loss.detach()
        if ranks > 1:
            dist.all_reduce(shown)
        return shown.item()

    return one


def clip(module: nn.Module) -> None:
    """PyTorch's own clipping, which takes DTensors and plain tensors apart alone."""
    kinds: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in module.parameters():
        kinds[isinstance(parameter.grad, DTensor)].append(parameter)
    alike = [parameters for parameters in kinds.values() if parameters]
    norms = [nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]) for parameters in alike]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    whole = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for parameters in alike:
        nn.utils.clip_grads_with_norm_(parameters, CLIP, whole)


def ddp(rank: Rank, work: Workload) -> StepOf:
    """PyTorch's `DistributedDataParallel`."""
    module = DistributedDataParallel(work.model())
    return training_step(module, work.tokens(rank.index), work, rank.world_size, rank)


def fsdp(rank: Rank, work: Workload, reshard: bool) -> StepOf:
    """PyTorch's `fully_shard`, a unit a block."""
    model = work.model()
    mesh = init_device_mesh("cpu", (rank.world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    assert isinstance(model, FSDPModule)
    return training_step(model, work.tokens(rank.index), work, rank.world_size, rank)


def cases(work: Workload) -> list[Case]:
    """DDP, ZeRO 3 and ZeRO 2 beside their peers."""
    return [
        Case("dp_replicate", "PyTorch DDP",
             partial(ours, axes="dp_replicate={}", style=ParallelStyle()), ddp, work),
        Case("dp_shard, ZeRO 3", "PyTorch fully_shard",
             partial(ours, axes="dp_shard={}", style=ParallelStyle(zero=3)), partial(fsdp, reshard=True), work),
        Case("dp_shard, ZeRO 2", "PyTorch fully_shard, reshard_after_forward=False",
             partial(ours, axes="dp_shard={}", style=ParallelStyle(zero=2)), partial(fsdp, reshard=False), work),
    ]  # fmt: skip
