"""Under every layout training is that of one process: losses, norms, every gradient, every parameter, to 1e-9 in float64."""

import dataclasses
import functools

import numpy as np
import pytest

from distributed import ParallelLayout, RankFailed
from distributed.models.transformer import TransformerSizes
from distributed.parallelize import ParallelStyle
from tests.distributed.parity import CLIP, SIZES, Case, Record, distance, merged, reference, train_under
from tests.distributed.pool import pool

UNTIED = dataclasses.replace(SIZES, tied=False, kv_heads=4, causal=False)


SPARSE = dataclasses.replace(SIZES, experts=4)
ROUTED = dataclasses.replace(SPARSE, score="sigmoid", balance=0.02, z=0.01, bias_step=0.05, shared_experts=1)
TIGHT = dataclasses.replace(SPARSE, capacity_factor=0.8)
FUSED = dataclasses.replace(SIZES, fused_qkv=True)
FOUR_LAYERS = dataclasses.replace(SIZES, layers=4)


def _case(axes: str, sizes: TransformerSizes = SIZES, **style) -> Case:
    return Case(ParallelLayout.parse(axes), ParallelStyle(**style), sizes)


def _piped(axes: str, schedule: str, sizes: TransformerSizes = SIZES, virtual: int = 1, **style) -> Case:
    return dataclasses.replace(_case(axes, sizes, **style), schedule=schedule, virtual=virtual, micro_batches=4)


SINGLES = [
    _case("dp_replicate=2"),
    _case("dp_shard=2", zero=1),
    _case("dp_shard=2", zero=2),
    _case("dp_shard=2", zero=3),
    _case("tp=2", sequence_parallel=False),
    _case("tp=2"),
    _case("tp=2", UNTIED),
    _case("tp=2", FUSED),
    _case("tp=2", SPARSE, ep=2, ep_over_tp=True),
    _case("tp=4"),
    _case("cp=2"),
    _case("cp=2", zigzag=False),
    _case("cp=2", ulysses=2),
    _case("cp=2", UNTIED),
    _case("cp=4", ulysses=2),
    _case("tp=2", recompute="full"),
    _case("cp=2", recompute="selective"),
    _case("dp_shard=2", zero=3, recompute="full"),
    _piped("pp=2", "gpipe"),
    _piped("pp=2", "1f1b", recompute="full"),
    _piped("pp=2", "interleaved", FOUR_LAYERS, virtual=2),
    _piped("pp=2", "zb-h1"),
    _piped("pp=2", "zb-h2", UNTIED),
    _piped("pp=2", "zb-v", FOUR_LAYERS),
    _piped("pp=2", "dualpipe-v", FOUR_LAYERS),
    _case("dp_shard=2", SPARSE, ep=2),
    _case("dp_shard=2", ROUTED, ep=2, zero=3, recompute="full"),
    _case("tp=2", ROUTED),
    dataclasses.replace(_case("dp_shard=2", TIGHT, ep=2), micro_batches=1),
    _case("cp=2", SPARSE, ep=2),
]
PAIRS = [
    _case("dp_replicate=2,dp_shard=2", zero=1),
    _case("dp_replicate=2,dp_shard=2", zero=3),
    _case("dp_replicate=2,cp=2"),
    _case("dp_replicate=2,tp=2"),
    _case("dp_shard=2,cp=2", zero=3, ulysses=2),
    _case("dp_shard=2,tp=2", zero=3),
    _case("dp_shard=2,tp=2", zero=2, sequence_parallel=False),
    _case("cp=2,tp=2"),
    _case("cp=2,tp=2", UNTIED, ulysses=2, zigzag=False),
    _piped("pp=2,dp_replicate=2", "1f1b"),
    _piped("pp=2,dp_shard=2", "zb-h1", zero=1),
    _piped("pp=2,dp_shard=2", "1f1b", zero=2),
    dataclasses.replace(_piped("pp=2,dp_replicate=2", "interleaved", FOUR_LAYERS, virtual=2), links=True),
    _piped("pp=2,dp_shard=2", "1f1b", zero=3, recompute="full"),
    _piped("pp=2,dp_shard=2", "zb-h1", zero=3),
    _piped("pp=2,dp_shard=2", "zb-v", FOUR_LAYERS, zero=3, recompute="full"),
    _piped("pp=2,cp=2", "zb-h1"),
    _piped("pp=2,tp=2", "zb-h1"),
    _case("dp_replicate=2,dp_shard=2", SPARSE, ep=2),
    _case("dp_shard=2,cp=2", SPARSE, ep=4),
    _case("dp_shard=2,tp=2", SPARSE, ep=2, zero=3, recompute="full"),
    _case("dp_shard=2,tp=2", SPARSE, ep=2, sequence_parallel=False),
    _piped("pp=2,dp_shard=2", "zb-h1", ROUTED, ep=2, zero=1),
    _case("dp_shard=2,tp=2", SPARSE, ep=4, ep_over_tp=True, zero=3),
    _piped("pp=2,dp_shard=2", "1f1b", SPARSE, ep=2, zero=1),
]
FOUR_RANKS = [
    _case("dp_shard=4", zero=3),
    _case("tp=4", sequence_parallel=False),
    _case("cp=4", ulysses=4),
    _piped("pp=4", "1f1b", FOUR_LAYERS),
    dataclasses.replace(_piped("pp=4", "zb-h1", FOUR_LAYERS), links=True),
    _case("dp_shard=4", SPARSE, ep=4),
]
TRIPLES = [
    _case("dp_replicate=2,dp_shard=2,cp=2", zero=2),
    _case("dp_replicate=2,dp_shard=2,tp=2", zero=3),
    _case("dp_replicate=2,cp=2,tp=2", zero=1),
    _case("dp_shard=2,cp=2,tp=2", zero=3, recompute="full"),
    _case("dp_shard=2,cp=2,tp=2", UNTIED, zero=3, recompute="selective", sequence_parallel=False),
    _case("cp=2,tp=4", zero=1),
    _case("dp_replicate=2,cp=4", ulysses=2),
    _case("dp_replicate=8"),
    _piped("pp=2,dp_replicate=2,tp=2", "1f1b"),
    _piped("pp=2,dp_shard=2,cp=2", "zb-v", FOUR_LAYERS, zero=1),
    _piped("pp=2,dp_shard=2,tp=2", "zb-h1", zero=1),
    _piped("pp=2,dp_shard=2,tp=2", "interleaved", FOUR_LAYERS, virtual=2, zero=3),
    _piped("pp=2,dp_replicate=2,dp_shard=2", "zb-h1", UNTIED, zero=2),
    _piped("pp=2,dp_shard=2,cp=2", "zb-v", FOUR_LAYERS, zero=3),
    _piped("pp=2,dp_shard=2,tp=2", "1f1b", SPARSE, ep=2, zero=3),
    _piped("pp=2,cp=2,tp=2", "1f1b", UNTIED, recompute="full"),
    _piped("pp=2,dp_replicate=2,dp_shard=2", "1f1b", zero=1),
    _piped("pp=2,dp_replicate=2,dp_shard=2", "1f1b", SPARSE, ep=2),
    _piped("pp=2,dp_shard=2,tp=2", "1f1b", SPARSE, ep=2, zero=1),
    _case("dp_shard=2,cp=2,tp=2", SPARSE, ep=2, zero=2),
    _case("dp_shard=2,cp=2,tp=2", SPARSE, ep=4, ep_over_tp=True, zero=3),
    _case("dp_replicate=2,dp_shard=2,tp=2", SPARSE, ep=2, ep_over_tp=True, recompute="full"),
    _piped("pp=2,cp=2,tp=2", "zb-h1", dataclasses.replace(FUSED, experts=4), ep=4, ep_over_tp=True),
]


@functools.cache
def _one_process(sizes: TransformerSizes, steps: int) -> Record:
    return reference(sizes, steps)


def _holds(case: Case) -> None:
    records = pool().run(train_under, (case,), case.layout.world_size)
    assert distance(merged(records), _one_process(case.sizes, case.steps)) < 1e-9
    held = {(record.stage, record.digest) for record in records}
    assert len(held) == case.layout.pp, "ranks hold different parameters after clipped steps"
    assert len({tuple(record.norms + record.losses) for record in records}) == 1, "ranks saw different norms"


def test_the_reference_clips_and_has_a_gradient_for_every_parameter():
    record = _one_process(SIZES, 20)
    assert sum(norm > CLIP for norm in record.norms) > 10
    for gradients in record.gradients.values():
        assert all(np.abs(gradients[name]).max() > 1e-6 for name in record.parameters)


@pytest.mark.parametrize("case", SINGLES, ids=lambda case: case.name)
def test_an_axis_alone_trains_as_one_process(case: Case):
    _holds(case)


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.name)
def test_two_axes_train_as_one_process(case: Case):
    _holds(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUR_RANKS, ids=lambda case: case.name)
def test_four_ranks_of_one_axis_train_as_one_process(case: Case):
    _holds(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", TRIPLES, ids=lambda case: case.name)
def test_three_axes_train_as_one_process(case: Case):
    _holds(case)


def test_selective_recompute_under_a_split_backward_is_refused_with_a_sentence():
    with pytest.raises(
        RankFailed, match="recompute=selective does not go with zb-h1, whose backward comes in two parts"
    ):
        pool().run(train_under, (_piped("pp=2", "zb-h1", recompute="selective"),), 2)


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_number_of_micro_batches_changes_nothing(pieces: int):
    _holds(dataclasses.replace(_case("dp_shard=2", zero=2), micro_batches=pieces))
