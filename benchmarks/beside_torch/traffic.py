"""Bytes that one whole step sends, counted by the byte ledger, beside the planner's formulas; axis by axis."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from benchmarks.beside_torch.workload import Workload
from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.ledger import Ledger
from distributed.mesh import AXES
from distributed.parallelize import ParallelStyle, parallelize
from distributed.pipelined import PipelinedTransformer
from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout, parse_layout
from distributed.planner.ledger import ledger
from distributed.planner.machines import load_cluster
from distributed.planner.memory import Precision
from distributed.planner.models import Model
from distributed.sharded_data import ShardedData
from distributed.step import global_norm, step

LAYOUTS = {
    2: ("dp=2,zero=0", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "tp=2,sp=0,zero=0", "tp=2,zero=0", "cp=2,zero=0",
        "pp=2,schedule=1f1b,zero=0", "pp=2,schedule=zb-v,zero=0"),
    4: ("tp=2,dp=2,zero=0", "dp=4,zero=3", "tp=4,zero=0", "cp=4,zero=0", "pp=2,tp=2,zero=0"),
}  # fmt: skip
SAMPLES = 8


@dataclass(frozen=True)
class Sent:
    """Bytes by axis, counted on rank 0 and by formula."""

    layout: str
    counted: Mapping[str, float]
    formula: Mapping[str, float]


def sent(rank: Rank, work: Workload) -> list[Sent]:
    """Every layout of this many ranks, a micro-batch a sample, float32."""
    return [_sent(rank, dataclasses.replace(work, samples=SAMPLES), text) for text in LAYOUTS[rank.world_size]]


def _sent(rank: Rank, work: Workload, text: str) -> Sent:
    layout = dataclasses.replace(parse_layout(text), micro_batch=1)
    counted = _counted(rank, work, layout)
    sizes = work.sizes
    model = Model("benchmark", sizes.layers, sizes.width, sizes.heads, work.length, sizes.vocabulary,
                  kv_heads=sizes.kv_heads, ffn=sizes.feed_forward, gated=True, biases=True, norm_biases=False,
                  tied=False)  # fmt: skip
    estimator = Estimator(model, load_cluster("cpu-gloo", layout.world_size), SAMPLES, Precision(4, 4, 8, 4))
    formula: dict[str, float] = {}
    for line in ledger(estimator, layout):
        # A mesh of one axis has one group, which carries what goes to the world or sums gradients too.
        axis = next(iter(counted)) if len(counted) == 1 else line.axis
        formula[axis] = formula.get(axis, 0.0) + line.bytes_sent
    return Sent(text, counted, formula)


def _counted(rank: Rank, work: Workload, layout: Layout) -> dict[str, float]:
    mesh = Mesh(ParallelLayout.parse(layout.mesh), rank)
    style = ParallelStyle(sequence_parallel=layout.sequence_parallel, zero=layout.zero)
    parallel = parallelize(work.model(), mesh, style, work.length)
    ranks = mesh.layout.dp_replicate * mesh.layout.dp_shard
    each = SAMPLES // ranks
    first = (mesh.coordinate["dp_replicate"] * mesh.layout.dp_shard + mesh.coordinate["dp_shard"]) * each
    batches = [work.tokens().rows(number, number + 1) for number in range(first, first + each)]
    if layout.pp > 1:
        piped = PipelinedTransformer(parallel, mesh, style, layout.schedule, layout.virtual)
        with Ledger(mesh.handles()) as counted:
            piped.gradients(batches, 0)
            global_norm(piped.data, mesh)
            piped.data.after_step()
    else:
        units = {f"blocks.{number}": block for number, block in enumerate(parallel.model.blocks)}
        data = ShardedData(parallel.model, units, mesh, parallel.placements, style.zero)
        optimizer = torch.optim.AdamW(data.parameters())
        with Ledger(mesh.handles()) as counted:
            step(parallel, data, optimizer, mesh, batches, key=0)
    return _by_axis(counted)


def _by_axis(counted: Ledger) -> dict[str, float]:
    sent: dict[str, float] = {}
    for axis, size in counted.by_axis().items():
        known = "world" if axis == "x".join(AXES) else "dp" if axis.startswith("dp_") else axis
        sent[known] = sent.get(known, 0.0) + size
    return sent
