"""How long this rank stood still for others, axis by axis: what no computation hid of the communication."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_CARVED = re.compile(r"^(?P<whole>.+)\.(?P<part>inner|outer)\d+$")


def axis_of(name: str) -> str:
    """The axis that a group of a mesh works for: tp, cp, ep, dp, pp, or "world" for groups over all of them."""
    carved = _CARVED.match(name)
    if carved and carved["whole"].startswith("dp_shardxcp"):
        return "ep" if carved["part"] == "inner" else "dp"
    axes = (carved["whole"] if carved else name).split("x")
    if "pp" in axes:
        return "pp" if len(axes) == 1 else "world"
    if any(axis.startswith("dp") for axis in axes):
        return "dp"
    return axes[0]


@dataclass
class Waits:
    """Seconds by group name since the last `taken`; the groups of one mesh share it. Point-to-point messages of a pipeline
    stand under "bubble": whether one waits for the message or for the one who computes it cannot be told apart.

    On a GPU a wait is the stream's and not the process's: a profiler trace tells there.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Counts the time inside."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begun)

    def add(self, name: str, seconds: float) -> None:
        """Counts what was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """By axis, and from now on anew."""
        found: dict[str, float] = {}
        for name, seconds in self.seconds.items():
            axis = name if name == "bubble" else axis_of(name)
            found[axis] = found.get(axis, 0.0) + seconds
        self.seconds.clear()
        return found
