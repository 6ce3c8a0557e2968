"""Frequency admission: an id gets a vector of its own, and training, only once it has been seen often enough."""

import torch
from torch import nn

from distributed.recomputing import recomputing


class Admission(nn.Module):
    """Counts occurrences per row, those of all ranks in a training forward before it looks up; admits from `threshold` on.

    An id below it has the zero vector and no gradient, so the rare ones neither learn noise nor fill optimizer state.
    """

    def __init__(self, rows: int, threshold: int):
        super().__init__()
        if threshold < 1:
            raise ValueError(f"an admission threshold of {threshold} is below 1")
        self.threshold = threshold
        self.register_buffer("seen_V", torch.zeros(rows, dtype=torch.int64))

    def forward(self, rows_M: torch.Tensor, times_M: torch.Tensor) -> torch.Tensor:
        """Which of the rows are admitted, (M,); in training each is counted `times_M` times first."""
        if self.training and not recomputing():
            self.seen_V.index_add_(0, rows_M, times_M)
        return self.seen_V[rows_M] >= self.threshold

    @property
    def admitted(self) -> int:
        """Rows of this shard that are in."""
        return int((self.seen_V >= self.threshold).sum())
