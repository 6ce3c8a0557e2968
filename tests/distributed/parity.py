"""One process against any layout: losses, norms, every gradient and every parameter of the same training, in float64."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from distributed import ParallelLayout, Rank
from distributed.exchange import alone
from distributed.experts import balance_, take_load
from distributed.groups import Mesh
from distributed.models.transformer import Tokens, Transformer, TransformerSizes
from distributed.parallelize import Parallelized, ParallelStyle, parallelize
from distributed.pipelined import PipelinedTransformer
from distributed.placement import gather_whole
from distributed.sharded_data import ShardedData
from distributed.step import global_norm, gradients

SEQUENCE, SAMPLES = 16, 9
SIZES = TransformerSizes(vocabulary=32, layers=2, width=16, heads=4, kv_heads=2, feed_forward=16)
CLIP = 0.5
"""Below the norms of the first steps, so that clipping acts."""


@dataclass(frozen=True)
class Case:
    layout: ParallelLayout
    style: ParallelStyle = field(default_factory=ParallelStyle)
    sizes: TransformerSizes = SIZES
    steps: int = 20
    micro_batches: int = 2
    schedule: str = "1f1b"
    virtual: int = 1
    links: bool = False

    @property
    def name(self) -> str:
        changed = [
            f"{field.name}={getattr(part, field.name)}"
            for part, usual in ((self.style, ParallelStyle()), (self.sizes, SIZES))
            for field in dataclasses.fields(part)
            if getattr(part, field.name) != getattr(usual, field.name)
        ]
        return "-".join(
            [
                str(self.layout),
                *([self.schedule] if self.layout.pp > 1 else []),
                *(["links"] if self.links else []),
                *changed,
            ]
        )


@dataclass
class Record:
    """`gradients` by step and global name, before clipping; `digest` tells bitwise equal parameters."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    digest: str = ""
    stage: int = 0


def batch(step: int) -> Tokens:
    """Documents of uneven length packed into each sample; one sample without a single target."""
    rng = np.random.default_rng([3, step])
    documents = np.cumsum(rng.random((SAMPLES, SEQUENCE)) < 0.2, axis=1)
    documents[4] = np.arange(SEQUENCE)
    ids = rng.integers(0, SIZES.vocabulary, (SAMPLES, SEQUENCE))
    return Tokens.packed(torch.from_numpy(ids), torch.from_numpy(documents))


def build(sizes: TransformerSizes) -> Transformer:
    return Transformer(sizes, torch.Generator().manual_seed(1)).double()


def looked_at(step: int, steps: int) -> bool:
    return step in (0, 1, steps - 1)


def reference(sizes: TransformerSizes, steps: int) -> Record:
    """Plain torch: one process, one batch, no mesh."""
    model, record = build(sizes), Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        tokens = batch(step)
        loss = model(tokens, key=step) / tokens.weight
        optimizer.zero_grad()
        loss.backward()
        if looked_at(step, steps):
            record.gradients[step] = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
        record.losses.append(loss.item())
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        record.norms.append(norm)
        for parameter in model.parameters():
            # Not torch's clip_grad_norm_, which adds 1e-6 to the norm.
            parameter.grad.mul_(min(1.0, CLIP / norm))
        optimizer.step()
        balance_(model, take_load(model), alone())
    record.parameters = {name: p.detach().numpy() for name, p in model.named_parameters()}
    return record


Plant = Callable[[Parallelized, Mesh], None]


def train_under(rank: Rank, case: Case, plant: Plant | None = None) -> Record:
    """The same training on this rank of the layout. `plant` puts a fault in after the model was cut."""
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(build(case.sizes), mesh, case.style, SEQUENCE)
    if plant is not None:
        plant(parallel, mesh)
    data, gradients_of = in_place(parallel, mesh, case)
    optimizer = torch.optim.AdamW(data.parameters(), lr=0.01)
    record = Record()
    for step in range(case.steps):
        loss, _ = gradients_of(micro_batches(step, case, mesh), step)
        norm = global_norm(data, mesh)
        if looked_at(step, case.steps):
            record.gradients[step] = whole(parallel, data, True)
        record.losses.append(loss)
        record.norms.append(norm)
        for parameter in data.parameters():
            if parameter.grad is not None and norm > CLIP:
                parameter.grad.mul_(CLIP / norm)
        optimizer.step()
        data.after_step()
        balance_(parallel.model, take_load(parallel.model), *parallel.tokens_over)
    record.parameters = whole(parallel, data, False)
    record.digest = hashlib.sha256(b"".join(a.tobytes() for _, a in sorted(record.parameters.items()))).hexdigest()
    record.stage = mesh.coordinate["pp"]
    if rank.index != case.layout.rank_at({"pp": record.stage}):
        record.gradients, record.parameters = {}, {}
    return record


def in_place(parallel: Parallelized, mesh: Mesh, case: Case):
    """(the parameters' holder, micro-batches and key to loss and count)."""
    if case.layout.pp > 1:
        piped = PipelinedTransformer(parallel, mesh, case.style, case.schedule, case.virtual, links=case.links)
        return piped.data, piped.gradients
    data = sharded(parallel, mesh, case)
    return data, lambda batches, key: gradients(parallel, data, mesh, batches, key)


def sharded(parallel: Parallelized, mesh: Mesh, case: Case) -> ShardedData:
    units = {f"blocks.{number}": block for number, block in enumerate(parallel.model.blocks)}
    return ShardedData(parallel.model, units, mesh, parallel.placements, case.style.zero, compute=case.style.compute)


def merged(records: list[Record]) -> Record:
    """The whole model from the stages' first ranks; tied copies must be bitwise equal."""
    whole = Record(records[0].losses, records[0].norms)
    for record in records:
        pairs = [(whole.parameters, record.parameters)]
        pairs += [(whole.gradients.setdefault(step, {}), found) for step, found in record.gradients.items()]
        for into, found in pairs:
            for name, array in found.items():
                assert np.array_equal(into.setdefault(name, array), array), f"copies of {name} differ"
    return whole


def micro_batches(step: int, case: Case, mesh: Mesh) -> list[Tokens]:
    """This data rank's rows of the batch in micro-batches of uneven size."""
    layout, place = case.layout, mesh.coordinate
    ranks = layout.dp_replicate * layout.dp_shard
    rows = np.array_split(np.arange(SAMPLES), ranks)[place["dp_replicate"] * layout.dp_shard + place["dp_shard"]]
    pieces = min(case.micro_batches, SAMPLES // ranks)
    tokens, cuts = batch(step), [rows[0], *rows[1:pieces], rows[-1] + 1]
    return [tokens.rows(int(first), int(last)) for first, last in itertools.pairwise(cuts)]


def whole(parallel: Parallelized, data: ShardedData, gradient: bool) -> dict[str, np.ndarray]:
    held = data.whole_by_name(gradients=gradient)
    return {name: gather_whole(held[name], parallel.placements[name]).numpy() for name in sorted(held)}


def distance(one: Record, other: Record) -> float:
    """The largest difference of any loss, norm, gradient or parameter; infinite where names differ."""
    apart = [abs(a - b) for a, b in zip(one.losses + one.norms, other.losses + other.norms, strict=True)]
    pairs = [(one.parameters, other.parameters), *((one.gradients[s], other.gradients[s]) for s in other.gradients)]
    for mine, theirs in pairs:
        if mine.keys() != theirs.keys():
            return float("inf")
        apart.extend(float(np.abs(mine[name] - theirs[name]).max()) for name in mine)
    return max(apart) if np.isfinite(apart).all() else float("inf")
