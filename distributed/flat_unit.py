"""Parameters of a model that are exchanged together: one flat buffer that they are views of, and this rank's shard of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from distributed.groups import Group, Pending
from distributed.placement import Placement


@dataclass(frozen=True)
class Held:
    """One parameter's entries on this rank: those from `low` to `high` of its flattened local slice, of shape `shape`, are

    entries of `owner` (the parameter, or its unit's shard) from `offset` on. `counted`: no other rank counts them.
    """

    name: str
    placement: Placement
    shape: torch.Size
    owner: nn.Parameter
    offset: int
    low: int
    high: int
    counted: bool

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole parameter, of which the slice is a part."""
        return tuple(self.placement.whole if dim == self.placement.dim else size for dim, size in enumerate(self.shape))


@dataclass
class FlatUnit:
    """`whole` is the flat buffer, padded to the `shards` ranks; `shard` this rank's part of it, for the optimizer (with
    `zero` 0 the optimizer has the parameters). Gradients of what is not sharded are summed over `copies`.

    `whole` may be of a narrower type than `shard`: the model then computes in the one and is updated in the other, and
    gradients of micro-batches add up in `wide`, of the shard's type, since in the narrow type a small one would be lost.
    """

    names: list[str]
    parameters: list[nn.Parameter]
    placements: list[Placement]
    whole: torch.Tensor
    shard: nn.Parameter
    zero: int
    shards: Group
    copies: tuple[Group, ...]
    wide: torch.Tensor | None = None
    ready: int = 0
    launched: bool = False
    pending: list[Pending] = field(default_factory=list)
    gathered: bool = True
    coming: Pending | None = None
    neighbours: "tuple[FlatUnit | None, FlatUnit | None]" = (None, None)
    """The units that a forward and a backward need next."""

    @classmethod
    def of(cls, names: list[str], parameters: list[nn.Parameter], placements: list[Placement], zero: int, shards: Group,
           copies: tuple[Group, ...], compute: torch.dtype | None = None) -> "FlatUnit":  # fmt: skip
        """Makes the parameters views of one buffer, of the type `compute` where it is given."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        padded = nn.functional.pad(flat, (0, -flat.numel() % shards.size if zero else 0))
        shard = nn.Parameter(padded.chunk(shards.size)[shards.index].clone() if zero else padded[:0])
        whole = padded if compute is None else padded.to(compute)
        unit = cls(names, parameters, placements, whole, shard, zero, shards, copies)
        for parameter, (start, end) in zip(parameters, unit.offsets()):
            parameter.data = whole[start:end].view(parameter.shape)
        return unit

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Where each parameter begins and ends in the buffer."""
        first = 0
        for parameter in self.parameters:
            yield first, first + parameter.numel()
            first += parameter.numel()

    @property
    def narrow(self) -> bool:
        """Whether the model computes in another type than it is updated in."""
        return self.whole.dtype != self.shard.dtype

    @property
    def sends_nothing(self) -> bool:
        """Whether gradients stay where the backward leaves them: nothing is sharded and there are no copies."""
        return not self.zero and all(group.size == 1 for group in self.copies)

    def absorb(self, parameter: nn.Parameter) -> None:
        """Adds a narrow gradient to the wide sum and lets go of it."""
        if parameter.grad is None:
            return
        if self.wide is None:
            self.wide = torch.zeros(self.whole.numel(), dtype=self.shard.dtype, device=self.shard.device)
        start, end = next(place for place, one in zip(self.offsets(), self.parameters) if one is parameter)
        self.wide[start:end] += parameter.grad.reshape(-1)
        parameter.grad = None

    def has_gradients(self) -> bool:
        """Whether a backward has left something here since the last reduction."""
        return self.wide is not None or any(parameter.grad is not None for parameter in self.parameters)

    def gradients(self) -> list[torch.Tensor | None]:
        """Each parameter's sum so far, in place."""
        if not self.narrow:
            return [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            self.absorb(parameter)
        wide = self.wide
        return [None if wide is None else wide[start:end] for start, end in self.offsets()]

    def flat_gradient(self) -> torch.Tensor:
        """All gradients in one buffer, which is the caller's to keep; zeros where there is none, padded like `whole`."""
        if self.narrow:
            self.gradients()
            flat, self.wide = self.wide, None
            if flat is None:
                flat = torch.zeros(self.whole.numel(), dtype=self.shard.dtype, device=self.shard.device)
            return flat
        pieces = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.parameters]
        padding = self.whole.numel() - sum(piece.numel() for piece in pieces)
        return torch.cat([*pieces, self.whole.new_zeros(padding)] if padding else pieces)

    def start_gather(self) -> None:
        """Asks for the whole buffer from the shards, unless it is there or under way."""
        if self.gathered or self.coming is not None:
            return
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
        self.coming = self.shards.start_all_gather(self.shard.data.to(self.whole.dtype), self.whole)

    def gather(self) -> None:
        """The whole buffer is there when it returns."""
        self.start_gather()
        if self.coming is not None:
            self.coming.wait()
            self.coming, self.gathered = None, True

    def free(self) -> None:
        """Lets go of the whole buffer; the shard stays."""
        if self.coming is not None:
            self.coming.wait()
            self.coming = None
        self.whole.untyped_storage().resize_(0)
        self.gathered = False

    def held(self) -> Iterator[Held]:
        """What of which parameter the optimizer has here."""
        first = not any(group.index > 0 for group in self.copies)
        size = self.shard.numel()
        begin, stop = (
            (self.shards.index * size, (self.shards.index + 1) * size) if self.zero else (0, self.whole.numel())
        )
        for name, parameter, place, (start, end) in zip(self.names, self.parameters, self.placements, self.offsets()):
            low, high = max(start, begin), min(end, stop)
            if low < high:
                owner, offset = (self.shard, low - begin) if self.zero else (parameter, 0)
                yield Held(name, place, parameter.shape, owner, offset, low - start, high - start,
                           first and place.counted)  # fmt: skip

    def bytes_held(self) -> dict[str, int]:
        """Bytes of parameters, gradients and shards now."""
        gradients = [p.grad for p in (*self.parameters, self.shard)] + [self.wide]
        return {
            "parameters": self.whole.untyped_storage().nbytes(),
            "gradients": sum(g.numel() * g.element_size() for g in gradients if g is not None),
            "shards": self.shard.numel() * self.shard.element_size() if self.zero else 0,
        }


def in_a_row(units: Sequence[FlatUnit]) -> None:
    """Tells each unit which ones are needed before and after it."""
    for place, unit in enumerate(units):
        unit.neighbours = (
            units[place + 1] if place + 1 < len(units) else None,
            units[place - 1] if place else None,
        )
