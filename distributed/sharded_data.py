"""Data parallelism over sharded states: ZeRO 0 to 3 and hybrid shard, a flat buffer per unit (block) of the model.

ZeRO 0 keeps all states on every rank and sums gradients over the data ranks. 1 shards the optimizer's states, 2 gradients
too, 3 parameters too: gathered before a unit's forward and again before its backward, freed after each. Shards lie over
`dp_shard` x `cp`; over `dp_replicate` there are copies (hybrid shard), and gradient shards are summed across them.
Rajbhandari et al. 2020, ZeRO.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from distributed.groups import Group, Mesh, Pending
from distributed.placement import Placement


@dataclass
class _Unit:
    """Parameters that are exchanged together. `whole` is the flat buffer that they are views of, padded to the shards."""

    names: list[str]
    parameters: list[nn.Parameter]
    placements: list[Placement]
    whole: torch.Tensor
    shard: nn.Parameter
    zero: int
    copies: tuple[Group, ...]
    ready: int = 0
    launched: bool = False
    pending: list[Pending] = field(default_factory=list)
    gathered: bool = True

    def offsets(self) -> Iterable[tuple[int, int]]:
        first = 0
        for parameter in self.parameters:
            yield first, first + parameter.numel()
            first += parameter.numel()


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


class ShardedData:
    """Holds a model's parameters for the optimizer and brings gradients together.

    A step: `begin(last)` before each micro-batch's forward and backward, `finish()` after the last one, then the
    optimizer's step on `parameters()`, then `after_step()`. Gradients are sums over the data ranks: divide the loss, not
    the gradient.
    """

    def __init__(self, model: nn.Module, units: Mapping[str, nn.Module], mesh: Mesh, placements: Mapping[str, Placement],
                 zero: int = 0):  # fmt: skip
        """`units`: modules by name that return a tuple of tensors and whose parameters go together; the rest of `model` is
        one unit, gathered for the whole of a micro-batch."""
        if zero not in (0, 1, 2, 3):
            raise ValueError(f"zero is {zero}, not 0, 1, 2 or 3")
        self._mesh, self._zero = mesh, zero
        self._shards: Group = mesh.group("dp_shard", "cp")
        self._last = True
        named = dict(model.named_parameters())
        taken: set[str] = set()
        self._units: list[_Unit] = []
        for prefix, module in units.items():
            inside = [name for name in named if name.startswith(f"{prefix}.")]
            taken.update(inside)
            for unit in self._add(inside, named, placements):
                self._free_between_uses(module, unit)
        for unit in self._add([name for name in named if name not in taken], named, placements):
            model.register_forward_pre_hook(lambda *_, unit=unit: self._gather(unit))

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer updates: the parameters, or this rank's flat shards of them."""
        return [parameter for unit in self._units for parameter in ([unit.shard] if unit.zero else unit.parameters)]

    def begin(self, last: bool) -> None:
        """Before a micro-batch. Only the `last` one's backward sends, unless gradients are sharded (ZeRO 2 and 3)."""
        self._last = last
        for unit in self._units:
            unit.ready, unit.launched = 0, False

    def finish(self) -> None:
        """Waits until every gradient is there: `.grad` of `parameters()` is the sum over all data ranks."""
        for unit in self._units:
            if not unit.launched:
                self._launch(unit)
            self._settle(unit)
            if unit.zero == 3:
                self._free(unit)

    def after_step(self) -> None:
        """After the optimizer: gives everyone the new parameters (ZeRO 1 and 2; ZeRO 3 gathers when it needs them)."""
        late = [unit for unit in self._units if unit.zero in (1, 2)]
        for pending in [self._shards.start_all_gather(unit.shard.data, unit.whole) for unit in late]:
            pending.wait()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """In place of `after_step` when the step is skipped."""
        for parameter in self.parameters():
            parameter.grad = None

    def held(self) -> Iterable[Held]:
        """What of which parameter this rank's `parameters()` hold, by global name."""
        for unit in self._units:
            first = not any(group.index > 0 for group in unit.copies)
            begin, stop = self._range(unit) if unit.zero else (0, unit.whole.numel())
            for name, parameter, place, (start, end) in zip(
                unit.names, unit.parameters, unit.placements, unit.offsets()
            ):
                low, high = max(start, begin), min(end, stop)
                if low < high:
                    owner, offset = (unit.shard, low - begin) if unit.zero else (parameter, 0)
                    yield Held(name, place, parameter.shape, owner, offset, low - start, high - start,
                               first and place.counted)  # fmt: skip

    def counted(self) -> Iterable[torch.Tensor]:
        """Pieces of the gradients that this rank counts: over all ranks, every entry of the model once."""
        for held in self.held():
            if held.counted and held.owner.grad is not None:
                yield held.owner.grad.reshape(-1)[held.offset : held.offset + held.high - held.low]

    def whole_by_name(self, gradients: bool) -> dict[str, torch.Tensor]:
        """Every parameter, or its gradient, as this tp rank holds it, put together from the shards. All call it together."""
        found = {}
        for unit in self._units:
            if unit.zero:
                local = unit.shard.grad if gradients else unit.shard.data
                flat = self._shards.all_gather(torch.zeros_like(unit.shard) if local is None else local)
            else:
                pieces = [p.grad if gradients else p.data for p in unit.parameters]
                flat = torch.cat([torch.zeros(p.numel()) if g is None else g.reshape(-1)
                                  for p, g in zip(unit.parameters, pieces)])  # fmt: skip
            for name, parameter, (start, end) in zip(unit.names, unit.parameters, unit.offsets()):
                found[name] = flat[start:end].view(parameter.shape).clone()
        return found

    def bytes_held(self) -> dict[str, int]:
        """Bytes of parameters, gradients and shards that this rank holds now."""
        size = self._units[0].whole.element_size()
        return {
            "parameters": sum(unit.whole.untyped_storage().nbytes() for unit in self._units),
            "gradients": size * sum(p.numel() for unit in self._units for p in (*unit.parameters, unit.shard)
                                    if p.grad is not None),
            "shards": size * sum(unit.shard.numel() for unit in self._units if unit.zero),
        }  # fmt: skip

    def _add(self, names: list[str], named: Mapping[str, nn.Parameter], placements: Mapping[str, Placement]
             ) -> list[_Unit]:  # fmt: skip
        """Makes a unit of `names`, and one of the experts among them; returns those that are freed between uses."""
        experts = [name for name in names if placements[name].copies is not None]
        ordinary = [name for name in names if name not in experts]
        made = []
        if experts:
            # The data ranks share experts out already: they are whole where they lie.
            copies = placements[experts[0]].copies
            assert copies is not None
            made.append(self._unit(experts, named, placements, 0, copies))
        if ordinary:
            copies = (self._mesh.group("dp_replicate") if self._zero else self._mesh.data,)
            made.append(self._unit(ordinary, named, placements, self._zero, copies))
        self._units.extend(made)
        freed = [unit for unit in made if unit.zero == 3]
        for unit in freed:
            self._free(unit)
        return freed

    def _unit(self, names: list[str], named: Mapping[str, nn.Parameter], placements: Mapping[str, Placement], zero: int,
              copies: tuple[Group, ...]) -> _Unit:  # fmt: skip
        parameters = [named[name] for name in names]
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        whole = nn.functional.pad(flat, (0, -flat.numel() % self._shards.size if zero else 0))
        shard = nn.Parameter(whole.chunk(self._shards.size)[self._shards.index].clone() if zero else whole[:0])
        unit = _Unit(names, parameters, [placements[name] for name in names], whole, shard, zero, copies)
        for parameter, (start, end) in zip(parameters, unit.offsets()):
            parameter.data = whole[start:end].view(parameter.shape)
            parameter.register_post_accumulate_grad_hook(lambda _, unit=unit: self._one_ready(unit))
        return unit

    def _range(self, unit: _Unit) -> tuple[int, int]:
        size = unit.shard.numel()
        return self._shards.index * size, (self._shards.index + 1) * size

    def _one_ready(self, unit: _Unit) -> None:
        unit.ready += 1
        if unit.ready == len(unit.parameters) and (self._last or unit.zero >= 2):
            self._launch(unit)

    def _launch(self, unit: _Unit) -> None:
        """Starts a unit's reduction while the backward goes on with the units before it."""
        unit.launched = True
        self._sum_partial(unit)
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        if not unit.zero:
            for group in unit.copies[:-1]:
                group.all_reduce_(flat)
            unit.pending.append(unit.copies[-1].start_all_reduce_(flat))
            return
        for parameter in unit.parameters:
            parameter.grad = None
        self._settle(unit)
        flat = nn.functional.pad(flat, (0, unit.whole.numel() - flat.numel()))
        unit.pending.append(self._shards.start_reduce_scatter(flat))
        if unit.zero == 3:
            self._free(unit)

    def _sum_partial(self, unit: _Unit) -> None:
        groups = {p.summed_over.name: p.summed_over for p in unit.placements if p.summed_over is not None}
        for group in groups.values():
            gradients = [
                parameter.grad
                for parameter, placement in zip(unit.parameters, unit.placements)
                if placement.summed_over is group and parameter.grad is not None
            ]
            if not gradients:
                continue
            flat = group.all_reduce_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            for gradient, piece in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(piece.view_as(gradient))

    def _settle(self, unit: _Unit) -> None:
        """Takes in what is under way: into `.grad` of the parameters, or added to the shard's."""
        for pending in unit.pending:
            flat = pending.wait()
            if unit.zero:
                for group in unit.copies:
                    flat = group.all_reduce_(flat)
                unit.shard.grad = flat if unit.shard.grad is None else unit.shard.grad + flat
            else:
                for parameter, (start, end) in zip(unit.parameters, unit.offsets()):
                    parameter.grad = flat[start:end].view(parameter.shape)
        unit.pending.clear()

    def _free_between_uses(self, module: nn.Module, unit: _Unit) -> None:
        def after(_: nn.Module, __: object, outputs: tuple[torch.Tensor, ...]) -> None:
            self._free(unit)
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(lambda _: self._gather(unit))

        module.register_forward_pre_hook(lambda *_: self._gather(unit))
        module.register_forward_hook(after)

    def _gather(self, unit: _Unit) -> None:
        if not unit.gathered:
            unit.whole.untyped_storage().resize_(unit.whole.numel() * unit.whole.element_size())
            self._shards.start_all_gather(unit.shard.data, unit.whole).wait()
            unit.gathered = True

    def _free(self, unit: _Unit) -> None:
        unit.whole.untyped_storage().resize_(0)
        unit.gathered = False
