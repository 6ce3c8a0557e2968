"""Faults of mixtures of experts on a mesh, each planted in a layout that is right without it, and seen."""

import dataclasses

import pytest
import torch
from torch import nn

from distributed import ParallelLayout
from distributed.exchange import alone
from distributed.experts import ExpertLayer, ExpertLoad
from distributed.experts.dispatch import keep_within_capacity
from distributed.groups import Mesh
from distributed.parallelize import Parallelized, ParallelStyle
from tests.distributed import test_experts as mixtures
from tests.distributed.parity import SIZES, Case, Record, distance, reference, train_under
from tests.distributed.pool import pool
from tests.distributed.test_layout_faults import SEEN, STEPS, clip_by_own_norm

SPARSE = dataclasses.replace(SIZES, experts=4)


@pytest.fixture(scope="module")
def single() -> Record:
    return reference(SPARSE, STEPS)


def _run(layout: ParallelLayout, plant=None, ep: int = 2) -> Record:
    case = Case(layout, ParallelStyle(ep=ep), SPARSE, STEPS)
    return pool().run(train_under, (case, plant), layout.world_size)[0]


def experts_of_the_first_rank_counted(parallel: Parallelized, mesh: Mesh) -> None:
    for name, placement in parallel.placements.items():
        if placement.copies is not None and mesh.data.index > 0:
            parallel.placements[name] = placement.not_counted()


def test_fault_3_a_norm_that_leaves_other_ranks_experts_out_is_seen(single: Record):
    right, wrong = (_run(ParallelLayout(dp_shard=2), plant) for plant in (None, experts_of_the_first_rank_counted))
    assert distance(right, single) < 1e-9
    assert abs(wrong.norms[0] - single.norms[0]) > SEEN
    assert abs(wrong.losses[0] - single.losses[0]) < 1e-9, "the fault is in the norm alone"


def test_fault_4_dense_weights_drift_when_each_expert_rank_clips_by_its_own_norm():
    case = Case(ParallelLayout(dp_shard=2), ParallelStyle(ep=2), SPARSE, steps=20)
    for own in (False, True):
        assert len(set(pool().run(clip_by_own_norm, (own, case), 2))) == 1 + own


class _Divided(nn.Module):
    def __init__(self, inner: nn.Module, by: int):
        super().__init__()
        self.inner, self.by = inner, by

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return self.inner(loss) / self.by


def router_loss_divided_by_context_ranks(parallel: Parallelized, mesh: Mesh) -> None:
    for block in parallel.model.blocks:
        block.mlp.total = _Divided(block.mlp.total, mesh.group("cp").size)


def router_loss_divided_by_tensor_ranks(parallel: Parallelized, mesh: Mesh) -> None:
    for block in parallel.model.blocks:
        block.mlp.total = _Divided(block.mlp.total, mesh.group("tp").size)


def router_loss_divided_by_micro_batches(parallel: Parallelized, mesh: Mesh) -> None:
    for block in parallel.model.blocks:
        block.mlp.total = _Divided(block.mlp.total, Case(mesh.layout).micro_batches)


@pytest.mark.parametrize(
    ("layout", "plant"),
    [
        (ParallelLayout(cp=2), router_loss_divided_by_context_ranks),
        (ParallelLayout(tp=2), router_loss_divided_by_tensor_ranks),
        (ParallelLayout(dp_shard=2), router_loss_divided_by_micro_batches),
    ],
)
def test_fault_6_a_router_loss_that_is_divided_once_more_is_seen(single: Record, layout: ParallelLayout, plant):
    ep = 1 if layout.tp > 1 else 2
    assert distance(_run(layout, None, ep), single) < 1e-9
    assert distance(_run(layout, plant, ep), single) > SEEN


def _routed_carried_dropped(layer: ExpertLayer) -> tuple[int, int, int]:
    """Choices of valid tokens, rows that reached an expert, drops as reported."""
    carried: list[int] = []
    layer.bank.register_forward_pre_hook(lambda _, given: carried.append(len(given[0])))
    hidden_ND, valid_N, segments_N = mixtures.tokens(3, mixtures.Case("", 1))
    layer(hidden_ND, valid_N, segments_N, 2)
    report = layer.load.report(alone())
    return sum(report["tokens_per_expert"]), sum(carried), report["dropped"]


def test_fault_21_drops_that_nobody_counts_are_seen(monkeypatch: pytest.MonkeyPatch):
    tight = mixtures.Case("", 1, capacity=0.25)
    routed, carried, dropped = _routed_carried_dropped(mixtures.build(tight))
    assert dropped > 0 and carried + dropped == routed
    add = ExpertLoad.add
    monkeypatch.setattr(ExpertLoad, "add", lambda self, routed_E, dropped_E: add(self, routed_E, dropped_E * 0))
    routed, carried, dropped = _routed_carried_dropped(mixtures.build(tight))
    assert carried + dropped < routed


def _balance_loss(capacity: float | None, after_dropping: bool) -> float:
    layer = mixtures.build(mixtures.Case("", 1, capacity=capacity))
    route = layer.router.forward

    def with_the_loss_of_what_was_kept(hidden_ND, valid_N, segments_N, segments, split):
        routing = route(hidden_ND, valid_N, segments_N, segments, split)
        kept = keep_within_capacity(routing, mixtures.EXPERTS, capacity, alone())
        kept_N = torch.zeros_like(valid_N).index_fill(0, kept.tokens_P, True)
        return dataclasses.replace(routing, loss=route(hidden_ND, kept_N, segments_N, segments, split).loss)

    if after_dropping:
        layer.router.forward = with_the_loss_of_what_was_kept
    hidden_ND, valid_N, segments_N = mixtures.tokens(3, mixtures.Case("", 1))
    return layer(hidden_ND, valid_N, segments_N, 2)[1].item()


def test_fault_21_a_balance_loss_that_is_taken_after_the_drops_is_seen():
    free, tight, wrong = _balance_loss(None, False), _balance_loss(0.25, False), _balance_loss(0.25, True)
    assert free == tight
    assert abs(wrong - free) > SEEN


def bias_by_the_ranks_own_load(parallel: Parallelized, mesh: Mesh) -> None:
    parallel.tokens_over = (alone(),)


def test_a_router_bias_that_follows_one_ranks_load_alone_is_seen():
    sizes = dataclasses.replace(SPARSE, bias_step=0.1)
    single = reference(sizes, 6)
    case = Case(ParallelLayout(dp_shard=2), ParallelStyle(ep=2), sizes, steps=6)
    for plant in (None, bias_by_the_ranks_own_load):
        found = pool().run(train_under, (case, plant), 2)[0]
        assert (distance(found, single) > SEEN) == (plant is not None)
