"""Parameters that two stages share, such as an embedding that is also the output layer: one gradient for both copies."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from distributed.groups import Group


def sum_tied_gradients_(tied: Mapping[str, tuple[Sequence[int], nn.Parameter | None]], group: Group) -> None:
    """After a pipeline step: gives each holder of a tied parameter the sum of all holders' gradients, bitwise equal.

    `tied` maps a global name to (pipeline ranks that hold a copy, this rank's copy or None); all ranks give the same
    names. A rank that holds both ends, as under V schedules, shares one parameter between its stages and needs no entry.
    In a gradient norm count the copy of the first holder alone.
    """
    for name in sorted(tied):
        holders, parameter = tied[name]
        if parameter is None or len(holders) < 2:
            continue
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.contiguous()
        others: dict[int, torch.Tensor] = {group.index: gradient}
        asked = []
        for holder in holders:
            if holder != group.index:
                others[holder] = torch.empty_like(gradient)
                member = group.members[holder]
                asked.append(dist.P2POp(dist.isend, gradient, member, group.handle))
                asked.append(dist.P2POp(dist.irecv, others[holder], member, group.handle))
        # Asked for together: in NCCL two ranks that both send first would wait for each other.
        for work in dist.batch_isend_irecv(asked):
            work.wait()
        # One order of summing on all holders, or the last bits would differ.
        total = others[sorted(holders)[0]].clone()
        for holder in sorted(holders)[1:]:
            total += others[holder]
        parameter.grad = total
