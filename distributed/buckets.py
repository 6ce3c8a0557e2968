"""Which units of a model travel together where nothing is sharded."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

BUCKET_BYTES = 8 * 2**20
"""A collective of less is mostly its start, above all where ranks share cores."""


def inside(prefix: str, named: "Mapping[str, nn.Parameter]") -> list[str]:
    """The parameters of the module called `prefix`."""
    return [name for name in named if name.startswith(f"{prefix}.")]


def buckets(prefixes: Sequence[str], named: "Mapping[str, nn.Parameter]", alone: Sequence[str], enough: int
            ) -> list[list[str]]:  # fmt: skip
    """`prefixes` in their order, neighbours together until they have `enough` bytes; those of `alone` by themselves."""
    found: list[list[str]] = []
    room = 0
    for prefix in prefixes:
        if room > 0 and prefix not in alone:
            found[-1].append(prefix)
        else:
            found.append([prefix])
            room = enough
        held = sum(named[name].numel() * named[name].element_size() for name in inside(prefix, named))
        room = 0 if prefix in alone else room - held
    return found
