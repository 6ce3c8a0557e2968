"""The planner against this machine: it is calibrated, then layouts are predicted and run by the platform's own code."""

import dataclasses
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.claims import Claim
from contracts.progress import say
from distributed import ParallelLayout, Rank, RankFailed
from distributed.groups import Mesh
from distributed.launch import launch
from distributed.models.transformer import Tokens, Transformer, TransformerSizes
from distributed.parallelize import ParallelStyle, parallelize
from distributed.pipelined import PipelinedTransformer
from distributed.planner.calibrate import calibrate, machine_name
from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout, parse_layout
from distributed.planner.machines import Cluster, cluster_from
from distributed.planner.models import Experts, Model
from distributed.sharded_data import ShardedData
from distributed.step import global_norm, step

SEQUENCE, SAMPLES, WARM, MOST_OPERATIONS = 256, 8, 1, 20_000
SIZES = TransformerSizes(vocabulary=512, layers=4, width=256, heads=4, kv_heads=4, feed_forward=1024, dropout=0.0)
SPARSE = dataclasses.replace(SIZES, experts=4, layers=2, feed_forward=512)
LAYOUTS = {
    2: ["dp=2,zero=0,micro=4", "dp=2,zero=1,micro=4", "dp=2,zero=2,micro=2", "dp=2,zero=3,micro=2", "dp=2,zero=0,micro=4,recompute=full",
        "tp=2,micro=4", "tp=2,sp=0,micro=4", "cp=2,zero=0,micro=4", "cp=2,ulysses=2,zero=0,micro=4", "pp=2,micro=1",
        "pp=2,micro=2,schedule=gpipe", "pp=2,micro=1,schedule=interleaved,v=2", "pp=2,micro=1,schedule=zb-h1",
        "pp=2,micro=1,schedule=zb-v"],
    4: ["dp=4,zero=0,micro=2", "dp=4,zero=3,micro=1", "tp=4,micro=4", "cp=4,zero=0,micro=4", "tp=2,dp=2,zero=0,micro=2",
        "cp=2,dp=2,zero=0,micro=2", "pp=2,dp=2,zero=0,micro=1", "pp=2,tp=2,micro=2", "pp=4,micro=1"],
}  # fmt: skip
WITH_EXPERTS = {2: ["dp=2,zero=0,micro=2", "dp=2,ep=2,zero=0,micro=2"]}
QUICK = {2: ["dp=2,zero=0,micro=4", "tp=2,micro=4", "pp=2,micro=1"]}


@dataclass(frozen=True)
class Measured:
    """One layout's step on this machine: predicted and measured seconds."""

    ranks: int
    layout: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1


def described(sizes: TransformerSizes) -> Model:
    """The stack as the planner knows it."""
    experts = Experts(sizes.experts, sizes.top_k, sizes.feed_forward) if sizes.experts else None
    return Model("running", sizes.layers, sizes.width, sizes.heads, SEQUENCE, sizes.vocabulary, kv_heads=sizes.kv_heads,
                 ffn=sizes.feed_forward, gated=True, biases=True, norm_biases=False, tied=sizes.tied, platform=True,
                 experts=experts)  # fmt: skip


def measured_claims(quick: bool) -> tuple[list[Claim], list[Measured], list[str]]:
    """(claims, every layout's two figures, what could not be measured)."""
    begun = time.perf_counter()
    try:
        found = calibrate(
            machine_name(),
            2 if quick else 4,
            report=lambda line: say(f"  calibrating: {line}"),
            rounds=3 if quick else 7,
        )
    except (PlanError, RankFailed) as error:
        return [], [], [f"planner against this machine's measured step times: {error}"]
    claims = [Claim("planner: calibration of this machine", time.perf_counter() - begun, "s", goal="below 120",
                    met=time.perf_counter() - begun < 120)]  # fmt: skip
    rows: list[Measured] = []
    for sizes, every in ((SIZES, QUICK if quick else LAYOUTS), (SPARSE, {} if quick else WITH_EXPERTS)):
        for ranks, texts in every.items():
            cluster = cluster_from(found, ranks, machine_name())
            plans = [predicted(parse_layout(text), sizes, cluster) for text in texts]
            jobs = [(parse_layout(text), cut) for text, (_, cut) in zip(texts, plans)]
            say(f"  running {len(texts)} layouts of {'the sparse' if sizes.experts else 'one'} model on {ranks} ranks")
            seconds = launch(steps, (sizes, jobs, 1 if quick else 3), ranks)[0]
            tried = [Measured(ranks, text, plan[0], s) for text, plan, s in zip(texts, plans, seconds)]
            for row in sorted(tried, key=lambda row: row.measured):
                print(
                    f"{ranks} ranks {row.layout}: predicted {row.predicted:.4f}, measured {row.measured:.4f} s ({row.error:+.1%})"
                )
            rows += tried
            if not sizes.experts and not quick:
                claims.append(_place(tried, ranks))
    errors = [abs(row.error) for row in rows]
    claims += [
        Claim(
            f"planner: step time of {len(rows)} layouts on this machine, mean error", 100 * statistics.mean(errors), "%"
        ),
        Claim(f"planner: step time of {len(rows)} layouts on this machine, largest error", 100 * max(errors), "%"),
    ]
    return claims, rows, []


def _place(tried: list[Measured], ranks: int) -> Claim:
    fastest = min(tried, key=lambda row: row.measured)
    place = 1 + sorted(tried, key=lambda row: row.predicted).index(fastest)
    name = (
        f"planner: predicted place of the fastest measured of {len(tried)} layouts on {ranks} ranks ({fastest.layout})"
    )
    return Claim(name, place, "", goal="among the first two", met=place <= 2)


Cut = tuple[list[float], tuple[float, float]]
"""Layer costs, and those of the ends, by which a pipeline is cut."""


def predicted(layout: Layout, sizes: TransformerSizes, cluster: Cluster) -> tuple[float, Cut]:
    """(seconds of a step, the cut of the pipeline that they stand for)."""
    estimator = Estimator(described(sizes), cluster, SAMPLES)
    estimate, _ = estimator.simulated(estimator.estimate(layout), MOST_OPERATIONS)
    _, _, entry, head = estimator.pieces(layout)
    if layout.chunks > 1:
        return estimate.step_s, ([1.0] * sizes.layers, (0.0, 0.0))
    return estimate.step_s, ([estimator.mean_layer(layout).total] * sizes.layers, (entry.total, head.total))


def steps(rank: Rank, sizes: TransformerSizes, jobs: list[tuple[Layout, Cut]], rounds: int) -> list[float]:
    """Median seconds of a step of each layout: in every round all layouts in turn, a warm step and two timed ones each."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds):
        for found, (layout, cut) in zip(seconds, jobs):
            found += _visit(rank, sizes, layout, cut)
    return [statistics.median(found) for found in seconds]


def _visit(rank: Rank, sizes: TransformerSizes, layout: Layout, cut: Cut) -> list[float]:
    mesh = Mesh(ParallelLayout.parse(layout.mesh), rank)
    style = ParallelStyle(
        layout.sequence_parallel, layout.zigzag, layout.ulysses, layout.zero, layout.recompute, layout.ep
    )
    parallel = parallelize(Transformer(sizes, torch.Generator().manual_seed(1)), mesh, style, SEQUENCE)
    ranks, mine = layout.dp, mesh.coordinate["dp_replicate"] + mesh.coordinate["dp_shard"]
    ids = torch.randint(0, sizes.vocabulary, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(2))
    tokens, first = Tokens.packed(ids, torch.zeros_like(ids)), mine * SAMPLES // ranks
    batches = [
        tokens.rows(i, i + layout.micro_batch) for i in range(first, first + SAMPLES // ranks, layout.micro_batch)
    ]
    if layout.pp > 1:
        piped = PipelinedTransformer(parallel, mesh, style, layout.schedule, layout.virtual, *cut)
        data = piped.data
    else:
        data = ShardedData(parallel.model, {f"blocks.{i}": b for i, b in enumerate(parallel.model.blocks)}, mesh,
                           parallel.placements, style.zero)  # fmt: skip
    optimizer, found = torch.optim.AdamW(data.parameters()), []
    for number in range(WARM + 2):
        mesh.world.all_reduce_(torch.zeros(1))
        begun = time.perf_counter()
        if layout.pp > 1:
            piped.gradients(batches, number)
            norm = global_norm(data, mesh)
            for parameter in data.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(min(1.0, 1.0 / norm))
            optimizer.step()
            data.after_step()
        else:
            step(parallel, data, optimizer, mesh, batches, number)
        taken = mesh.world.all_reduce_(torch.tensor(time.perf_counter() - begun, dtype=torch.float64), "max").item()
        found += [taken] if number >= WARM else []
    for handle in mesh.handles().values():
        if handle is not dist.group.WORLD:
            dist.destroy_process_group(handle)
    return found
