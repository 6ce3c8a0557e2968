"""The parallel layout: how many ranks lie along each mesh axis. Their product is the world size."""

import dataclasses
import math
from dataclasses import dataclass

from distributed.errors import LayoutError

_BUILT = ("dp_replicate",)


@dataclass(frozen=True)
class ParallelLayout:
    """Ranks per axis, outermost first: pipeline, replicated data, sharded data, context, tensor."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for axis, size in dataclasses.asdict(self).items():
            if size < 1:
                raise LayoutError(f"layout axis {axis} is {size}; every axis has at least 1 rank")
            if size > 1 and axis not in _BUILT:
                raise LayoutError(
                    f"layout axis {axis}={size} is not built yet; axes that can be above 1: {', '.join(_BUILT)}"
                )

    @classmethod
    def parse(cls, text: str) -> "ParallelLayout":
        """The layout of a text such as "dp_replicate=2" or "tp=2,dp_shard=2"; axes left out are 1; "" is one rank."""
        axes = [field.name for field in dataclasses.fields(cls)]
        sizes: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, size = (piece.strip() for piece in part.partition("="))
            if name not in axes or not equals:
                raise LayoutError(f"layout part {part!r} is not AXIS=RANKS; axes: {', '.join(axes)}")
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
        return math.prod(dataclasses.astuple(self))

    def check(self, world_size: int) -> None:
        """`LayoutError` with both numbers unless the axes multiply to `world_size`."""
        if self.world_size != world_size:
            raise LayoutError(f"layout {self} has {self.world_size} ranks, but {world_size} were started")

    def __str__(self) -> str:
        named = [f"{axis}={size}" for axis, size in dataclasses.asdict(self).items() if size > 1]
        return ",".join(named) or "dp_replicate=1"
