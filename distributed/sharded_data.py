"""Data parallelism over sharded states: ZeRO 0 to 3 and hybrid shard, a flat buffer per unit (block) of the model.

ZeRO 0 keeps all states on every rank and sums gradients over the data ranks. 1 shards the optimizer's states, 2 gradients
too, 3 parameters too: gathered before a unit's forward and again before its backward, the next unit's while this one
computes (in the backward from its middle on), and freed after each. Shards lie over `dp_shard` x `cp`; over `dp_replicate`
there are copies (hybrid shard), and gradient shards are summed across them. Rajbhandari et al. 2020, ZeRO.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from distributed.buckets import BUCKET_BYTES, buckets, inside
from distributed.exchange import alone
from distributed.flat_unit import FlatUnit, Held, in_a_row
from distributed.groups import Group, Mesh
from distributed.placement import Placement

FORWARD, BACKWARD = 0, 1


class ShardedData:
    """Holds a model's parameters for the optimizer and brings gradients together.

    A step: `begin(last)` before each micro-batch's forward and backward, `finish()` after the last one, then the
    optimizer's step on `parameters()`, then `after_step()`. Gradients are sums over the data ranks: divide the loss, not
    the gradient. A pipeline, whose micro-batches overlap, begins once with `by_hand` and calls `collect`.
    """

    def __init__(self, model: nn.Module, units: Mapping[str, nn.Module], mesh: Mesh, placements: Mapping[str, Placement],
                 zero: int = 0, *, compute: torch.dtype | None = None, ends: Sequence[str] = (),
                 runs: Sequence[Sequence[str]] | None = None, bucket_bytes: int = BUCKET_BYTES):  # fmt: skip
        """`units`: modules by name that return a tuple of tensors and whose parameters go together; the rest of `model` is
        one unit, gathered for the whole of a micro-batch. So are those named in `ends`, each a unit of its own. `runs`:
        names of units that are used one after the other (by default all of them).

        `compute`: the model computes in this type, bfloat16 say; gradients add up, are reduced and update the parameters in
        the type that they have now. `bucket_bytes`: where nothing is sharded, neighbouring units travel together until they
        are so many.
        """
        if zero not in (0, 1, 2, 3):
            raise ValueError(f"zero is {zero}, not 0, 1, 2 or 3")
        self._mesh, self._zero, self._compute = mesh, zero, compute
        # The hooks on the model's parameters know this weakly, and a model must not train on without it.
        model.__dict__["sharded_data"] = self
        self._shards: Group = mesh.group("dp_shard", "cp")
        self._last, self._by_hand = True, False
        named = dict(model.named_parameters())
        taken: set[str] = set()
        self._units: list[FlatUnit] = []
        self._under_way: FlatUnit | None = None
        self._by_name: dict[str, list[FlatUnit]] = {}
        together = bucket_bytes if zero == 0 and compute is None else 0
        for prefixes in buckets(list(units), named, ends, together):
            names = [name for prefix in prefixes for name in inside(prefix, named)]
            taken.update(names)
            made = self._add(names, named, placements)
            for prefix in prefixes:
                self._by_name[prefix] = made
                if prefix not in ends:
                    for unit in self._freed(prefix):
                        self._free_between_uses(units[prefix], unit)
        rest = self._add([name for name in named if name not in taken], named, placements)
        self._ends = [*rest, *(unit for prefix in ends for unit in self._by_name[prefix])]
        for unit in self._ends:
            if unit.zero == 3:
                model.register_forward_pre_hook(lambda *_, unit=unit: unit.gather())
        for run in [list(units)] if runs is None else runs:
            in_a_row([unit for prefix in run if prefix not in ends for unit in self._freed(prefix)])

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer updates: the parameters, or this rank's flat shards of them."""
        return [parameter for unit in self._units for parameter in ([unit.shard] if unit.zero else unit.parameters)]

    def parameters_of(self, prefix: str) -> list[nn.Parameter]:
        """Those of the units of one name."""
        return [p for unit in self._by_name[prefix] for p in ([unit.shard] if unit.zero else unit.parameters)]

    def begin(self, last: bool, by_hand: bool = False) -> None:
        """Before a micro-batch. Only the `last` one's backward sends, unless gradients are sharded (ZeRO 2 and 3)."""
        self._last, self._by_hand = last, by_hand
        for unit in self._units:
            unit.ready, unit.launched = 0, False

    def collect(self, prefixes: Iterable[str]) -> None:
        """By hand, after a micro-batch's backward through the units of these names: takes their gradients in."""
        for unit in (unit for prefix in prefixes for unit in self._by_name[prefix]):
            if unit.narrow:
                unit.gradients()
            if unit.zero >= 2 and unit not in self._ends and unit.has_gradients():
                self._launch(unit)

    def gather(self, prefixes: Iterable[str]) -> None:
        """By hand: the parameters of these units, for a computation that no hook announces (ZeRO 3)."""
        for prefix in prefixes:
            for unit in self._freed(prefix):
                unit.gather()

    def free(self, prefixes: Iterable[str]) -> None:
        """By hand: lets go of them again."""
        for prefix in prefixes:
            for unit in self._freed(prefix):
                unit.free()

    def gather_ends(self) -> None:
        """By hand: the parameters of what is not freed between uses, until `finish`."""
        for unit in self._ends:
            unit.gather()

    def finish(self) -> None:
        """Waits until every gradient is there: `.grad` of `parameters()` is the sum over all data ranks."""
        for unit in self._units:
            if not unit.launched:
                self._launch(unit)
            self._settle(unit)
            if unit.zero == 3:
                unit.free()

    def after_step(self) -> None:
        """After the optimizer, or whatever else changed `parameters()`: gives everyone the new ones (ZeRO 1 and 2; ZeRO 3
        gathers when it needs them)."""
        late = [unit for unit in self._units if unit.zero in (1, 2)]
        for pending in [u.shards.start_all_gather(u.shard.data.to(u.whole.dtype), u.whole) for u in late]:
            pending.wait()
        for unit in self._units:
            if unit.zero == 3:
                unit.free()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """In place of `after_step` when the step is skipped."""
        for parameter in self.parameters():
            parameter.grad = None

    def held(self) -> Iterable[Held]:
        """What of which parameter this rank's `parameters()` hold, by global name."""
        return (held for unit in self._units for held in unit.held())

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
                flat = unit.shards.all_gather(torch.zeros_like(unit.shard) if local is None else local)
            else:
                pieces = [p.grad if gradients else p.data for p in unit.parameters]
                flat = torch.cat([torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1)
                                  for p, g in zip(unit.parameters, pieces)])  # fmt: skip
            for name, parameter, (start, end) in zip(unit.names, unit.parameters, unit.offsets()):
                found[name] = flat[start:end].view(parameter.shape).clone()
        return found

    def bytes_held(self) -> dict[str, int]:
        """Bytes of parameters, gradients and shards that this rank holds now."""
        held = [unit.bytes_held() for unit in self._units]
        return {what: sum(one[what] for one in held) for what in held[0]}

    def _add(self, names: list[str], named: Mapping[str, nn.Parameter], placements: Mapping[str, Placement]
             ) -> list[FlatUnit]:  # fmt: skip
        """Makes a unit of `names`, and one of the experts among them."""
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
        for unit in made:
            if unit.zero == 3:
                unit.free()
        return made

    def _unit(self, names: list[str], named: Mapping[str, nn.Parameter], placements: Mapping[str, Placement], zero: int,
              copies: tuple[Group, ...]) -> FlatUnit:  # fmt: skip
        shards = self._shards if zero else alone()
        if self._compute is not None:
            # Whole on every rank, but the optimizer has the wide type: a shard over this rank alone.
            zero = max(zero, 1)
        unit = FlatUnit.of(names, [named[name] for name in names], [placements[name] for name in names], zero, shards, copies,
                           self._compute)  # fmt: skip
        if not unit.sends_nothing:
            # PyTorch holds these hooks where Python's collector does not look: whatever they hold would live for ever.
            me, its = weakref.ref(self), weakref.ref(unit)
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(lambda p: _told(me, its, p))
        return unit

    def _freed(self, prefix: str) -> list[FlatUnit]:
        return [unit for unit in self._by_name[prefix] if unit.zero == 3]

    def _one_ready(self, unit: FlatUnit, parameter: nn.Parameter) -> None:
        if unit.narrow:
            unit.absorb(parameter)
        unit.ready += 1
        if unit.zero == 3 and not self._by_hand and unit.ready == (len(unit.parameters) + 1) // 2:
            # Not before: as its backward begins, a block has all its activations, and the next one would lie on top.
            self._start_following(unit, BACKWARD)
        if not self._by_hand and unit.ready == len(unit.parameters) and (self._last or unit.zero >= 2):
            self._launch(unit)

    def _launch(self, unit: FlatUnit) -> None:
        """Starts a unit's reduction while the backward goes on with the units before it."""
        unit.launched = True
        self._sum_partial(unit)
        if unit.sends_nothing:
            for parameter in unit.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            return
        if unit.zero == 3:
            unit.free()
        flat = unit.flat_gradient()
        for parameter, (start, end) in zip(unit.parameters, unit.offsets()):
            # What was gathered into one buffer is not needed beside it.
            parameter.grad = None if unit.zero else flat[start:end].view(parameter.shape)
        if unit.zero:
            self._settle(unit)
        if unit.zero and unit.shards.size > 1:
            unit.pending.append(unit.shards.start_reduce_scatter(flat))
        else:
            for group in unit.copies[:-1]:
                group.all_reduce_(flat)
            unit.pending.append(unit.copies[-1].start_all_reduce_(flat))
        if unit.zero:
            # Until it is taken in, a reduction keeps the whole gradient: two at once, or all would be held as in ZeRO 0.
            if self._under_way is not None and self._under_way is not unit:
                self._settle(self._under_way)
            self._under_way = unit

    def _sum_partial(self, unit: FlatUnit) -> None:
        groups = {p.summed_over.name: p.summed_over for p in unit.placements if p.summed_over is not None}
        if not groups:
            return
        found = unit.gradients()
        for group in groups.values():
            gradients = [
                gradient
                for gradient, placement in zip(found, unit.placements)
                if placement.summed_over is group and gradient is not None
            ]
            if not gradients:
                continue
            flat = group.all_reduce_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            for gradient, piece in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(piece.view_as(gradient))

    def _settle(self, unit: FlatUnit) -> None:
        """Takes in what is under way: into `.grad` of the parameters, or added to the shard's."""
        for pending in unit.pending:
            flat = pending.wait()
            if unit.zero:
                if unit.shards.size > 1:
                    for group in unit.copies:
                        flat = group.all_reduce_(flat)
                unit.shard.grad = flat if unit.shard.grad is None else unit.shard.grad + flat
        unit.pending.clear()

    def _start_following(self, unit: FlatUnit, direction: int) -> None:
        following = unit.neighbours[direction]
        if following is not None:
            following.start_gather()

    def _free_between_uses(self, module: nn.Module, unit: FlatUnit) -> None:
        def use(direction: int) -> None:
            unit.gather()
            if direction == FORWARD or self._by_hand:
                self._start_following(unit, direction)

        def after(_: nn.Module, __: object, outputs: tuple[torch.Tensor, ...]) -> None:
            unit.free()
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(lambda _: use(BACKWARD))

        module.register_forward_pre_hook(lambda *_: use(FORWARD))
        module.register_forward_hook(after)


def _told(holder: "weakref.ref[ShardedData]", its: "weakref.ref[FlatUnit]", parameter: nn.Parameter) -> None:
    data, unit = holder(), its()
    if data is None or unit is None:
        raise RuntimeError("a gradient came for a model whose ShardedData is gone: keep the model that was given to it")
    data._one_ready(unit, parameter)
