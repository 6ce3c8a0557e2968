"""A step clips by the whole model's norm, is skipped on all ranks together when it is not finite, and otherwise as documented."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.parallelize import ParallelStyle, parallelize
from distributed.step import Step, step
from tests.distributed import parity
from tests.distributed.parity import CLIP, SEQUENCE, SIZES, Case, build, micro_batches, reference
from tests.distributed.pool import pool


class _BrokenOnce(nn.Module):
    def __init__(self, inner: nn.Module, broken: list[bool]):
        super().__init__()
        self.inner, self.broken = inner, broken

    def forward(self, logits, targets):
        return self.inner(logits, targets) * (math.nan if self.broken.pop(0) else 1.0)


def three_steps(rank: Rank, case: Case, nan_at: int | None) -> tuple[list[Step], dict[str, np.ndarray], list[float]]:
    """(steps, whole parameters at the end, how far each step moved this rank's parameters)."""
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(build(case.sizes), mesh, case.style, SEQUENCE)
    data = parity.sharded(parallel, mesh, case)
    if nan_at is not None:
        # One micro-batch of the last data rank alone.
        last = mesh.data.index + 1 == mesh.data.size
        parallel.model.loss = _BrokenOnce(parallel.model.loss, [last and call == nan_at for call in range(9)])
    optimizer = torch.optim.AdamW(data.parameters(), lr=0.01)
    steps, moved = [], []
    for number in range(3):
        before = torch.cat([p.detach().reshape(-1).clone() for p in data.parameters()])
        batches = micro_batches(number, case, mesh)
        steps.append(step(parallel, data, optimizer, mesh, batches, number, CLIP))
        after = torch.cat([p.detach().reshape(-1) for p in data.parameters()])
        moved.append((after - before).abs().max().item())
    return steps, parity.whole(parallel, data, False), moved


CASE = Case(ParallelLayout(dp_shard=2, tp=2), ParallelStyle(zero=3), micro_batches=3)


ROUTED = dataclasses.replace(SIZES, experts=4, score="sigmoid", bias_step=0.1)


@pytest.mark.parametrize(
    "case",
    [CASE, Case(ParallelLayout(dp_shard=2, tp=2), ParallelStyle(zero=1, ep=2), ROUTED, micro_batches=3)],
    ids=lambda case: case.name,
)
def test_three_documented_steps_are_those_of_one_process(case: Case):
    single = reference(case.sizes, 3)
    steps, parameters, _ = pool().run(three_steps, (case, None), 4)[0]
    assert [s.loss for s in steps] == pytest.approx(single.losses, abs=1e-9)
    assert [s.norm for s in steps] == pytest.approx(single.norms, abs=1e-9)
    assert max(np.abs(parameters[name] - single.parameters[name]).max() for name in parameters) < 1e-9


def test_one_nan_micro_batch_skips_the_step_on_all_ranks_and_leaves_the_parameters_as_they_were():
    results = pool().run(three_steps, (CASE, 4), 4)
    for steps, _, moved in results:
        assert [s.applied for s in steps] == [True, False, True]
        assert moved[1] == 0.0 and moved[0] > 0 and moved[2] > 0
    assert all(np.isfinite(array).all() for array in results[0][1].values())
