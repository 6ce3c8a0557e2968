"""Faults that parallel training is known for, each planted in a layout that is right without it, and seen."""

import dataclasses

import pytest
import torch
from torch import nn

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.models.transformer import NO_TARGET, Tokens, Transformer, TransformerSizes
from distributed.parallelize import Parallelized, ParallelStyle, parallelize
from distributed.placement import Placement
from distributed.step import gradients
from tests.distributed import parity
from tests.distributed.parity import (
    SEQUENCE,
    SIZES,
    Case,
    Record,
    batch,
    build,
    distance,
    merged,
    reference,
    train_under,
)
from tests.distributed.pool import pool

SEEN = 1e-4
"""Far above rounding, far below what each fault does."""
STEPS = 3


@pytest.fixture(scope="module")
def single() -> Record:
    return reference(SIZES, STEPS)


def _run(layout: ParallelLayout, plant=None, **style) -> list[Record]:
    case = Case(layout, ParallelStyle(**style), SIZES, STEPS)
    return pool().run(train_under, (case, plant), layout.world_size)


def experts_summed_over_all_data_ranks(parallel: Parallelized, mesh: Mesh) -> None:
    for name, placement in parallel.placements.items():
        if placement.copies is not None:
            parallel.placements[name] = dataclasses.replace(placement, copies=(mesh.data,))


def test_experts_summed_like_weights_that_all_data_ranks_share_are_seen():
    sparse = dataclasses.replace(SIZES, experts=4)
    case = Case(ParallelLayout(dp_shard=2), ParallelStyle(ep=2), sparse, STEPS)
    single = reference(sparse, STEPS)
    assert distance(pool().run(train_under, (case,), 2)[0], single) < 1e-9
    assert distance(pool().run(train_under, (case, experts_summed_over_all_data_ranks), 2)[0], single) > SEEN


class _MeanOfOwnTokens(nn.Module):
    def __init__(self, inner: nn.Module, scale: float):
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, logits, targets):
        return self.inner(logits, targets) / (targets != NO_TARGET).sum().clamp(min=1) * self.scale


def mean_of_means(parallel: Parallelized, mesh: Mesh) -> None:
    # Scaled so that it would be right if all micro-batches of all ranks had equally many tokens.
    pieces = 2 * mesh.data.size
    parallel.model.loss = _MeanOfOwnTokens(parallel.model.loss, batch(0).weight / pieces)


def test_fault_1_the_mean_of_micro_batches_means_is_seen(single: Record):
    assert distance(_run(ParallelLayout(dp_replicate=2))[0], single) < 1e-9
    assert distance(_run(ParallelLayout(dp_replicate=2), mean_of_means)[0], single) > SEEN


def test_fault_5_context_ranks_that_each_take_the_mean_of_their_tokens_are_seen(single: Record):
    assert distance(_run(ParallelLayout(cp=2), mean_of_means)[0], single) > SEEN


@pytest.mark.slow
def test_fault_5_two_by_four_context_ranks_equal_eight_data_ranks():
    context = _run(ParallelLayout(dp_replicate=2, cp=4))[0]
    assert distance(context, _run(ParallelLayout(dp_replicate=8))[0]) < 1e-9


def twice_the_gradient_of_all_but_the_last(parallel: Parallelized, mesh: Mesh) -> None:
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    parallel.model.register_forward_pre_hook(count)
    # Re-divides: what is there is scaled again at every further micro-batch.
    parallel.model.register_forward_hook(lambda module, _, loss: loss / (1 + (calls[0] - 1) % 2))


def test_fault_2_accumulation_that_rescales_is_seen(single: Record):
    assert distance(_run(ParallelLayout(dp_replicate=2), twice_the_gradient_of_all_but_the_last)[0], single) > SEEN


def test_fault_2_pipeline_gradients_that_are_means_of_micro_batches_are_seen(single: Record):
    for plant in (None, mean_of_means):
        assert (distance(merged(_run(ParallelLayout(pp=2), plant)), single) > SEEN) == (plant is not None)


def every_copy_counted(parallel: Parallelized, mesh: Mesh) -> None:
    for name, placement in parallel.placements.items():
        parallel.placements[name] = dataclasses.replace(placement, counted=True)


def only_the_first_rank_counted(parallel: Parallelized, mesh: Mesh) -> None:
    if mesh.group("tp").index > 0:
        for name, placement in parallel.placements.items():
            parallel.placements[name] = dataclasses.replace(placement, counted=False)


@pytest.mark.parametrize("plant", [every_copy_counted, only_the_first_rank_counted])
def test_fault_3_a_norm_that_counts_copies_or_leaves_shards_out_is_seen(single: Record, plant):
    right = _run(ParallelLayout(tp=2))[0]
    assert max(abs(a - b) for a, b in zip(right.norms, single.norms)) < 1e-9
    wrong = _run(ParallelLayout(tp=2), plant)[0]
    assert abs(wrong.norms[0] - single.norms[0]) > SEEN
    assert abs(wrong.losses[0] - single.losses[0]) < 1e-9, "the fault is in the norm alone"


def tied_copies_both_counted(rank: Rank, fault: bool) -> Record:
    if fault:
        Placement.not_counted = lambda self: self  # type: ignore[method-assign]
    try:
        return train_under(rank, Case(ParallelLayout(pp=2), steps=STEPS))
    finally:
        Placement.not_counted = _NOT_COUNTED  # type: ignore[method-assign]


_NOT_COUNTED = Placement.not_counted


def test_fault_3_a_tied_embedding_counted_in_both_its_stages_is_seen(single: Record):
    for fault in (False, True):
        norm = pool().run(tied_copies_both_counted, (fault,), 2)[0].norms[0]
        assert (abs(norm - single.norms[0]) > SEEN) == fault


def clip_by_own_norm(rank: Rank, own: bool, case: Case) -> str:
    """The digest of this rank's parameters after clipped steps. `own`: the fault, a norm of the rank's own."""
    whole = parity.global_norm
    if own:
        parity.global_norm = lambda data, mesh: float(sum(p.square().sum() for p in data.counted()) ** 0.5) + 1e-3
    try:
        return train_under(rank, case).digest
    finally:
        parity.global_norm = whole


def test_fault_4_ranks_that_clip_by_their_own_norm_drift_apart():
    case = Case(ParallelLayout(tp=2), steps=20)
    assert len(set(pool().run(clip_by_own_norm, (False, case), 2))) == 1
    assert len(set(pool().run(clip_by_own_norm, (True, case), 2))) == 2


def train_then_hold_under_another_layout(rank: Rank, first: Case, second: Case, local_names: bool) -> float:
    mesh = Mesh(first.layout, rank)
    one = parallelize(build(SIZES), mesh, first.style, SEQUENCE)
    data = parity.sharded(one, mesh, first)
    gradients(one, data, mesh, parity.micro_batches(0, first, mesh), key=0)
    torch.optim.SGD(data.parameters(), lr=0.1).step()
    data.after_step()
    state = {name: torch.from_numpy(array) for name, array in parity.whole(one, data, False).items()}
    # The fault: names that begin anew at each stage, here as if both blocks were a stage's first.
    if local_names:
        state = {name: state[name.replace("blocks.1.", "blocks.0.")] for name in state}
    model = Transformer(SIZES, torch.Generator().manual_seed(9)).double()
    model.load_state_dict(state)
    mesh = Mesh(second.layout, rank)
    other = parallelize(model, mesh, second.style, SEQUENCE)
    held = parity.whole(other, parity.sharded(other, mesh, second), False)
    now = parity.whole(one, data, False)
    return max(abs(held[name] - now[name]).max() for name in now)


def test_fault_8_a_state_by_global_name_is_the_same_under_another_layout():
    first = Case(ParallelLayout(dp_shard=2, tp=2), ParallelStyle(zero=3))
    second = Case(ParallelLayout(dp_shard=4), ParallelStyle(zero=2))
    assert max(pool().run(train_then_hold_under_another_layout, (first, second, False), 4)) == 0.0
    assert min(pool().run(train_then_hold_under_another_layout, (first, second, True), 4)) > SEEN


def same_mask_on_every_shard(parallel: Parallelized, mesh: Mesh) -> None:
    parallel.model.drop_embedding.sequence_shard = (0, mesh.group("tp").size)
    for block in parallel.model.blocks:
        block.drop_attention.sequence_shard = block.drop_mlp.sequence_shard = (0, mesh.group("tp").size)


def test_fault_9_equal_dropout_on_sequence_shards_is_seen(single: Record):
    assert distance(_run(ParallelLayout(tp=2), same_mask_on_every_shard)[0], single) > SEEN


def other_mask_on_every_replica(parallel: Parallelized, mesh: Mesh) -> None:
    for block in parallel.model.blocks:
        block.drop_mlp.site += str(mesh.group("tp").index)


def test_fault_9_different_dropout_on_tensor_replicas_is_seen(single: Record):
    wrong = _run(ParallelLayout(tp=2), other_mask_on_every_replica, sequence_parallel=False)
    assert distance(wrong[0], single) > SEEN


def test_fault_9_recompute_meets_the_same_mask_bitwise():
    plain, again = (_run(ParallelLayout(tp=2), recompute=how)[0] for how in ("none", "full"))
    assert distance(plain, again) == 0.0


def _break_ties_anew(router: nn.Module, _: object) -> None:
    router.balance_bias_E.uniform_(0, 1e-9)


def _tied_gradients(how: str, flips: bool) -> list[torch.Tensor]:
    """Gradients of a mixture whose router scores all experts alike. `flips`: the fault, ties broken anew at each pass."""
    sparse = dataclasses.replace(SIZES, experts=4)
    mesh = Mesh(ParallelLayout(), Rank())
    parallel = parallelize(build(sparse), mesh, ParallelStyle(recompute=how), SEQUENCE)
    for block in parallel.model.blocks:
        router = block.mlp.layer.router
        torch.nn.init.zeros_(router.weight)
        if flips:
            router.register_forward_pre_hook(_break_ties_anew)
    parallel.model(batch(0), 0).backward()
    return [parameter.grad for parameter in parallel.model.parameters()]


def test_fault_19_tied_experts_are_chosen_the_same_in_the_recomputed_forward():
    plain, again = _tied_gradients("none", False), _tied_gradients("full", False)
    assert all(torch.equal(one, other) for one, other in zip(plain, again))
    torch.manual_seed(3)
    try:
        flipped = _tied_gradients("full", True)
    except torch.utils.checkpoint.CheckpointError:
        return  # the recomputed forward met other numbers of rows: seen
    torch.manual_seed(3)
    kept = _tied_gradients("none", True)
    assert not all(torch.equal(one, other) for one, other in zip(kept, flipped))


def one_kv_head_for_all(parallel: Parallelized, mesh: Mesh) -> None:
    for name, placement in parallel.placements.items():
        if "wk" in name:
            parallel.placements[name] = dataclasses.replace(placement, summed_over=None)


def test_fault_14_kv_heads_that_are_replicated_need_their_gradients_summed(single: Record):
    assert SIZES.kv_heads < 4
    assert distance(_run(ParallelLayout(tp=4))[0], single) < 1e-9
    assert distance(_run(ParallelLayout(tp=4), one_kv_head_for_all)[0], single) > SEEN


def two_models_by_turns(rank: Rank, one_place_for_both: bool) -> list[float]:
    """Losses of two models by turns. The fault: both read the channels of a head from where the last one left them."""
    small = Case(ParallelLayout(tp=2), steps=2)
    shapes = TransformerSizes(vocabulary=32, layers=1, width=16, heads=8, kv_heads=4, feed_forward=8, tied=False)
    other = Case(ParallelLayout(cp=2), ParallelStyle(ulysses=2), shapes, steps=2)
    meshes = [Mesh(case.layout, rank) for case in (small, other)]
    models = [parallelize(build(case.sizes), mesh, case.style, SEQUENCE) for case, mesh in zip((small, other), meshes)]
    if one_place_for_both:
        for block in (*models[0].model.blocks, *models[1].model.blocks):
            block.attention.head_channels = models[1].model.blocks[0].attention.head_channels
    held = [parity.sharded(*one) for one in zip(models, meshes, (small, other))]
    found = []
    for _ in range(2):
        for case, mesh, parallel, data in zip((small, other), meshes, models, held):
            data.drop_gradients()
            found.append(gradients(parallel, data, mesh, parity.micro_batches(0, case, mesh), key=0)[0])
    return found


def test_fault_15_two_models_of_other_shapes_and_groups_live_in_one_process():
    first, second, again, once_more = pool().run(two_models_by_turns, (False,), 2)[0]
    assert first == again and second == once_more
    alone = reference(SIZES, 1).losses[0]
    assert first == pytest.approx(alone, abs=1e-9)
    assert abs(pool().run(two_models_by_turns, (True,), 2)[0][0] - alone) > SEEN


class _PositionsOfTheShard(nn.Module):
    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, *arguments):
        return self.core(*arguments)


def positions_of_the_shard(parallel: Parallelized, mesh: Mesh) -> None:
    part = parallel.part

    def counted_from_zero(tokens: Tokens) -> Tokens:
        mine = part(tokens)
        return dataclasses.replace(mine, positions=torch.arange(mine.ids.shape[1]).expand_as(mine.ids))

    parallel.part = counted_from_zero  # type: ignore[method-assign]


def test_fault_17_positions_that_restart_at_the_shard_instead_of_the_document_are_seen(single: Record):
    for zigzag in (True, False):
        assert distance(_run(ParallelLayout(cp=2), positions_of_the_shard, zigzag=zigzag)[0], single) > SEEN


def parts_of_a_batch(rank: Rank, style: ParallelStyle) -> Tokens:
    mesh = Mesh(ParallelLayout(cp=4), rank)
    return parallelize(build(SIZES), mesh, style, SEQUENCE).part(batch(0))


@pytest.mark.parametrize("style", [ParallelStyle(), ParallelStyle(zigzag=False), ParallelStyle(ulysses=2)])
def test_fault_17_every_document_starts_at_0_on_every_layout(style: ParallelStyle):
    whole, parts = batch(0), pool().run(parts_of_a_batch, (style,), 4)
    found = {}
    for part in parts:
        found.update(zip(part.slots.flatten().tolist(), part.positions.flatten().tolist()))
    assert [found[slot] for slot in whole.slots.flatten().tolist()] == whole.positions.flatten().tolist()
    for documents, positions in zip(whole.documents.tolist(), whole.positions.tolist()):
        for at in range(SEQUENCE):
            starts = at == 0 or documents[at] != documents[at - 1]
            assert positions[at] == (0 if starts else positions[at - 1] + 1)


def partial_sums_forgotten(parallel: Parallelized, mesh: Mesh) -> None:
    for name, placement in parallel.placements.items():
        if name.endswith("norm.weight"):
            parallel.placements[name] = Placement(counted=placement.counted)


def test_norms_on_a_part_of_the_tokens_need_their_gradients_summed(single: Record):
    assert distance(_run(ParallelLayout(tp=2), partial_sums_forgotten)[0], single) > SEEN
