"""Everything that one set of ranks measures, in one launch: starting ranks takes longer than most of it."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from benchmarks.beside_torch import data, pipelines, tensor
from benchmarks.beside_torch.bubbles import Bubble, bubbles
from benchmarks.beside_torch.compare import compare
from benchmarks.beside_torch.ring import Ring, ring
from benchmarks.beside_torch.scaling import Scaling, weak_scaling
from benchmarks.beside_torch.traffic import Sent, sent
from benchmarks.beside_torch.workload import Beside, Case, Workload
from distributed import Rank

Found = TypeVar("Found")


@dataclass(frozen=True)
class Plan:
    """How often everything is done. `bubble_runs` and `scaling_rounds` are of two ranks: more than the cores of a small
    machine would measure the cores."""

    work: Workload
    pairs: int
    scaling: Workload
    scaling_rounds: int
    ring_tokens: int
    ring_rounds: int
    bubble_micro_batches: int
    bubble_rows: int
    bubble_runs: int


@dataclass
class Measured:
    """What the ranks found; the same on all of them but for seconds."""

    cases: list[tuple[Case, Beside]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    ring: Ring | None = None
    scaling: Scaling | None = None
    bubbles: list[Bubble] = field(default_factory=list)


def cases(work: Workload, ranks: int) -> list[Case]:
    """All training beside PyTorch's. A V of 2 x ranks stages needs 2 x ranks - 1 micro-batches, of one sample each."""
    piped = dataclasses.replace(work, samples=2 * ranks, layers=max(work.layers, 2 * ranks))
    return [*data.cases(work), *tensor.cases(work), *pipelines.cases(piped)]


def measure_all(rank: Rank, plan: Plan) -> Measured:
    """The whole plan, told on stderr as it goes."""
    found = Measured(compare_some(rank, plan, range(len(cases(plan.work, rank.world_size)))))
    found.sent = _told(rank, "bytes of a step", lambda: sent(rank, plan.work))
    found.ring = _told(
        rank, "zig-zag beside contiguous", lambda: ring(rank, plan.work, plan.ring_tokens, plan.ring_rounds)
    )
    if rank.world_size == 2:
        found.scaling = _told(rank, "weak scaling", lambda: weak_scaling(rank, plan.scaling, plan.scaling_rounds))
        found.bubbles = _told(rank, "bubbles of real work", lambda: bubbles(
            rank, plan.bubble_micro_batches, plan.bubble_rows, plan.bubble_runs))  # fmt: skip
    return found


def compare_some(rank: Rank, plan: Plan, numbers: Iterable[int]) -> list[tuple[Case, Beside]]:
    """The cases of these numbers beside PyTorch's."""
    known = cases(plan.work, rank.world_size)
    return [(case, _told(rank, f"{case.name} beside {case.peer}", partial(compare, rank, case, plan.pairs)))
            for case in (known[number] for number in numbers)]  # fmt: skip


def _told(rank: Rank, what: str, measure: Callable[[], Found]) -> Found:
    begun = time.monotonic()
    found = measure()
    if rank.first:
        print(f"{rank.world_size} ranks: {what}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return found
