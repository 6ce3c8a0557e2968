"""Activations and their gradients between pipeline ranks: sent without waiting, received when they are needed.

Each carries its shape, so micro-batches may differ in size and a step may differ from the one before.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from distributed.groups import Group
from distributed.planner.schedules import Op, Schedule

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MOST_DIMS = 6

ShapeOf = Callable[[int], tuple[tuple[int, ...], torch.dtype]]
"""Micro-batch number to (shape, type) of what passes between any two stages."""


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
    which NCCL does not have. The next one from each rank is always asked for already, while this rank computes. With
    `shape_of` (micro-batch number to shape and type of the activations between stages) tensors travel alone; without,
    each comes after a header that says its shape.
    """

    def __init__(self, schedule: Schedule, group: Group, device: torch.device, shape_of: ShapeOf | None = None):
        self._path, self._group, self._device, self._shape_of = schedule.paths[0], group, device, shape_of
        self._here: dict[Key, torch.Tensor] = {}
        self._under_way: list[tuple[dist.Work, torch.Tensor]] = []
        self._inboxes = {
            sender: _Inbox(_sent_to(schedule, sender, group.index), self._ask_first(sender))
            for sender in range(group.size)
            if sender != group.index
        }
        for inbox in self._inboxes.values():
            inbox.ask_next()

    def put(self, key: Key, tensor: torch.Tensor) -> None:
        """Hands over what `key` names to the rank that holds its stage."""
        holder = self._path[key.stage]
        if holder == self._group.index:
            self._here[key] = tensor
            return
        parts = [tensor.contiguous()]
        if self._shape_of is None:
            header = torch.zeros(_MOST_DIMS + 2, dtype=torch.int64)
            header[0], header[1] = _DTYPES.index(tensor.dtype), tensor.dim()
            header[2 : 2 + tensor.dim()] = torch.tensor(tensor.shape)
            parts.insert(0, header.to(self._device))
        elif (tuple(tensor.shape), tensor.dtype) != self._shape_of(key.micro):
            raise ValueError(
                f"{key} is {tuple(tensor.shape)} {tensor.dtype}, announced was {self._shape_of(key.micro)}"
            )
        for part in parts:
            work = dist.isend(part, self._group.members[holder], self._link(self._group.index, holder))
            assert work is not None
            self._under_way.append((work, part))
        self._under_way = [(work, part) for work, part in self._under_way if not work.is_completed()]

    def take(self, key: Key, source_stage: int) -> torch.Tensor:
        """What `key` names, once it has come from the rank that holds `source_stage`."""
        sender = self._path[source_stage]
        while key not in self._here:
            with self._group.waits.waiting("bubble"):
                due, buffer = self._inboxes[sender].wait()
                self._here[due] = buffer if self._shape_of is not None else self._receive(buffer, sender)
            self._inboxes[sender].ask_next()
        return self._here.pop(key)

    def _ask_first(self, sender: int) -> Callable[[Key], tuple[dist.Work, torch.Tensor]]:
        """Asks for the tensor itself, or for its header."""

        def ask(key: Key) -> tuple[dist.Work, torch.Tensor]:
            shape, dtype = ((_MOST_DIMS + 2,), torch.int64) if self._shape_of is None else self._shape_of(key.micro)
            return self._ask(sender, shape, dtype)

        return ask

    def _ask(self, sender: int, shape: Sequence[int], dtype: torch.dtype) -> tuple[dist.Work, torch.Tensor]:
        buffer = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        work = dist.irecv(buffer, self._group.members[sender], self._link(sender, self._group.index))
        assert work is not None
        return work, buffer

    def _link(self, sender: int, receiver: int) -> "dist.ProcessGroup | None":
        return self._group.links.get((sender, receiver), self._group.handle)

    def _receive(self, header: torch.Tensor, sender: int) -> torch.Tensor:
        dtype, dims, *shape = header.tolist()
        work, tensor = self._ask(sender, shape[:dims], _DTYPES[dtype])
        work.wait()
        return tensor

    def finish(self) -> None:
        """Waits until all that this rank sent has left."""
        with self._group.waits.waiting("bubble"):
            for work, _ in self._under_way:
                work.wait()
        self._under_way = []


class _Inbox:
    """What one rank will send, in its order; one message ahead is asked for."""

    def __init__(self, order: Iterator[Key], ask: Callable[[Key], tuple[dist.Work, torch.Tensor]]):
        self._order, self._ask = order, ask
        self._asked: tuple[Key, dist.Work, torch.Tensor] | None = None

    def ask_next(self) -> None:
        key = next(self._order, None)
        self._asked = None if key is None else (key, *self._ask(key))

    def wait(self) -> tuple[Key, torch.Tensor]:
        assert self._asked is not None, "the schedule never sends what is waited for"
        key, work, buffer = self._asked
        work.wait()
        return key, buffer


def _sent_to(schedule: Schedule, sender: int, receiver: int) -> Iterator[Key]:
    path = schedule.paths[0]
    keys = (produced(op, len(path) - 1) for slot in schedule.orders[sender] for op in slot)
    return iter([key for key in keys if key is not None and path[key.stage] == receiver])
