"""The process groups of a mesh on one rank: verified at start-up, no-ops where of one rank."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from distributed.errors import LayoutError
from distributed.mesh import AXES, DATA_AXES, ParallelLayout
from distributed.rank import Rank
from distributed.waits import Waits

STANDARD = (*((axis,) for axis in AXES), DATA_AXES, ("dp_shard", "cp"), ("dp_shard", "cp", "tp"), ("cp", "tp"), AXES)
"""The axes along which every mesh has groups; `AXES` is the whole world."""


class Pending:
    """A collective under way; `wait` returns its result."""

    def __init__(self, work: "dist.Work | _All | None", result: torch.Tensor, group: "Group | None" = None):
        self._work, self._result, self._group = work, result, group

    def wait(self) -> torch.Tensor:
        """The result, once it is there."""
        if self._work is not None:
            begun = time.perf_counter()
            self._work.wait()
            self._work = None
            if self._group is not None:
                self._group.waits.add(self._group.name, time.perf_counter() - begun)
        return self._result


@dataclass(frozen=True)
class Group:
    """The ranks along some axes as this rank sees them. With one member every collective returns its input."""

    name: str
    members: tuple[int, ...]
    index: int
    handle: "dist.ProcessGroup | None" = None
    waits: Waits = field(default_factory=Waits, compare=False, repr=False)
    links: "Mapping[tuple[int, int], dist.ProcessGroup]" = field(default_factory=dict, compare=False, repr=False)
    """Process groups of one direction between two members, (sender, receiver) by place, where messages need them."""

    @property
    def size(self) -> int:
        """Members."""
        return len(self.members)

    def all_reduce_(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Sums (or takes the "max") over the members, in place; bitwise the same on each. Returns `tensor`."""
        return self.start_all_reduce_(tensor, op).wait()

    def start_all_reduce_(self, tensor: torch.Tensor, op: str = "sum") -> Pending:
        """`all_reduce_` under way."""
        operator = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op]
        return self._start(tensor, lambda: dist.all_reduce(tensor, operator, self.handle, True))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """(N, ...) of each member to (size x N, ...), in member order."""
        return self.start_all_gather(tensor).wait()

    def start_all_gather(self, tensor: torch.Tensor, out: torch.Tensor | None = None) -> Pending:
        """`all_gather` under way, into `out` where given."""
        tensor = tensor.contiguous()
        if self.size == 1 and out is None:
            return Pending(None, tensor)
        if out is None:
            out = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        if self.size == 1:
            return Pending(None, out.copy_(tensor))
        target = out
        return self._start(out,
                           lambda: dist.all_gather_single(target, tensor, self.handle, True))  # fmt: skip

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """(size x N, ...) of each member to the sum of everyone's own (N, ...)."""
        return self.start_reduce_scatter(tensor).wait()

    def start_reduce_scatter(self, tensor: torch.Tensor) -> Pending:
        """`reduce_scatter` under way."""
        tensor = tensor.contiguous()
        if self.size == 1:
            return Pending(None, tensor)
        out = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        return self._start(out,
                           lambda: dist.reduce_scatter_single(out, tensor, dist.ReduceOp.SUM, self.handle, True))  # fmt: skip

    def all_to_all(self, tensor: torch.Tensor, send: Sequence[int] | None = None,
                   receive: Sequence[int] | None = None) -> torch.Tensor:  # fmt: skip
        """Sends `send[i]` rows of `tensor` to member i and returns what came, `receive[i]` rows from i; even when left out."""
        tensor = tensor.contiguous()
        if self.size == 1:
            return tensor
        rows = tensor.shape[0] if receive is None else sum(receive)
        out = tensor.new_empty((rows, *tensor.shape[1:]))
        sends, receives = (None if part is None else list(part) for part in (send, receive))
        return self._start(out,
                           lambda: dist.all_to_all_single(out, tensor, receives, sends, self.handle, True)).wait()  # fmt: skip

    def start_shift(self, tensor: torch.Tensor, by: int = 1) -> Pending:
        """Sends `tensor` to the member `by` places on, around the ring; the result is what came from `by` places back."""
        if self.size == 1:
            return Pending(None, tensor)
        tensor = tensor.contiguous()
        out = torch.empty_like(tensor)
        # Asked for together: in NCCL two ranks that both send first would wait for each other.
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor, self.members[(self.index + by) % self.size], self.handle),
            dist.P2POp(dist.irecv, out, self.members[(self.index - by) % self.size], self.handle),
        ])  # fmt: skip
        return Pending(_All(works, tensor), out, self)

    def broadcast_(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrites `tensor` by that of the member `source`."""
        return self._start(tensor,
                           lambda: dist.broadcast(tensor, self.members[source], self.handle, True)).wait()  # fmt: skip

    def _start(self, result: torch.Tensor, call: Callable[[], "dist.Work | None"]) -> Pending:
        return Pending(None if self.size == 1 else call(), result, self)


@dataclass
class _All:
    works: list["dist.Work"]
    kept: torch.Tensor
    """The sent tensor, which must live until it has left."""

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class Mesh:
    """The groups of one rank. All ranks construct it together; `LayoutError` when they do not agree on who is with whom."""

    def __init__(self, layout: ParallelLayout, rank: Rank):
        layout.check(rank.world_size)
        self.layout, self.rank = layout, rank
        self.coordinate = layout.coordinate(rank.index)
        self.waits = Waits()
        self._groups: dict[str, Group] = {}
        self._handles: dict[tuple[int, ...], dist.ProcessGroup] = {}
        lists = {"x".join(axes): layout.members(rank.index, axes) for axes in STANDARD}
        self._compare_before(lists)
        for axes in STANDARD:
            self._groups["x".join(axes)] = self._make("x".join(axes), layout.groups(axes))
        self.verify()

    def group(self, *axes: str) -> Group:
        """The group along `axes`, named in mesh order: one axis or another of `STANDARD`."""
        return self._groups["x".join(axes)]

    @property
    def world(self) -> Group:
        """All ranks."""
        return self.group(*AXES)

    @property
    def data(self) -> Group:
        """The ranks that hold the same parameters and different tokens."""
        return self.group(*DATA_AXES)

    def handles(self) -> dict[str, "dist.ProcessGroup | None"]:
        """The process groups of more than one rank by name, as the byte ledger takes them."""
        # Axes of one rank give the same group several names; the shortest is the axis itself.
        found: dict[tuple[int, ...], Group] = {}
        for group in sorted(self._groups.values(), key=lambda group: len(group.name)):
            if group.size > 1:
                found.setdefault(group.members, group)
        return {group.name: group.handle for group in found.values()}

    def carve(self, group: Group, inner: int) -> tuple[Group, Group]:
        """Cuts every group of this name into runs of `inner` neighbours: (the run, those with the same place in the runs).

        All ranks must call it together. `LayoutError` when `inner` does not divide the group.
        """
        if inner < 1 or group.size % inner:
            raise LayoutError(f"group {group.name} of {group.size} ranks does not divide into runs of {inner}")
        whole = self.layout.groups(group.name.split("x"))
        runs = [members[first : first + inner] for members in whole for first in range(0, len(members), inner)]
        across = [members[place::inner] for members in whole for place in range(inner)]
        return self._make(f"{group.name}.inner{inner}", runs), self._make(f"{group.name}.outer{inner}", across)

    def verify(self) -> None:
        """Compares, by a small collective in every group, the members that answer with those of the layout."""
        for group in self._groups.values():
            if group.size > 1:
                answered = tuple(group.all_gather(torch.tensor([self.rank.index], device=self.rank.device)).tolist())
                if answered != group.members:
                    raise LayoutError(
                        f"group {group.name} of rank {self.rank.index} should hold {group.members}, holds {answered}"
                    )

    def _compare_before(self, mine: dict[str, tuple[int, ...]]) -> None:
        # Before any group is made: ranks that disagree would wait for each other for ever.
        if self.rank.world_size == 1:
            return
        everyone: list[dict[str, tuple[int, ...]]] = [{} for _ in range(self.rank.world_size)]
        dist.all_gather_object(everyone, mine)
        for rank, lists in enumerate(everyone):
            for name, members in lists.items():
                for other in members:
                    if everyone[other][name] != members:
                        raise LayoutError(
                            f"ranks disagree on group {name}: rank {rank} says {members}, "
                            f"rank {other} says {everyone[other][name]}; were they started with one layout?"
                        )

    def _make(self, name: str, lists: Sequence[tuple[int, ...]]) -> Group:
        mine = next(members for members in lists if self.rank.index in members)
        if len(mine) > 1 and mine not in self._handles:
            if len(mine) == self.rank.world_size:
                self._handles[mine] = dist.group.WORLD
            else:
                # Every rank takes part in the making of every group, in one order.
                for members in lists:
                    handle = dist.new_group(list(members))
                    if members == mine:
                        self._handles[mine] = handle
        return Group(name, mine, mine.index(self.rank.index), self._handles.get(mine), self.waits)
