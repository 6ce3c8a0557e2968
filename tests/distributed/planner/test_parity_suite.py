"""For every layout of the parity suite and every rank: bytes sent, parameters, gradients and moments, predicted exactly."""

import dataclasses
import functools

import pytest

from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout
from distributed.planner.ledger import ledger
from distributed.planner.machines import load_cluster
from distributed.planner.memory import held_states
from tests.distributed.parity import Case
from tests.distributed.planner.running import FLOAT64, SAMPLES, Found, described, layout_of, run_all
from tests.distributed.pool import pool
from tests.distributed.test_parity import FOUR_RANKS, PAIRS, SINGLES, TRIPLES

LATER = [*(case for case in SINGLES if case.layout.world_size > 2), *PAIRS, *FOUR_RANKS, *TRIPLES]
QUICK = [case for case in SINGLES if case.layout.world_size == 2]
KINDS = {"p2p": "send"}


@functools.cache
def _found(world: int) -> dict[str, tuple[Found, ...]]:
    """Every case of so many ranks in one job: what each rank found."""
    cases = [case for case in (*QUICK, *LATER) if case.layout.world_size == world]
    everyone = pool().run(run_all, ([(case, layout_of(case)) for case in cases],), world, deadline_s=600.0)
    return {case.name: tuple(rank[i] for rank in everyone) for i, case in enumerate(cases)}


def _estimator(case: Case, layout: Layout) -> Estimator:
    estimator = Estimator(described(case.sizes), load_cluster("cpu-gloo", layout.world_size), SAMPLES, FLOAT64)
    # The suite cuts into equal stages.
    layers, stages = case.sizes.layers, layout.pp * layout.chunks
    estimator.split_layers = lambda _: tuple(layers // stages * layout.chunks for _ in range(layout.pp))  # type: ignore[method-assign]
    return estimator


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(c, marks=pytest.mark.slow) for c in LATER)], ids=lambda case: case.name
)
def test_what_each_rank_sends_and_holds_is_predicted_exactly(case: Case):
    layout = layout_of(case)
    assert str(case.layout) == layout.mesh
    estimator = _estimator(case, layout)
    for rank, found in enumerate(_found(layout.world_size)[case.name]):
        stage = case.layout.coordinate(rank)["pp"]
        sent: dict[str, float] = {}
        for line in ledger(estimator, layout, stage):
            kind = KINDS.get(line.collective, line.collective)
            sent[kind] = sent.get(kind, 0.0) + line.bytes_sent
        assert found.sent == pytest.approx(sent, rel=1e-12), f"rank {rank}"
        states = held_states(described(case.sizes), layout, estimator.split_layers(layout)[stage], stage, FLOAT64)
        assert dataclasses.astuple(found)[1:] == states, f"rank {rank}"
