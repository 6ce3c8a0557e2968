"""One rank's place in the world: its number, how many there are, and the device it computes on."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Rank:
    """Passed to the worker function. With a world of one there is no process group, and `sum_` does nothing."""

    index: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.index == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums `tensor` over all ranks in place and returns it; the result is bitwise the same on each."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def copy_from_first_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrites `tensor` by the first rank's, in place, and returns it."""
        if self.world_size > 1:
            dist.broadcast(tensor, src=0)
        return tensor
