"""Weak scaling of data parallelism: one rank alone, ranks side by side that never speak, ranks that train together."""

import statistics
from dataclasses import dataclass

from benchmarks.beside_torch.data import ours
from benchmarks.beside_torch.workload import StepOf, Workload, timed
from distributed import Rank
from distributed.parallelize import ParallelStyle


@dataclass(frozen=True)
class Scaling:
    """Medians over rounds of each one's step with equal rows a rank: speed kept, as a share of one rank alone."""

    alone_s: float
    apart: float
    together: float


def weak_scaling(rank: Rank, work: Workload, rounds: int) -> Scaling:
    """In one run, by turns: rank 0 alone, all ranks apart (the machine's own floor), all ranks together."""
    single = ours(Rank(), work, "dp_replicate={}", ParallelStyle())
    together = ours(rank, work, "dp_replicate={}", ParallelStyle())

    def alone(number: int) -> float:
        return single(number) if rank.first else 0.0

    ways: dict[str, StepOf] = {"alone": alone, "apart": single, "together": together}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, way in ways.items():
            seconds[name].append(timed(rank, way, number)[0])
    alone_s, apart_s, together_s = (seconds[name][2:] for name in ("alone", "apart", "together"))
    return Scaling(
        statistics.median(alone_s),
        statistics.median(one / other for one, other in zip(alone_s, apart_s)),
        statistics.median(one / other for one, other in zip(alone_s, together_s)),
    )
