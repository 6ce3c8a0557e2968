"""What calibration times on each rank: products by size and type, the platform's own layers, collectives. No fitting here."""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from distributed.context_parallel import _Ring
from distributed.exchange import alone
from distributed.groups import Group, Mesh
from distributed.mesh import ParallelLayout
from distributed.models.transformer import Block, Tokens, Transformer, TransformerSizes
from distributed.pipeline.stage import StageWork
from distributed.rank import Rank
from distributed.sharded_data import ShardedData
from distributed.step import global_norm

LEAST_S = 0.004
"""A round repeats what it times until it has lasted so long."""

PRODUCTS = [(64, 256, 256), (128, 256, 256), (256, 256, 256), (256, 256, 1024), (512, 512, 512), (128, 512, 128), (1024, 256, 512),
            (64, 64, 64), (1024, 1024, 512), (256, 64, 256)]  # fmt: skip
LAYERS = [(128, 4, 256, 1, 64), (128, 2, 512, 2, 128), (256, 4, 512, 1, 128), (256, 4, 512, 1, 256), (256, 4, 1024, 2, 128),
          (256, 4, 1024, 2, 256), (256, 4, 512, 1, 512), (384, 6, 1024, 1, 256)]  # fmt: skip
"""(hidden, heads, feed-forward, samples, sequence)."""

SPARSE = [(128, 2, 256, 1, 128), (256, 4, 256, 1, 128), (256, 4, 512, 2, 128)]
EXPERTS, TOP_K = 4, 2
ENDS = [(256, 512, 1, 128), (256, 512, 2, 256), (256, 2048, 1, 256)]
"""(hidden, vocabulary, samples, sequence)."""

UPDATES = [100_000, 1_000_000, 4_000_000]
MESSAGES = [2**10, 2**16, 2**20, 2**22]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
Timed = dict[tuple[Any, ...], tuple[float, float]]
"""What was timed to (median seconds, its noise: the middle half's spread over the median)."""


@dataclass
class Timer:
    """Times calls on one rank, all ranks at work on the same thing at the same time.

    `clock` counts the rank's own processor time where only its own work is timed on a CPU: what other programs take
    from a busy machine is then left out.
    """

    rank: Rank
    rounds: int
    clock: Callable[[], float] = time.perf_counter
    found: Timed = field(default_factory=dict)

    def time(self, name: tuple[Any, ...], call: Callable[[], object]) -> None:
        """Adds the median over rounds of the mean second of `call`."""

        def whole() -> tuple[float, ...]:
            begun = self.clock()
            call()
            _synchronize(self.rank.device)
            return (self.clock() - begun,)

        self._add(name, whole, [name])

    def parts(self, name: tuple[Any, ...], call: Callable[[], tuple[float, ...]]) -> None:
        """As `time`, of a `call` that returns seconds of its parts; they are added under their numbers."""
        self._add(name, call, [(*name, number) for number in range(len(call()))])

    def _add(self, name: tuple[Any, ...], call: Callable[[], tuple[float, ...]], names: list[tuple[Any, ...]]) -> None:
        begun = time.perf_counter()
        call()
        wanted = torch.tensor(max(1.0, min(50.0, LEAST_S / max(time.perf_counter() - begun, 1e-7))))
        # All ranks repeat it as often, or those of a collective would wait for ever.
        times = int(self.rank.sum_(wanted.to(self.rank.device)).item() / self.rank.world_size)
        rounds: list[list[float]] = []
        for _ in range(self.rounds):
            self.rank.sum_(torch.zeros(1, device=self.rank.device))
            rounds.append([sum(part) / times for part in zip(*(call() for _ in range(times)))])
        for one, values in zip(names, zip(*rounds)):
            low, middle, high = statistics.quantiles(values, n=4)
            self.found[one] = (middle, (high - low) / middle)


def time_kernels(rank: Rank, rounds: int) -> Timed:
    """Products, memory, attention and the platform's layers, on every rank at once."""
    device = rank.device
    clock = _clock(device)
    timer = Timer(rank, rounds, clock)
    types = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
    for name, dtype in types.items():
        for rows, inner, columns in PRODUCTS if name == "fp32" else PRODUCTS[:3]:
            a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inner), (inner, columns)))
            timer.time(("product", name, rows, inner, columns), partial(torch.matmul, a, b))
    large = torch.randn(4_000_000, device=device)
    into = torch.empty_like(large)
    timer.time(("memory", 2 * 4 * large.numel()), lambda: torch.add(large, 1.0, out=into))
    q, k, v = torch.randn(3, 1, 4, 512, 64, device=device)
    timer.time(("attention", 4, 512, 64), lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    for shape in LAYERS:
        timer.parts(("layer", *shape), _layer(shape, rank))
        if shape[-1] >= 128:
            timer.parts(("ring", *shape), _layer(shape, rank, ring=True))
    for shape in SPARSE:
        timer.parts(("sparse", *shape), _layer(shape, rank, experts=EXPERTS))
    for end in ENDS:
        timer.time(("end", *end), _end(end, device))
    for parameters in UPDATES:
        timer.time(("update", parameters), _update(parameters, rank))
    timer.parts(("split",), _split_backward(rank))
    return timer.found


def time_collectives(rank: Rank, axes: str, axis: str, rounds: int) -> Timed:
    """Collectives of the groups along `axis`, all groups at once, each after a product as in a step."""
    mesh = Mesh(ParallelLayout.parse(axes), rank)
    group, timer = mesh.group(axis), Timer(rank, rounds)
    work = torch.randn(256, 256, device=rank.device)
    for size, kind in itertools.product(MESSAGES, KINDS):
        call = _collective(group, kind, size, rank.device)

        def one(call: Callable[[], object] = call) -> tuple[float, ...]:
            torch.mm(work, work)
            begun = time.perf_counter()
            call()
            return (time.perf_counter() - begun,)

        timer.parts(("collective", kind, group.size, rank.world_size, size), one)
    if group.size == rank.world_size:
        _overlap(timer, group)
    return timer.found


def _collective(group: Group, kind: str, size: int, device: torch.device) -> Callable[[], object]:
    whole = torch.randn(size // 4 // group.size * group.size, device=device)
    part = whole[: whole.numel() // group.size].clone()
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: group.all_reduce_(whole),
        "all_gather": lambda: group.all_gather(part),
        "reduce_scatter": lambda: group.reduce_scatter(whole),
        "all_to_all": lambda: group.all_to_all(whole),
        "p2p": lambda: group.start_shift(whole).wait(),
    }
    return calls[kind]


def _overlap(timer: Timer, group: Group) -> None:
    """A 4 MiB all-reduce alone, products alone, and both at once."""
    buffer, work = torch.zeros(2**20, device=timer.rank.device), torch.randn(384, 384, device=timer.rank.device)

    def products() -> None:
        for _ in range(20):
            torch.mm(work, work)

    def both() -> None:
        pending = group.start_all_reduce_(buffer)
        products()
        pending.wait()

    timer.time(("overlap", "collective"), lambda: group.all_reduce_(buffer))
    timer.time(("overlap", "products"), products)
    timer.time(("overlap", "both"), both)


def _tokens(samples: int, sequence: int, device: torch.device, vocabulary: int = 64) -> Tokens:
    ids = (torch.arange(samples * sequence, device=device) % vocabulary).view(samples, sequence)
    return Tokens.packed(ids, torch.zeros_like(ids))


class _RingOfOne(nn.Module):
    """A ring's blocks on one rank, where attention itself would be fused."""

    def forward(self, q_BLHD: torch.Tensor, k_BLKD: torch.Tensor, v_BLKD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        context = torch.stack([tokens.slots, tokens.documents]).chunk(1, dim=-1)
        return _Ring.apply(q_BLHD, torch.stack([k_BLKD, v_BLKD]), context, alone(), True)


def _layer(shape: tuple[int, ...], rank: Rank, ring: bool = False, experts: int = 0
           ) -> Callable[[], tuple[float, ...]]:  # fmt: skip
    """Seconds of (forward, backward) of one block; `ring`: by the blocks of context parallelism, on this rank alone."""
    device, clock = rank.device, _clock(rank.device)
    hidden, heads, wide, samples, sequence = shape
    sizes = TransformerSizes(64, 1, hidden, heads, heads, wide, 0.0, experts=experts, top_k=TOP_K)
    block = Block(sizes, 0).to(device)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.mul_(0.1)
    tokens = _tokens(samples, sequence, device)
    if ring:
        block.attention.core = _RingOfOne()
    entered = torch.randn(samples, sequence, hidden, device=device, requires_grad=True)

    def call() -> tuple[float, ...]:
        begun = clock()
        out, own = block(entered, tokens, 0)
        _synchronize(device)
        between = clock()
        (out.sum() + own).backward()
        _synchronize(device)
        return between - begun, clock() - between

    return call


def _end(shape: tuple[int, ...], device: torch.device) -> Callable[[], object]:
    hidden, vocabulary, samples, sequence = shape
    sizes = TransformerSizes(vocabulary, 0, hidden, 4, 4, hidden, 0.0)
    model = Transformer(sizes, torch.Generator().manual_seed(1)).to(device)
    tokens = _tokens(samples, sequence, device, vocabulary)
    return lambda: model(tokens, 0).backward()


def _update(parameters: int, rank: Rank) -> Callable[[], object]:
    mesh = Mesh(ParallelLayout(), Rank(device=rank.device))
    model = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(parameters, device=rank.device))})
    data = ShardedData(model, {}, mesh, _nowhere(model), 0)
    optimizer = torch.optim.AdamW(data.parameters())
    gradient = torch.ones(parameters, device=rank.device)

    def call() -> None:
        for parameter in data.parameters():
            parameter.grad = gradient
        global_norm(data, mesh)
        gradient.mul_(0.999)
        optimizer.step()

    return call


def _nowhere(model: nn.Module) -> dict[str, Any]:
    from distributed.placement import Placement

    return {name: Placement() for name, _ in model.named_parameters()}


def _split_backward(rank: Rank) -> Callable[[], tuple[float, ...]]:
    """Seconds of a stage's (whole backward, backward in two parts)."""
    device, clock = rank.device, _clock(rank.device)
    sizes = TransformerSizes(64, 1, 256, 4, 4, 512, 0.0)
    block, tokens = Block(sizes, 0).to(device), _tokens(1, 128, device)

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, entered: torch.Tensor, batch: Tokens) -> torch.Tensor:
            return self.block(entered, batch, 0)[0]

    stage, entered = StageWork(Stage(), False, None), torch.randn(1, 128, 256, device=device)
    gradient = torch.ones(1, 128, 256, device=device)

    def call() -> tuple[float, ...]:
        stage.forward(0, entered, tokens)
        begun = clock()
        stage.backward(0, gradient)
        _synchronize(device)
        whole = clock() - begun
        stage.forward(0, entered, tokens)
        begun = clock()
        stage.backward_input(0, gradient)
        stage.backward_weight(0)
        _synchronize(device)
        return whole, clock() - begun

    return call


def _clock(device: torch.device) -> Callable[[], float]:
    return time.process_time if device.type == "cpu" else time.perf_counter


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
