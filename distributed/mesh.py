"""The parallel layout: how many ranks lie along each mesh axis, which rank stands where, and who is with whom in a group."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distributed.errors import LayoutError

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Mesh axes, outermost first: neighbouring ranks differ in tp."""

DATA_AXES = ("dp_replicate", "dp_shard", "cp")
"""Axes whose ranks hold different tokens: gradients are summed over them."""


@dataclass(frozen=True)
class ParallelLayout:
    """Ranks per axis, outermost first: pipeline, replicated data, sharded data, context, tensor.

    Experts are sharded over `dp_shard` x `cp` (x `tp`); they are no axis of their own.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for axis, size in dataclasses.asdict(self).items():
            if size < 1:
                raise LayoutError(f"layout axis {axis} is {size}; every axis has at least 1 rank")

    @classmethod
    def parse(cls, text: str) -> "ParallelLayout":
        """The layout of a text such as "dp_replicate=2" or "tp=2,dp_shard=2"; axes left out are 1; "" is one rank."""
        sizes: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, size = (piece.strip() for piece in part.partition("="))
            if name not in AXES or not equals:
                raise LayoutError(f"layout part {part!r} is not AXIS=RANKS; axes: {', '.join(AXES)}")
            if name in sizes:
                raise LayoutError(f"layout {text!r} names axis {name} twice")
            try:
                sizes[name] = int(size)
            except ValueError:
                raise LayoutError(f"layout axis {name} is {size!r}, which is not a whole number") from None
        return cls(**sizes)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ranks per axis, in the order of `AXES`."""
        return dataclasses.astuple(self)

    def check(self, world_size: int) -> None:
        """`LayoutError` with both numbers unless the axes multiply to `world_size`."""
        if self.world_size != world_size:
            raise LayoutError(f"layout {self} has {self.world_size} ranks, but {world_size} were started")

    def only(self, *axes: str, what: str) -> "ParallelLayout":
        """This layout, or a `LayoutError` when an axis other than `axes` is above 1 in what cannot use it."""
        for axis, size in dataclasses.asdict(self).items():
            if size > 1 and axis not in axes:
                raise LayoutError(
                    f"layout axis {axis}={size} is not built yet for {what}; axes that can be above 1: {', '.join(axes)}"
                )
        return self

    def coordinate(self, rank: int) -> dict[str, int]:
        """Where global rank number `rank` stands along each axis."""
        if not 0 <= rank < self.world_size:
            raise LayoutError(f"layout {self} has ranks 0 to {self.world_size - 1}; there is no rank {rank}")
        place: dict[str, int] = {}
        for axis, size in reversed(list(zip(AXES, self.sizes))):
            rank, place[axis] = divmod(rank, size)
        return {axis: place[axis] for axis in AXES}

    def rank_at(self, coordinate: Mapping[str, int]) -> int:
        """The global rank at `coordinate`; axes left out are 0."""
        rank = 0
        for axis, size in zip(AXES, self.sizes):
            index = coordinate.get(axis, 0)
            if not 0 <= index < size:
                raise LayoutError(f"layout {self} has {size} rank(s) along {axis}; there is no index {index}")
            rank = rank * size + index
        return rank

    def members(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """All ranks that differ from `rank` along `axes` alone, itself among them, in mesh order."""
        place = self.coordinate(rank)
        varying = [axis for axis in AXES if axis in axes]
        ranges = [range(getattr(self, axis)) for axis in varying]
        return tuple(self.rank_at({**place, **dict(zip(varying, indices))}) for indices in itertools.product(*ranges))

    def groups(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """The member lists of all groups along `axes`; together they hold every rank once."""
        return sorted({self.members(rank, axes) for rank in range(self.world_size)})

    def placement(self, ranks_per_node: int) -> str:
        """Which rank stands where, a line per node, and for each axis whether its groups stay inside a node."""
        if ranks_per_node < 1:
            raise LayoutError(f"{ranks_per_node} ranks per node; there must be at least 1")
        lines = []
        for first in range(0, self.world_size, ranks_per_node):
            ranks = range(first, min(first + ranks_per_node, self.world_size))
            places = (" ".join(f"{axis}{index}" for axis, index in self._named(rank)) or "alone" for rank in ranks)
            lines.append(f"node {first // ranks_per_node}: " + " | ".join(f"{r}: {p}" for r, p in zip(ranks, places)))
        for axis, size in zip(AXES, self.sizes):
            if size > 1:
                inside = all(len({rank // ranks_per_node for rank in group}) == 1 for group in self.groups([axis]))
                lines.append(f"{axis}={size}: {'inside a node' if inside else 'ACROSS nodes'}")
        return "\n".join(lines)

    def _named(self, rank: int) -> Iterator[tuple[str, int]]:
        return ((axis, index) for axis, index in self.coordinate(rank).items() if getattr(self, axis) > 1)

    def __str__(self) -> str:
        named = [f"{axis}={size}" for axis, size in dataclasses.asdict(self).items() if size > 1]
        return ",".join(named) or "dp_replicate=1"


@dataclass(frozen=True)
class ModelSizes:
    """What of a model's shape and batch a layout must divide. `sequence` is tokens per sample; `experts` are sparse ones,
    over ep, `dense_experts` those of a mixture that uses all, over tp; `fused_qkv`: queries, keys and values in one projection."""

    heads: int
    kv_heads: int
    layers: int
    vocabulary: int
    feed_forward: int
    sequence: int
    experts: int = 0
    dense_experts: int = 0
    fused_qkv: bool = False


def nearest_legal(layout: ParallelLayout, sizes: ModelSizes, ep: int = 1, ep_over_tp: bool = False
                  ) -> tuple[ParallelLayout, int]:  # fmt: skip
    """The legal layout of the same world size at the least log distance, and the most expert ranks up to `ep` it takes."""
    world = layout.world_size
    shapes = list(_shapes(world, len(AXES)))
    # Experts lie over a divisor of the world, however many were asked for.
    for expert_ranks in (size for size in reversed(_divisors(world)) if size <= ep):
        legal = [c for shape in shapes if not problems(c := ParallelLayout(*shape), sizes, expert_ranks, ep_over_tp)]
        if legal:
            return min(legal, key=lambda c: (_distance(c, layout), tuple(reversed(c.sizes)))), expert_ranks
    raise LayoutError(f"no layout of {world} ranks fits {sizes}")


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _shapes(world: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All sizes of so many axes that multiply to `world`."""
    if axes == 1:
        yield (world,)
        return
    for size in _divisors(world):
        yield from ((size, *rest) for rest in _shapes(world // size, axes - 1))


def _distance(one: ParallelLayout, other: ParallelLayout) -> float:
    return round(sum(abs(math.log(a / b)) for a, b in zip(one.sizes, other.sizes)), 9)


def problems(layout: ParallelLayout, sizes: ModelSizes, ep: int = 1, ep_over_tp: bool = False) -> list[str]:
    """Why `layout` cannot hold a model of `sizes` with its experts over `ep` ranks: one clause each, with the numbers.

    `ep_over_tp`: the experts lie over neighbours inside dp_shard x cp x tp, and not inside dp_shard x cp.
    """
    found = []
    if sizes.heads % layout.tp:
        found.append(f"{sizes.heads} heads do not divide over tp={layout.tp}")
    elif sizes.kv_heads % layout.tp and layout.tp % sizes.kv_heads:
        found.append(f"{sizes.kv_heads} key-value heads and tp={layout.tp}: neither divides the other")
    elif sizes.fused_qkv and sizes.kv_heads % layout.tp:
        found.append(f"{sizes.kv_heads} key-value heads of fused projections do not divide over tp={layout.tp}")
    for name, size in (("vocabulary entries", sizes.vocabulary), ("feed-forward channels", sizes.feed_forward)):
        if size % layout.tp:
            found.append(f"{size} {name} do not divide over tp={layout.tp}")
    if layout.cp > 1 and sizes.sequence % (2 * layout.cp):
        found.append(f"{sizes.sequence} tokens do not divide into 2 x cp={2 * layout.cp} chunks")
    elif sizes.sequence // layout.cp % layout.tp:
        found.append(f"{sizes.sequence // layout.cp} tokens a rank do not divide over tp={layout.tp}")
    if sizes.dense_experts % layout.tp:
        found.append(f"{sizes.dense_experts} experts of the dense mixture do not divide over tp={layout.tp}")
    if sizes.layers < layout.pp:
        found.append(f"{sizes.layers} layers are fewer than pp={layout.pp} stages")
    if ep > 1:
        if not sizes.experts:
            found.append(f"ep={ep}, but the model has no sparse experts")
        if sizes.experts % ep:
            found.append(f"{sizes.experts} experts do not divide over ep={ep}")
        names = ("dp_shard", "cp", "tp") if ep_over_tp else ("dp_shard", "cp")
        ranks = math.prod(getattr(layout, name) for name in names)
        if ranks % ep:
            found.append(f"ep={ep} does not divide {' x '.join(names)} = {ranks}")
    return found


def refuse_unless_legal(layout: ParallelLayout, sizes: ModelSizes, ep: int = 1, ep_over_tp: bool = False) -> None:
    """`LayoutError` with every number that is in the way and the nearest legal layout; before any process starts."""
    found = problems(layout, sizes, ep, ep_over_tp)
    if found:
        near, expert_ranks = nearest_legal(layout, sizes, ep, ep_over_tp)
        raise LayoutError(
            f"layout {layout} cannot hold this model: {'; '.join(found)}; "
            f"the nearest legal layout is {near}" + (f" with ep={expert_ranks}" if ep > 1 else "")
        )
