"""What each axis sends, counted by the byte ledger and equal to its formula; what ZeRO holds; no needless syncs."""

import dataclasses

import pytest

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.ledger import Ledger
from distributed.parallelize import ParallelStyle, parallelize
from distributed.sharded_data import ShardedData
from distributed.step import gradients
from tests.distributed.parity import SAMPLES, SEQUENCE, SIZES, Case, build, micro_batches
from tests.distributed.pool import pool

NUMBER = 8
"""Bytes of a float64."""
HIDDEN = SAMPLES * SEQUENCE * SIZES.width * NUMBER


def one_step(rank: Rank, case: Case, bucket_bytes: int = 0) -> tuple[dict[tuple[str, str], tuple[int, int]], dict[str, int], list[int]]:
    """(calls and tensor bytes by axis and kind, bytes held after the step, parameter bytes held inside each block); by
    itself each block is a bucket."""
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(build(case.sizes), mesh, case.style, SEQUENCE)
    units = {f"blocks.{number}": block for number, block in enumerate(parallel.model.blocks)}
    data = ShardedData(parallel.model, units, mesh, parallel.placements, case.style.zero,
                       bucket_bytes=bucket_bytes)  # fmt: skip
    inside: list[int] = []
    for block in parallel.model.blocks:
        block.attention.register_forward_hook(lambda *_: inside.append(data.bytes_held()["parameters"]))
    batches = micro_batches(0, case, mesh)
    with Ledger(mesh.handles()) as ledger:
        gradients(parallel, data, mesh, batches, key=0)
        held = data.bytes_held()
        data.after_step()
    return {(line.axis, line.kind): (line.calls, line.tensor_bytes) for line in ledger.lines()}, held, inside


def _counted(axes: str, layers: int = 2, pieces: int = 1, **style) -> dict[str, tuple[int, int]]:
    case = Case(
        ParallelLayout.parse(axes),
        ParallelStyle(**style),
        dataclasses.replace(SIZES, layers=layers),
        micro_batches=pieces,
    )
    axis = axes.partition("=")[0]
    lines = pool().run(one_step, (case,), case.layout.world_size)[0][0]
    return {kind: counts for (name, kind), counts in lines.items() if name == axis}


def _per_layer(axes: str, **style) -> dict[str, tuple[int, int]]:
    two, three = _counted(axes, 2, **style), _counted(axes, 3, **style)
    return {kind: (three[kind][0] - two[kind][0], three[kind][1] - two[kind][1]) for kind in three}


def test_a_layer_under_tp_has_two_collectives_forward_and_two_backward_of_the_hidden_states_bytes():
    assert _per_layer("tp=2", sequence_parallel=False) == {"all_reduce": (4, 4 * HIDDEN)}


def test_sequence_parallelism_sends_the_same_bytes_in_twice_the_halves():
    # The norms' gradients and the bias of the two row-split linears are summed over tp, a bucket a layer.
    counted = _per_layer("tp=2")
    assert counted["all_gather"] == counted["reduce_scatter"] == (4, 4 * HIDDEN)
    assert counted["all_reduce"] == (1, 4 * SIZES.width * NUMBER)


def test_full_recompute_sends_the_forwards_collectives_once_more():
    counted = _per_layer("tp=2", recompute="full", sequence_parallel=False)
    assert counted["all_reduce"][0] in (5, 6), "the last sum of a layer need not run again"


def test_a_ring_layer_passes_keys_and_values_once_round_forward_and_twice_backward():
    chunk = 2 * SAMPLES * (SEQUENCE // 4) * SIZES.kv_heads * (SIZES.width // SIZES.heads) * NUMBER
    assert _per_layer("cp=4")["send"] == (3 + 3 + 4, 10 * chunk)


def test_a_ulysses_layer_swaps_queries_keys_values_and_outputs_each_way():
    channels = (2 * SIZES.heads + 2 * SIZES.kv_heads) * (SIZES.width // SIZES.heads)
    assert _per_layer("cp=2", ulysses=2)["all_to_all"] == (8, 2 * SAMPLES * (SEQUENCE // 2) * channels * NUMBER)


def _parameters(layers: int = 2) -> int:
    return sum(p.numel() for p in build(dataclasses.replace(SIZES, layers=layers)).parameters()) * NUMBER


@pytest.mark.parametrize("pieces", [1, 4])
def test_replicated_gradients_are_sent_once_a_step_whatever_the_micro_batches(pieces: int):
    # A bucket for each block and one for the ends; the count of tokens and the loss besides.
    assert _counted("dp_replicate=2", pieces=pieces) == {"all_reduce": (3 + 2, _parameters() + 2 * NUMBER)}


@pytest.mark.parametrize(("blocks", "buckets"), [(1, 5), (2, 3), (3, 2), (5, 1)])
def test_neighbouring_blocks_travel_together_until_they_are_worth_a_collective(blocks: int, buckets: int):
    case = Case(ParallelLayout(dp_replicate=2), ParallelStyle(), dataclasses.replace(SIZES, layers=5), micro_batches=1)
    enough = blocks * (_parameters(2) - _parameters(1))
    lines, held, _ = pool().run(one_step, (case, enough), 2)[0]
    assert lines["dp_replicate", "all_reduce"] == (buckets + 1 + 2, _parameters(5) + 2 * NUMBER)
    assert held["gradients"] == _parameters(5), "gradients lie in the buckets, not beside them"


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize(("zero", "per_step"), [(1, True), (2, False)])
def test_zero_1_and_2_scatter_gradients_and_gather_parameters(zero: int, per_step: bool, pieces: int):
    counted = _counted("dp_shard=2", zero=zero, pieces=pieces)
    times = 1 if per_step else pieces
    assert counted["reduce_scatter"] == (3 * times, times * _parameters())
    assert counted["all_gather"] == (3, _parameters())


def test_zero_3_gathers_each_block_twice_and_the_ends_once_a_micro_batch():
    counted = _counted("dp_shard=2", zero=3, pieces=2)
    assert counted["reduce_scatter"] == (6, 2 * _parameters())
    assert counted["all_gather"][0] == 2 * (2 * 2 + 1)


def test_each_zero_stage_holds_what_it_says():
    held = {}
    for zero in (0, 1, 2, 3):
        case = Case(ParallelLayout(dp_shard=2), ParallelStyle(zero=zero), micro_batches=1)
        held[zero] = pool().run(one_step, (case,), 2)[0][1]
    whole = _parameters()
    assert [held[zero]["parameters"] for zero in (0, 1, 2, 3)] == [whole, whole, whole, 0]
    assert [held[zero]["gradients"] for zero in (0, 1, 2, 3)] == [whole, whole // 2, whole // 2, whole // 2]
    assert [held[zero]["shards"] for zero in (0, 1, 2, 3)] == [0, whole // 2, whole // 2, whole // 2]


def test_zero_3_gathers_one_block_ahead_and_frees_the_one_before():
    case = Case(
        ParallelLayout(dp_shard=2), ParallelStyle(zero=3), dataclasses.replace(SIZES, layers=3), micro_batches=1
    )
    inside = pool().run(one_step, (case,), 2)[0][2]
    block = _parameters(4) - _parameters(3)
    ends = _parameters(3) - 3 * block
    assert inside == [ends + 2 * block, ends + 2 * block, ends + block]
