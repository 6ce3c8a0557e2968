"""Tensor parallelism: DTensor's `parallelize_module` against tp, with sequence parallelism and without."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel import (
    ParallelStyle as DTensorStyle,
)

from benchmarks.beside_torch.data import ours, training_step
from benchmarks.beside_torch.workload import Case, StepOf, Workload
from distributed import Rank
from distributed.models.transformer import NO_TARGET, Tokens, Transformer
from distributed.parallelize import ParallelStyle


class Cut(nn.Module):
    """The transformer with its head called as a module, which is where `parallelize_module` reaches it."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tokens, key: int) -> torch.Tensor:
        """The sum of the tokens' cross-entropies."""
        model = self.model
        hidden_BLD = model.embedding(tokens.ids)
        for block in model.blocks:
            hidden_BLD, _ = block(hidden_BLD, tokens, key)
        assert model.head is not None
        logits_BLV = model.head(model.norm(hidden_BLD))
        return F.cross_entropy(
            logits_BLV.flatten(0, 1), tokens.targets.flatten(), ignore_index=NO_TARGET, reduction="sum"
        )


def dtensor(rank: Rank, work: Workload, sequence: bool) -> StepOf:
    """DTensor tensor parallelism by the plan of PyTorch's own tutorial, `loss_parallel` for the cross-entropy."""
    module = Cut(work.model())
    mesh = init_device_mesh("cpu", (rank.world_size,))
    residual = Shard(1) if sequence else Replicate()
    plan: dict[str, DTensorStyle] = {
        "model.embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=residual, use_local_output=not sequence
        ),
        "model.head": ColwiseParallel(input_layouts=residual, use_local_output=False),
    }
    if sequence:
        plan["model.norm"] = SequenceParallel()
    for number in range(work.layers):
        at = f"model.blocks.{number}"
        for name in ("attention.wq", "attention.wk", "attention.wv", "mlp.gate", "mlp.up"):
            plan[f"{at}.{name}"] = ColwiseParallel()
        for name in ("attention.wo", "mlp.down"):
            plan[f"{at}.{name}"] = RowwiseParallel(output_layouts=residual, use_local_output=not sequence)
        if sequence:
            plan[f"{at}.norm_attention"] = plan[f"{at}.norm_mlp"] = SequenceParallel()
            plan[f"{at}.attention"] = PrepareModuleInput(
                input_layouts=(residual, None), desired_input_layouts=(Replicate(), None)
            )
            plan[f"{at}.mlp"] = PrepareModuleInput(input_layouts=residual, desired_input_layouts=Replicate())
    parallelize_module(module, mesh, plan)
    inner = training_step(module, work.tokens(0), work, 1, rank)

    def one(key: int) -> float:
        with loss_parallel():
            return inner(key)

    return one


def cases(work: Workload) -> list[Case]:
    """Both forms beside DTensor."""
    return [
        Case("tp, sequence parallel", "PyTorch DTensor, sequence parallel",
             partial(ours, axes="tp={}", style=ParallelStyle()), partial(dtensor, sequence=True), work),
        Case("tp", "PyTorch DTensor",
             partial(ours, axes="tp={}", style=ParallelStyle(sequence_parallel=False)),
             partial(dtensor, sequence=False), work),
    ]  # fmt: skip
