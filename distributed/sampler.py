"""Which rows make up each global batch, and which of them each rank takes: the order never depends on the world size."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distributed.rank import Rank


@dataclass(frozen=True)
class EpochBatches:
    """Global batches over `rows` rows, shuffled anew each epoch from `seed`; the last batch of an epoch may be smaller."""

    rows: int
    batch_size: int
    seed: int

    @property
    def per_epoch(self) -> int:
        """Global batches in one epoch."""
        return -(-self.rows // self.batch_size)

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """The row indices (B,) of each global batch of epoch `number`."""
        order_N = np.random.default_rng([self.seed, number]).permutation(self.rows)
        for start in range(0, self.rows, self.batch_size):
            yield order_N[start : start + self.batch_size]


def shard(indices_B: np.ndarray, rank: Rank) -> np.ndarray:
    """This rank's contiguous part of a global batch; parts differ by at most one row and may be empty."""
    return np.array_split(indices_B, rank.world_size)[rank.index]
