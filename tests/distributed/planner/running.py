"""What a rank of the running platform sends and holds in one step, for the tests that hold the planner to it."""

import dataclasses

import torch

from distributed import Rank
from distributed.experts import ExpertLayer
from distributed.groups import Mesh
from distributed.ledger import Ledger
from distributed.models.transformer import Tokens, Transformer, TransformerSizes
from distributed.parallelize import Parallelized, parallelize
from distributed.pipelined import PipelinedTransformer
from distributed.planner.layout import Layout
from distributed.planner.memory import Precision
from distributed.planner.models import Experts, Model
from distributed.sharded_data import ShardedData
from distributed.step import global_norm, gradients
from tests.distributed.parity import Case, sharded

SEQUENCE, SAMPLES = 16, 8
FLOAT64 = Precision(parameter=8, gradient=8, optimizer=16, activation=8)


@dataclasses.dataclass
class Found:
    """Of one rank: bytes sent by kind; bytes of whole parameters (or shards under stage 3), gradients, moments; the most
    bytes that autograd kept at once."""

    sent: dict[str, float]
    parameters: int
    gradients: int
    moments: int


def described(sizes: TransformerSizes, sequence: int = SEQUENCE) -> Model:
    shared = sizes.shared_experts * sizes.feed_forward
    experts = None
    if sizes.experts:
        experts = Experts(
            sizes.experts, sizes.top_k, sizes.feed_forward, shared, capacity_factor=sizes.capacity_factor or 0.0
        )

    return Model(
        "running", sizes.layers, sizes.width, sizes.heads, sequence, sizes.vocabulary, kv_heads=sizes.kv_heads,
        ffn=sizes.feed_forward, gated=True, biases=True, norm_biases=False, tied=sizes.tied, causal=sizes.causal,
        dropout=sizes.dropout > 0, platform=True, experts=experts,
    )  # fmt: skip


def layout_of(case: Case) -> Layout:
    """The planner's layout of a case of the parity suite, two micro-batches a rank, or one sample each in a pipeline."""
    axes, style = case.layout, case.style
    dp = axes.dp_replicate * axes.dp_shard
    micro = 1 if axes.pp > 1 else max(1, SAMPLES // dp // 2)
    replicas = axes.dp_replicate if style.zero or style.ep > 1 else 1
    return Layout(
        tp=axes.tp, cp=axes.cp, pp=axes.pp, dp=dp, ep=style.ep, zero=style.zero, micro_batch=micro, recompute=style.recompute,
        schedule=case.schedule, virtual=case.virtual, sp=style.sequence_parallel, replicas=replicas, ulysses=style.ulysses,
        zigzag=style.zigzag, ep_over_tp=getattr(style, "ep_over_tp", False),
    )  # fmt: skip


def batches(mesh: Mesh, layout: Layout, sequence: int = SEQUENCE, vocabulary: int = 32) -> list[Tokens]:
    """This data rank's micro-batches of the same eight sequences."""
    place = mesh.coordinate
    mine = place["dp_replicate"] * mesh.layout.dp_shard + place["dp_shard"]
    ids = torch.randint(0, vocabulary, (SAMPLES, sequence), generator=torch.Generator().manual_seed(2))
    tokens, each = Tokens.packed(ids, torch.zeros_like(ids)), SAMPLES // layout.dp
    starts = range(mine * each, (mine + 1) * each, layout.micro_batch)
    return [tokens.rows(first, first + layout.micro_batch) for first in starts]


def evenly_routed(parallel: Parallelized) -> None:
    """Tokens go round the experts in turn: what a router has learnt is no matter of bytes."""
    for layer in (part for part in parallel.model.modules() if isinstance(part, ExpertLayer)):
        learnt = layer.router.forward

        def even(hidden_ND, *rest, learnt=learnt, settings=layer.router.settings):
            routing = learnt(hidden_ND, *rest)
            place_N1 = torch.arange(len(hidden_ND))[:, None] * settings.top_k
            experts_NK = (place_N1 + torch.arange(settings.top_k)) % settings.experts
            return dataclasses.replace(routing, experts_NK=experts_NK)

        layer.router.forward = even


def run(rank: Rank, case: Case, layout: Layout) -> Found:
    """One step of this rank."""
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(
        Transformer(case.sizes, torch.Generator().manual_seed(1)).double(), mesh, case.style, SEQUENCE
    )
    evenly_routed(parallel)
    piped = PipelinedTransformer(parallel, mesh, case.style, case.schedule, case.virtual) if layout.pp > 1 else None
    data = piped.data if piped else sharded(parallel, mesh, case)
    optimizer, mine = torch.optim.AdamW(data.parameters()), batches(mesh, layout)
    before: list[int] = []
    finish = data.finish
    data.finish = lambda: (before.append(data.bytes_held()["gradients"]), finish())  # type: ignore[method-assign]
    if not piped and layout.zero <= 1:
        # Between micro-batches, before the last one's reduction has begun.
        _without_last(data)
    with Ledger(mesh.handles()) as counted:
        _step(parallel, piped, data, mesh, mine)
    held = data.bytes_held()
    optimizer.step()
    with counted:
        data.after_step()
    sent: dict[str, float] = {}
    for line in counted.lines():
        sent[line.kind] = sent.get(line.kind, 0.0) + line.bytes_sent
    moments = [t for state in optimizer.state.values() for name, t in state.items() if name.startswith("exp_avg")]
    return Found(
        {kind: size for kind, size in sent.items() if size},
        held["shards"] + _experts_whole(data) if layout.zero == 3 else held["parameters"],
        before[0] if layout.zero <= 1 else held["gradients"],
        sum(t.numel() * t.element_size() for t in moments),
    )


def _without_last(data: ShardedData) -> None:
    begin = data.begin
    data.begin = lambda last, **more: begin(False, **more)  # type: ignore[method-assign]


def _experts_whole(data: ShardedData) -> int:
    return sum(unit.bytes_held()["parameters"] for unit in data._units if unit.zero == 0)


def _step(
    parallel: Parallelized, piped: PipelinedTransformer | None, data: ShardedData, mesh: Mesh, mine: list[Tokens]
) -> None:
    if piped:
        piped.gradients(mine, 0)
    else:
        gradients(parallel, data, mesh, mine, 0)
    global_norm(data, mesh)


def run_all(rank: Rank, cases: list[tuple[Case, Layout]]) -> list[Found]:
    """Every case in turn."""
    return [run(rank, case, layout) for case, layout in cases]
