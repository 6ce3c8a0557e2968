"""A model that computes in bfloat16 is trained in the wide type: sums of gradients, reductions, weights and optimizer state."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.parallelize import ParallelStyle
from distributed.placement import Placement
from distributed.sharded_data import ShardedData
from tests.distributed.parity import Case, merged, train_under
from tests.distributed.pool import pool

PIECES = 256
NARROW = ParallelStyle(compute=torch.bfloat16)


def _held(module: nn.Module, compute: torch.dtype | None) -> ShardedData:
    placements = {name: Placement() for name, _ in module.named_parameters()}
    return ShardedData(module, {}, Mesh(ParallelLayout(), Rank()), placements, compute=compute)


def _linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(16, 4)


def test_fault_27_gradients_of_256_micro_batches_add_up_as_in_float32():
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.rand(3, 16, generator=generator).bfloat16() for _ in range(PIECES)]
    module = _linear()
    data = _held(module, torch.bfloat16)
    naive, exact = _linear().bfloat16(), torch.zeros(4, 16)
    for part in inputs:
        data.begin(last=False)
        (module(part).sum() / PIECES).backward()
        (naive(part).sum() / PIECES).backward()
        alone = _linear().bfloat16()
        (alone(part).sum() / PIECES).backward()
        exact += alone.weight.grad.float()
    data.finish()
    found = data.parameters()[0].grad[: exact.numel()].view_as(exact)
    assert found.dtype == torch.float32 and module.weight.dtype == torch.bfloat16
    assert ((found - exact).abs() / exact.abs()).max() < 1e-5
    assert ((naive.weight.grad.float() - exact).abs() / exact.abs()).max() > 1e-2, "adding up in bfloat16 would be seen"


def test_steps_too_small_for_bfloat16_move_the_wide_weights():
    module, naive = _linear(), _linear().bfloat16()
    data = _held(module, torch.bfloat16)
    start, narrow_start = data.parameters()[0].detach().clone(), naive.weight.detach().clone()
    optimizer, plain = (torch.optim.SGD(p, lr=1e-5) for p in (data.parameters(), naive.parameters()))
    part = torch.ones(1, 16).bfloat16()
    for _ in range(50):
        data.begin(last=True)
        module(part).sum().backward()
        data.finish()
        optimizer.step()
        data.after_step()
        plain.zero_grad()
        naive(part).sum().backward()
        plain.step()
    moved = start - data.parameters()[0].detach()
    assert moved.numpy() == pytest.approx(50e-5, rel=1e-2)
    stuck = (naive.weight == narrow_start).float().mean()
    assert stuck > 0.5, "weights in bfloat16 alone would have stood still"


CASES = [
    Case(ParallelLayout(dp_replicate=2), NARROW, steps=3),
    Case(ParallelLayout(dp_shard=2, tp=2), dataclasses.replace(NARROW, zero=3), steps=3),
    Case(
        ParallelLayout(pp=2, dp_shard=2),
        dataclasses.replace(NARROW, zero=2),
        steps=3,
        schedule="zb-h1",
        micro_batches=4,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_narrow_model_trains_on_a_mesh_as_on_one_process(case: Case):
    single = train_under(Rank(), dataclasses.replace(case, layout=ParallelLayout(), style=NARROW))
    records = pool().run(train_under, (case,), case.layout.world_size)
    found = merged(records)
    # Where tp cuts a product, its parts are rounded before they are summed.
    bound = 3e-2 if case.layout.tp > 1 else 1e-2
    # Rows fall into other micro-batches, whose gradients are each rounded once: apart by roundings, not by what adds up.
    assert abs(found.losses[0] - single.losses[0]) < 2e-3
    wanted, seen = (np.concatenate([record.gradients[0][name].ravel() for name in sorted(single.gradients[0])])
                    for record in (single, found))  # fmt: skip
    assert np.linalg.norm(seen - wanted) / np.linalg.norm(wanted) < bound
    assert found.norms[0] == pytest.approx(single.norms[0], rel=1e-2)
    assert len({(record.stage, record.digest) for record in records}) == case.layout.pp
