"""Where a parameter lives on the mesh beyond data parallelism: which slice of the whole it is and who counts it."""

import dataclasses
from dataclasses import dataclass

import torch

from distributed.groups import Group


@dataclass(frozen=True)
class Placement:
    """Of one parameter on one rank.

    `dim`, `start`: the slice of the whole parameter along `dim` that begins at `start`; None: all of it.
    `whole`: entries of the whole along `dim`; `over`: the ranks whose slices make it up. What a last slice has beyond the
    whole is padding.
    `summed_over`: ranks that hold the same slice but saw only a part of its gradient.
    `copies`: groups over which the gradient is summed in place of the data ranks (experts, which data ranks share out).
    `counted`: whether this rank's copy enters norms and counts; exactly one copy of each slice does.
    """

    dim: int | None = None
    start: int = 0
    whole: int = 0
    over: Group | None = None
    copies: tuple[Group, ...] | None = None
    summed_over: Group | None = None
    counted: bool = True

    def not_counted(self) -> "Placement":
        """The same for a copy that another rank counts."""
        return dataclasses.replace(self, counted=False)


def shard_along(tensor: torch.Tensor, group: Group, dim: int, *, what: str = "") -> tuple[torch.Tensor, Placement]:
    """This rank's contiguous part of `tensor` along `dim`, and where it lies. `ValueError` when it does not divide."""
    whole = tensor.shape[dim]
    if whole % group.size:
        raise ValueError(f"{what or 'a parameter'} has {whole} entries along dim {dim}; {group.name}={group.size}")
    size = whole // group.size
    start = group.index * size
    return tensor.narrow(dim, start, size).clone(), Placement(dim, start, whole, group)


def gather_whole(local: torch.Tensor, placement: Placement) -> torch.Tensor:
    """The whole parameter from its slices; the same on all ranks that hold one, which call it together."""
    group = placement.over
    if placement.dim is None or group is None or group.size == 1:
        return local
    parts = group.all_gather(local[None])
    starts = group.all_gather(torch.tensor([placement.start], device=local.device)).tolist()
    shape = list(local.shape)
    shape[placement.dim] = placement.whole
    whole = local.new_full(shape, float("nan"))
    for start, part in zip(starts, parts):
        length = min(local.shape[placement.dim], placement.whole - start)
        if length > 0:
            whole.narrow(placement.dim, start, length).copy_(part.narrow(placement.dim, 0, length))
    return whole
