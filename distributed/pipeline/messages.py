"""Activations and their gradients between pipeline ranks: sent without waiting, received when they are needed.

Each carries its shape, so micro-batches may differ in size and a step may differ from the one before.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from distributed.groups import Group
from distributed.planner.schedules import Op, Schedule

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MOST_DIMS = 6


class Key(NamedTuple):
    """What a message is: the "activation" that enters `stage`, or the "gradient" of what `stage` put out."""

    kind: str
    micro: int
    stage: int


def needed(op: Op, last_stage: int) -> Key | None:
    """What an operation waits for from the stage beside it."""
    if op.kind == "F":
        return Key("activation", op.micro, op.stage) if op.stage else None
    return Key("gradient", op.micro, op.stage) if op.kind in "BD" and op.stage < last_stage else None


def produced(op: Op, last_stage: int) -> Key | None:
    """What an operation hands to the stage beside it."""
    if op.kind == "F":
        return Key("activation", op.micro, op.stage + 1) if op.stage < last_stage else None
    return Key("gradient", op.micro, op.stage - 1) if op.kind in "BD" and op.stage else None


class Messages:
    """The mail of one pipeline step on one rank. What stays on the rank is handed over without being sent.

    Messages of one rank are received in the order in which it sends them, which the schedule tells: no tags are needed,
    which NCCL does not have.
    """

    def __init__(self, schedule: Schedule, group: Group, device: torch.device):
        self._path, self._group, self._device = schedule.paths[0], group, device
        self._here: dict[Key, torch.Tensor] = {}
        self._under_way: list[tuple[dist.Work, torch.Tensor]] = []
        self._order = {
            sender: _sent_to(schedule, sender, group.index) for sender in range(group.size) if sender != group.index
        }

    def put(self, key: Key, tensor: torch.Tensor) -> None:
        """Hands over what `key` names to the rank that holds its stage."""
        holder = self._path[key.stage]
        if holder == self._group.index:
            self._here[key] = tensor
            return
        tensor = tensor.contiguous()
        header = torch.zeros(_MOST_DIMS + 2, dtype=torch.int64)
        header[0], header[1] = _DTYPES.index(tensor.dtype), tensor.dim()
        header[2 : 2 + tensor.dim()] = torch.tensor(tensor.shape)
        for part in (header.to(self._device), tensor):
            work = dist.isend(part, self._group.members[holder], self._group.handle)
            if work is not None:
                self._under_way.append((work, part))
        self._under_way = [(work, part) for work, part in self._under_way if not work.is_completed()]

    def take(self, key: Key, source_stage: int) -> torch.Tensor:
        """What `key` names, once it has come from the rank that holds `source_stage`."""
        sender = self._path[source_stage]
        while key not in self._here:
            due = next(self._order[sender], None)
            if due is None:
                raise RuntimeError(f"the schedule never sends {key} from pipeline rank {sender}")
            self._here[due] = self._receive(sender)
        return self._here.pop(key)

    def _receive(self, sender: int) -> torch.Tensor:
        member, handle = self._group.members[sender], self._group.handle
        header = torch.empty(_MOST_DIMS + 2, dtype=torch.int64, device=self._device)
        dist.recv(header, member, handle)
        dtype, dims, *shape = header.tolist()
        tensor = torch.empty(shape[:dims], dtype=_DTYPES[dtype], device=self._device)
        dist.recv(tensor, member, handle)
        return tensor

    def finish(self) -> None:
        """Waits until all that this rank sent has left."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way = []


def _sent_to(schedule: Schedule, sender: int, receiver: int) -> Iterator[Key]:
    path = schedule.paths[0]
    handed: Callable[[Op], Key | None] = lambda op: produced(op, len(path) - 1)  # noqa: E731
    keys = (handed(op) for slot in schedule.orders[sender] for op in slot)
    return iter([key for key in keys if key is not None and path[key.stage] == receiver])
