"""A process group for each direction between neighbours of a pipeline.

In one communicator NCCL carries messages out in the order in which a rank asks for them: a receive that is asked for ahead
would stand before the send that the other side waits for. With a link a direction, each carries one rank's messages in their
order, and nothing stands in front of them.
"""

import dataclasses

import torch
import torch.distributed as dist

from distributed.errors import LayoutError
from distributed.groups import Group, Mesh


def linked(mesh: Mesh) -> Group:
    """The pp group of `mesh` with its links, each tried once; all ranks call it together. `LayoutError` where a link gives
    another rank's message."""
    group, links = mesh.group("pp"), {}
    for members in mesh.layout.groups(["pp"]):
        for sender, receiver in neighbours(len(members)):
            pair = (members[sender], members[receiver])
            handle = dist.new_group(list(pair))
            if mesh.rank.index in pair:
                # NCCL makes a communicator at its first use, in which both ends must take part: here, in one order for all.
                _try(mesh, handle, *pair)
                links[sender, receiver] = handle
    return dataclasses.replace(group, links=links)


def neighbours(ranks: int) -> list[tuple[int, int]]:
    """(sender, receiver) of every pair of ranks beside each other around the ring, both ways."""
    return sorted({(place, (place + by) % ranks) for place in range(ranks) for by in (1, -1) if ranks > 1})


def _try(mesh: Mesh, handle: dist.ProcessGroup, sender: int, receiver: int) -> None:
    here = mesh.rank.index
    said = torch.tensor([sender if here == sender else -1], device=mesh.rank.device)
    if here == sender:
        dist.send(said, receiver, handle)
        return
    dist.recv(said, sender, handle)
    if said.item() != sender:
        raise LayoutError(f"the link from rank {sender} to rank {receiver} gave {said.item()}")
