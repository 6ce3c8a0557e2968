"""The one model and data of both sides, and what a case of both is."""

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


def timed(rank: Rank, step: StepOf, number: int) -> tuple[float, float]:
    """(seconds from all ranks' start to all ranks' end, loss)."""
    rank.sum_(torch.zeros(1))
    begun = time.perf_counter()
    loss = step(number)
    rank.sum_(torch.zeros(1))
    return time.perf_counter() - begun, loss
