"""What the ledger predicts equals what running ranks count: bytes by kind of one whole step, states held, over gloo."""

import dataclasses

import pytest
import torch

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.ledger import Ledger
from distributed.models.transformer import Tokens, Transformer, TransformerSizes
from distributed.parallelize import Parallelized, ParallelStyle, parallelize
from distributed.pipelined import PipelinedTransformer
from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout, parse_layout
from distributed.planner.ledger import ledger
from distributed.planner.machines import load_cluster
from distributed.planner.memory import Precision, stage_parameters, zero_states
from distributed.planner.models import Model
from distributed.sharded_data import ShardedData
from distributed.step import global_norm, gradients, step
from tests.distributed.pool import pool

SIZES = TransformerSizes(vocabulary=32, layers=3, width=16, heads=4, kv_heads=2, feed_forward=16)
SEQUENCE, SAMPLES = 16, 8
MODEL = Model(
    "running",
    3,
    16,
    4,
    SEQUENCE,
    32,
    kv_heads=2,
    ffn=16,
    gated=True,
    biases=True,
    norm_biases=False,
    tied=True,
    platform=True,
)
FLOAT64 = Precision(parameter=8, gradient=8, optimizer=16, activation=8)


def prepared(rank: Rank, axes: str, style: ParallelStyle, micro: int, layers: int = 3):
    """(mesh, the model in place, this rank's micro-batches of the same eight sequences)."""
    mesh = Mesh(ParallelLayout.parse(axes), rank)
    sizes = dataclasses.replace(SIZES, layers=layers)
    parallel = parallelize(Transformer(sizes, torch.Generator().manual_seed(1)).double(), mesh, style, SEQUENCE)
    ranks = mesh.layout.dp_replicate * mesh.layout.dp_shard
    mine = mesh.coordinate["dp_replicate"] * mesh.layout.dp_shard + mesh.coordinate["dp_shard"]
    ids = torch.randint(0, 32, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(2))
    tokens = Tokens.packed(ids, torch.zeros_like(ids))
    first = mine * SAMPLES // ranks
    return mesh, parallel, [tokens.rows(i, i + micro) for i in range(first, first + SAMPLES // ranks, micro)]


def states(parallel: Parallelized, mesh: Mesh, zero: int) -> ShardedData:
    units = {f"blocks.{number}": block for number, block in enumerate(parallel.model.blocks)}
    return ShardedData(parallel.model, units, mesh, parallel.placements, zero)


def bytes_of_a_step(rank: Rank, axes: str, style: ParallelStyle, micro: int) -> dict[str, float]:
    mesh, parallel, batches = prepared(rank, axes, style, micro)
    data = states(parallel, mesh, style.zero)
    optimizer = torch.optim.AdamW(data.parameters())
    with Ledger(mesh.handles()) as counted:
        step(parallel, data, optimizer, mesh, batches, key=0)
    return by_kind(counted)


def by_kind(counted: Ledger) -> dict[str, float]:
    sent: dict[str, float] = {}
    for line in counted.lines():
        sent[line.kind] = sent.get(line.kind, 0.0) + line.bytes_sent
    return {kind: size for kind, size in sent.items() if size}


def predicted_by_kind(estimator: Estimator, layout: Layout) -> dict[str, float]:
    sent: dict[str, float] = {}
    for line in ledger(estimator, layout):
        kind = "send" if line.collective == "p2p" else line.collective
        sent[kind] = sent.get(kind, 0.0) + line.bytes_sent
    return sent


def held_after_backward(rank: Rank, axes: str, style: ParallelStyle, micro: int) -> tuple[dict[str, int], int]:
    """(bytes held before the optimizer's step, bytes of its moments after it)."""
    mesh, parallel, batches = prepared(rank, axes, style, micro)
    data = states(parallel, mesh, style.zero)
    optimizer = torch.optim.AdamW(data.parameters())
    gradients(parallel, data, mesh, batches, 0)
    held = data.bytes_held()
    optimizer.step()
    data.after_step()
    moments = [t for state in optimizer.state.values() for name, t in state.items() if name.startswith("exp_avg")]
    return held, sum(t.numel() * t.element_size() for t in moments)


CASES = ["tp=2,sp=0,micro=4", "tp=2,micro=8", "cp=2,zero=0,micro=4", "dp=2,zero=0,micro=4", "dp=2,zero=1,micro=2",
         "dp=2,zero=2,micro=2", "dp=2,zero=3,micro=2", "tp=2,recompute=full,micro=8", "tp=2,sp=0,recompute=full,micro=4",
         "dp=2,zero=3,recompute=full,micro=4", "cp=2,zero=0,recompute=full,micro=8",
         "cp=2,zero=0,recompute=selective,micro=4"]  # fmt: skip
CASES_OF_FOUR = ["cp=4,zero=0,micro=8", "tp=2,dp=2,zero=0,micro=2", "tp=2,dp=2,zero=2,micro=2", "tp=2,cp=2,zero=0,micro=4",
                 "dp=2,cp=2,zero=3,micro=4", "dp=4,zero=3,micro=2"]  # fmt: skip
PIPED = ["pp=2,schedule=gpipe", "pp=2,schedule=1f1b", "pp=2,schedule=interleaved,v=2", "pp=2,schedule=zb-h1", "pp=2,schedule=zb-h2",
         "pp=2,schedule=zb-v", "pp=2,schedule=dualpipe-v"]  # fmt: skip
PIPED_OF_FOUR = ["pp=2,dp=2,zero=1", "pp=2,tp=2", "pp=2,tp=2,sp=0", "pp=2,cp=2,zero=0", "pp=4"]


def also_slow(quick: list[str], slow: list[str]) -> list:
    """Four ranks take long to start where cores are few."""
    return [*quick, *(pytest.param(text, marks=pytest.mark.slow) for text in slow)]


@pytest.mark.parametrize("text", also_slow(CASES, CASES_OF_FOUR))
def test_a_whole_steps_bytes_are_predicted_exactly(text):
    layout = parse_layout(text)
    style = ParallelStyle(sequence_parallel=layout.sequence_parallel, zero=layout.zero, recompute=layout.recompute)
    counted = pool().run(bytes_of_a_step, (layout.mesh, style, layout.micro_batch), layout.world_size)
    estimator = Estimator(MODEL, load_cluster("cpu-gloo", layout.world_size), SAMPLES, FLOAT64)
    predicted = predicted_by_kind(estimator, layout)
    for sent in counted:
        assert sent == pytest.approx(predicted, rel=1e-12)


def bytes_of_a_piped_step(
    rank: Rank, layout: Layout, style: ParallelStyle, cut: tuple[list[float], tuple[float, float]]
) -> dict[str, float]:
    mesh, parallel, batches = prepared(rank, layout.mesh, style, layout.micro_batch, 4)
    piped = PipelinedTransformer(parallel, mesh, style, layout.schedule, layout.virtual, *cut)
    with Ledger(mesh.handles()) as counted:
        piped.gradients(batches, 0)
        global_norm(piped.data, mesh)
        piped.data.after_step()
    return by_kind(counted)


@pytest.mark.parametrize("text", also_slow(PIPED, PIPED_OF_FOUR))
def test_a_piped_steps_bytes_are_predicted_exactly_for_the_first_stage(text):
    layout = dataclasses.replace(parse_layout(text), micro_batch=1)
    style = ParallelStyle(sequence_parallel=layout.sequence_parallel, zero=layout.zero)
    model = dataclasses.replace(MODEL, layers=4)
    estimator = Estimator(model, load_cluster("cpu-gloo", layout.world_size), SAMPLES, FLOAT64)
    _, _, entry, head = estimator.pieces(layout)
    cut = [estimator.mean_layer(layout).total] * 4, (entry.total, head.total)
    if layout.chunks > 1:
        cut = [1.0] * 4, (0.0, 0.0)
    counted = pool().run(bytes_of_a_piped_step, (layout, style, cut), layout.world_size)[0]
    assert counted == pytest.approx(predicted_by_kind(estimator, layout), rel=1e-12)


@pytest.mark.parametrize("text", ["dp=2,zero=0,micro=4", "dp=2,zero=2,micro=4", "dp=2,zero=3,micro=4", "tp=2,sp=0,micro=8"])  # fmt: skip
def test_parameters_gradients_and_moments_held_are_predicted_exactly(text):
    layout = parse_layout(text)
    style = ParallelStyle(sequence_parallel=layout.sequence_parallel, zero=layout.zero)
    held, moments = pool().run(held_after_backward, (layout.mesh, style, layout.micro_batch), layout.world_size)[0]
    dense, _ = stage_parameters(MODEL, layout, 3, True, True)
    # Under stage 3 the rank's shards are its parameters.
    found = held["shards" if layout.zero == 3 else "parameters"], held["gradients"], moments
    assert found == zero_states(dense, 0, layout, FLOAT64)
