"""Ring attention over zig-zag and contiguous parts: what each rank multiplies, and how long a step takes."""

import statistics
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.beside_torch.workload import StepOf, Workload, timed
from distributed import ParallelLayout, Rank
from distributed.context_parallel import ContextAttention, ContextSplit
from distributed.groups import Mesh


@dataclass(frozen=True)
class Ring:
    """By cut: multiply-adds of every rank in forward and backward, and seconds a step."""

    work: dict[str, tuple[int, ...]]
    seconds: dict[str, float]
    ratio: float


def ring(rank: Rank, work: Workload, length: int, rounds: int) -> Ring:
    """Causal attention, forward and backward, of sequences of `length` tokens over all ranks; both cuts by turns."""
    mesh = Mesh(ParallelLayout(cp=rank.world_size), rank)
    ways = {"zig-zag": _attention(mesh, work, length, True), "contiguous": _attention(mesh, work, length, False)}
    shares = {name: _multiply_adds(rank, way) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds[name].append(timed(rank, way, number)[0])
    pairs = list(zip(*(seconds[name][1:] for name in ways)))
    return Ring(
        shares,
        {name: statistics.median(seconds[name][1:]) for name in ways},
        statistics.median(one / other for one, other in pairs),
    )


def _attention(mesh: Mesh, work: Workload, length: int, zigzag: bool) -> StepOf:
    split = ContextSplit.of(mesh, zigzag=zigzag)
    core = ContextAttention(split, causal=True)
    tokens = split.part(Workload(length=length, samples=work.samples).tokens())
    generator = torch.Generator().manual_seed(mesh.rank.index)
    shapes = [(work.samples, length // mesh.rank.world_size, heads, work.width // work.heads)
              for heads in (work.heads, work.kv_heads, work.kv_heads)]  # fmt: skip
    q, k, v = (torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)

    def one(number: int) -> float:
        for leaf in (q, k, v):
            leaf.grad = None
        core(q, k, v, tokens).sum().backward()
        return 0.0

    return one


def _multiply_adds(rank: Rank, way: StepOf) -> tuple[int, ...]:
    with FlopCounterMode(display=False) as counter:
        way(0)
    everyone = torch.zeros(rank.world_size, dtype=torch.float64)
    everyone[rank.index] = counter.get_total_flops() // 2
    return tuple(int(share) for share in rank.sum_(everyone).tolist())
