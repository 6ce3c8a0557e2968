"""The one model and data of both sides, and how two sides are measured alike: step by step in turn, and in memory."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from distributed import Rank
from distributed.models.transformer import Tokens, Transformer, TransformerSizes

StepOf = Callable[[int], float]
"""Runs one training step of the given number and returns its loss per token, the same on all ranks."""

Builder = Callable[[Rank, "Workload"], StepOf]

MIB = 2**20
_WARM_UP = 2


@dataclass(frozen=True)
class Workload:
    """A transformer stack and a batch; `samples` of `length` tokens on each data rank. No dropout: DTensor's differs."""

    layers: int = 8
    width: int = 256
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 512
    vocabulary: int = 1024
    length: int = 128
    samples: int = 2
    learning_rate: float = 1e-3

    @property
    def sizes(self) -> TransformerSizes:
        """The stack's shape. Untied: DTensor cuts no tied head."""
        return TransformerSizes(self.vocabulary, self.layers, self.width, self.heads, self.kv_heads, self.feed_forward,
                                dropout=0.0, tied=False)  # fmt: skip

    def model(self) -> Transformer:
        """The same weights whoever calls it."""
        return Transformer(self.sizes, torch.Generator().manual_seed(1))

    def tokens(self, part: int = 0, samples: int | None = None) -> Tokens:
        """The rows of data rank `part`: whole sequences, one document each."""
        rows = samples or self.samples
        ids_BL = torch.randint(
            self.vocabulary, (rows, self.length), generator=torch.Generator().manual_seed(100 + part)
        )
        return Tokens.packed(ids_BL, torch.zeros_like(ids_BL), first_sample=part * rows)


@dataclass(frozen=True)
class Case:
    """One way of training, by this module and by PyTorch. Builders must be picklable."""

    name: str
    peer: str
    ours: Builder
    theirs: Builder
    work: Workload


@dataclass(frozen=True)
class Beside:
    """What a case gave: seconds a step of either side pair by pair, how far losses are apart, MiB held at the peak."""

    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]
    apart: float
    ours_mib: float
    theirs_mib: float

    @property
    def ratio(self) -> float:
        """The median over pairs of neighbouring steps: what disturbs the machine hits both alike."""
        return statistics.median(one / other for one, other in zip(self.ours_s, self.theirs_s))


def compare(rank: Rank, case: Case, pairs: int) -> Beside:
    """Memory of either side alone, then both in turn, step by step, in the same processes."""
    ours_mib, theirs_mib = (peak_mib(rank, builder, case.work) for builder in (case.ours, case.theirs))
    sides = case.ours(rank, case.work), case.theirs(rank, case.work)
    seconds: tuple[list[float], list[float]] = ([], [])
    apart = 0.0
    for pair in range(_WARM_UP + pairs):
        losses = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            took, losses[which] = timed(rank, sides[which], pair)
            seconds[which].append(took)
        if pair == 0:
            apart = abs(losses[0] - losses[1]) / abs(losses[1])
    return Beside(tuple(seconds[0][_WARM_UP:]), tuple(seconds[1][_WARM_UP:]), apart, ours_mib, theirs_mib)


def timed(rank: Rank, step: StepOf, number: int) -> tuple[float, float]:
    """(seconds from all ranks' start to all ranks' end, loss)."""
    rank.sum_(torch.zeros(1))
    begun = time.perf_counter()
    loss = step(number)
    rank.sum_(torch.zeros(1))
    return time.perf_counter() - begun, loss


def peak_mib(rank: Rank, builder: Builder, work: Workload) -> float:
    """The most bytes of tensors alive at once, from before the model to the end of a third step, in MiB: of the worst rank.

    Counted at torch's allocator, so what the system keeps of freed memory plays no part.
    """
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = builder(rank, work)
        for number in range(3):
            step(number)
        del step
        gc.collect()
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    per_rank = torch.zeros(rank.world_size)
    per_rank[rank.index] = peak / MIB
    return rank.sum_(per_rank).max().item()
