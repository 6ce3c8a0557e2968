"""Rows sent between ranks by uneven all-to-all, and their gradients sent back; shared by experts and sharded tables."""

from collections.abc import Sequence
from typing import Any

import torch

from distributed.groups import Group


def alone() -> Group:
    """A group of this rank only: the same code on one process."""
    return Group("alone", (0,), 0)


def summed(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over the group in a new tensor: what was given stays as it is. Has no gradient."""
    return group.all_reduce_(tensor.detach().clone())


def gathered(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """Equal shapes of all members stacked, (R, *shape), in member order. Has no gradient."""
    return group.all_gather(tensor.detach().reshape(1, -1)).reshape(group.size, *tensor.shape)


def exchange_counts(counts_R: torch.Tensor, group: Group) -> torch.Tensor:
    """Whole numbers for each member swapped for those from each member; (R,) or (R, K)."""
    return group.all_to_all(counts_R.contiguous())


def exchange_rows(rows_NX: torch.Tensor, send: Sequence[int], receive: Sequence[int], group: Group) -> torch.Tensor:
    """Sends consecutive runs of rows to the members in order; returns the runs received, in member order.

    The gradient goes the other way. Members that send or receive no row take part all the same, and so must every member
    in the backward: each keeps the outcome connected to its loss, be it by a sum over no rows.
    """
    if group.size == 1:
        return rows_NX
    return _Exchange.apply(rows_NX, list(send), list(receive), group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_NX: torch.Tensor, send: list[int], receive: list[int], group: Group) -> torch.Tensor:
        ctx.route = (send, receive, group)
        return group.all_to_all(rows_NX, send, receive)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        send, receive, group = ctx.route
        return group.all_to_all(gradients[0], receive, send), None, None, None
