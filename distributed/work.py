"""What the training loop asks of a model, and how a plain module answers: rows split over data ranks, gradients summed."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import nn

from distributed.groups import Mesh
from distributed.placement import Placement
from distributed.rank import Rank
from distributed.sampler import shard
from distributed.sharded_data import ShardedData
from distributed.whole_state import whole_state

Loss = Callable[[nn.Module, np.ndarray], tuple[torch.Tensor, float]]
"""(module, row indices (B,)) -> (sum over rows of weighted losses, sum of weights). Called without rows only where ranks
exchange something in the forward."""

Validation = Callable[[nn.Module, np.ndarray], torch.Tensor]
"""(module, row indices (B,), possibly none) -> (K, 2) sums and weights. The early-stopping figure is the mean over K of sum / weight,
lower is better; a k without weight anywhere is left out."""


class Work(Protocol):
    """A model in place on this rank. All ranks call every method together and, but for `data`, see the same."""

    mesh: Mesh
    module: nn.Module
    data: ShardedData

    def gradients(self, rows_B: np.ndarray, key: int) -> tuple[float, float]:
        """Leaves the gradient of the global batch's mean loss in place; returns (mean loss, weight). `key` is the step's."""
        ...

    def after_step(self) -> None:
        """What the model does after a step that was applied, beside the optimizer's part."""
        ...

    def figures(self, rows: int) -> torch.Tensor:
        """(K, 2) sums and weights over all validation rows, as `Validation` has them."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The whole model's state dict on the CPU, whatever this rank holds of it."""
        ...

    def routed(self) -> dict[str, list[int]]:
        """Choices per expert of each sparse layer over all training steps; without such layers nothing."""
        ...

    def taken(self) -> tuple[list[int] | None, int]:
        """Tokens of this rank that each expert took in the last step, over all sparse layers here, and those that none
        took; without such layers None and 0."""
        ...


class ModuleWork:
    """A plain module whose rows are split over the data ranks; ranks along other axes are given the same rows.

    `placements` says what of the module was cut over ranks (by default nothing). `together`: ranks exchange something
    inside the module, so that all of them must run it even without rows. `zero` and `compute` as in `ShardedData`.
    """

    def __init__(self, module: nn.Module, loss: Loss, validate: Validation, mesh: Mesh, *, zero: int = 0,
                 placements: Mapping[str, Placement] | None = None, together: bool = False, micro_batches: int = 1,
                 validation_batch: int = 16_384, compute: torch.dtype | None = None):  # fmt: skip
        self.module, self.mesh = module, mesh
        self._loss, self._validate = loss, validate
        self._names = list(module.state_dict())
        self._placements = dict(placements or {name: Placement() for name, _ in module.named_parameters()})
        self.data = ShardedData(module, {}, mesh, self._placements, zero, compute=compute)
        # Gradient shards are sent inside the backward, which must then run on every rank.
        self._together = together or zero >= 2
        self._micro_batches, self._validation_batch = micro_batches, validation_batch
        self._rank = data_rank(mesh)

    def gradients(self, rows_B: np.ndarray, key: int) -> tuple[float, float]:
        """Ranks add up *sums* over rows and divide once by the global weight: averaging each rank's mean would be wrong as
        soon as ranks hold different numbers of rows or labels. With no weight anywhere the gradients are zero and the
        loss is 0."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.mesh.rank.device)
        for piece_B in np.array_split(shard(rows_B, self._rank), self._micro_batches):
            # A rank without rows runs no backward, so what is sent must not hang on it: all is sent at `finish`.
            self.data.begin(last=False)
            if len(piece_B) or self._together:
                loss_sum, weight = self._loss(self.module, piece_B)
                loss_sum.backward()
                totals += torch.stack([loss_sum.detach().double(), totals.new_tensor(weight)])
        total_loss, total_weight = self.mesh.data.all_reduce_(totals).tolist()
        self.data.finish()
        scale = 1.0 / total_weight if total_weight > 0 else 0.0
        scale_(self.data, scale)
        return total_loss * scale, total_weight

    def after_step(self) -> None:
        """Nothing."""

    def figures(self, rows: int) -> torch.Tensor:
        """Each data rank evaluates its share, in as many calls as the others."""
        mine_N = shard(np.arange(rows), self._rank)
        largest = -(-rows // self._rank.world_size)
        with torch.no_grad():
            parts = [
                self._validate(self.module, mine_N[start : start + self._validation_batch]).double()
                for start in range(0, max(largest, 1), self._validation_batch)
            ]
        return self.mesh.data.all_reduce_(torch.stack(parts).sum(dim=0))

    def state(self) -> dict[str, torch.Tensor]:
        """Put together from the shards where there are any."""
        return whole_state(self.module, self.data, self._placements, self.mesh, self._names)

    def routed(self) -> dict[str, list[int]]:
        """Nothing: no expert of a plain module chooses its rows."""
        return {}

    def taken(self) -> tuple[list[int] | None, int]:
        """Nothing either."""
        return None, 0


def data_rank(mesh: Mesh) -> Rank:
    """This rank's place among those that are given different rows: along dp_replicate and dp_shard."""
    place, layout = mesh.coordinate, mesh.layout
    index = place["dp_replicate"] * layout.dp_shard + place["dp_shard"]
    return Rank(index, layout.dp_replicate * layout.dp_shard, mesh.rank.device)


def scale_(data: ShardedData, factor: float) -> None:
    """Multiplies every gradient that this rank's optimizer will see."""
    for parameter in data.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def start_equal(module: nn.Module, rank: Rank) -> None:
    """Gives every rank the first one's parameters and buffers; before anything is cut."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            rank.copy_from_first_(tensor)
