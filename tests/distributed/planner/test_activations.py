"""What the planner says that a rank keeps for its backward is what it holds, within 10 %, under every axis and schedule."""

import dataclasses
import functools

import pytest

from distributed import ParallelLayout
from distributed.models.transformer import TransformerSizes
from distributed.parallelize import ParallelStyle
from distributed.planner.activations import kept_bytes
from distributed.planner.memory import Precision, stage_memory
from tests.distributed.parity import Case
from tests.distributed.planner.kept import SEQUENCE, kept
from tests.distributed.planner.running import SAMPLES, described, layout_of
from tests.distributed.pool import pool

SIZES = TransformerSizes(vocabulary=96, layers=8, width=64, heads=4, kv_heads=2, feed_forward=256, dropout=0.1)
SPARSE = dataclasses.replace(SIZES, experts=4)


def _case(axes: str, sizes: TransformerSizes = SIZES, schedule: str = "1f1b", virtual: int = 1, **style) -> Case:
    return Case(ParallelLayout.parse(axes), ParallelStyle(**style), sizes, schedule=schedule, virtual=virtual)


TWO = [
    _case("dp_shard=2", zero=1), _case("dp_shard=2", zero=3, recompute="full"), _case("dp_shard=2", zero=1, recompute="selective"),
    _case("tp=2"), _case("tp=2", sequence_parallel=False), _case("tp=2", recompute="full"), _case("tp=2", recompute="selective"),
    _case("cp=2"), _case("cp=2", zigzag=False), _case("cp=2", ulysses=2), _case("cp=2", recompute="selective"),
    _case("dp_shard=2", dataclasses.replace(SIZES, dropout=0.0), zero=1), _case("dp_shard=2", SPARSE, ep=2),
    _case("dp_shard=2", SPARSE, ep=2, recompute="selective"), _case("pp=2", schedule="gpipe"), _case("pp=2"),
    _case("pp=2", schedule="interleaved", virtual=2), _case("pp=2", schedule="zb-h1"), _case("pp=2", schedule="zb-h2"),
    _case("pp=2", schedule="zb-v"), _case("pp=2", schedule="dualpipe-v"),
]  # fmt: skip
FOUR = [
    _case("cp=4", ulysses=2), _case("tp=4"), _case("cp=2,tp=2"), _case("dp_shard=2,tp=2", SPARSE, ep=2), _case("pp=4"),
    _case("pp=4", schedule="zb-h1"), _case("pp=2,tp=2"), _case("pp=2,cp=2", schedule="zb-v"), _case("pp=2,dp_shard=2", SPARSE, ep=2),
]  # fmt: skip


@functools.cache
def _found(world: int) -> dict[str, tuple[int, ...]]:
    cases = TWO if world == 2 else FOUR
    everyone = pool().run(kept, ([(case, layout_of(case)) for case in cases],), world, deadline_s=600.0)
    return {case.name: tuple(rank[i] for rank in everyone) for i, case in enumerate(cases)}


@pytest.mark.parametrize(
    "case", [*TWO, *(pytest.param(c, marks=pytest.mark.slow) for c in FOUR)], ids=lambda case: case.name
)
def test_a_rank_holds_the_activations_that_are_predicted(case: Case):
    layout = layout_of(case)
    micro_batches = SAMPLES // layout.dp // layout.micro_batch
    for rank, found in enumerate(_found(layout.world_size)[case.name]):
        stage = case.layout.coordinate(rank)["pp"]
        predicted = kept_bytes(
            described(case.sizes, SEQUENCE), layout, SIZES.layers // layout.pp, stage, micro_batches, 4
        )
        assert predicted == pytest.approx(found, rel=0.1), f"rank {rank}"


def test_recompute_adds_the_one_layer_that_is_run_again():
    model, plain, full = (
        described(SIZES, SEQUENCE),
        layout_of(_case("tp=2")),
        layout_of(_case("tp=2", recompute="full")),
    )
    width = Precision.of("fp32")
    peaks = [
        stage_memory(model, layout, layers, 0, 2, width).activations for layout in (plain, full) for layers in (1, 2)
    ]
    a_layer, an_input = peaks[1] - peaks[0], peaks[3] - peaks[2]
    assert an_input < a_layer / 10
    assert peaks[2] == pytest.approx(peaks[0])
