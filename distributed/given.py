"""The place that torchrun or a scheduler gave this process, read from its environment."""

import os
from dataclasses import dataclass

from distributed.errors import LayoutError

MOST_RANKS = 1_000_000
MOST_LOCAL_RANKS = 1024
"""More processes than this on one machine are a slip of the finger."""


@dataclass(frozen=True)
class GivenPlace:
    """Which rank of how many this process is to be, in the world and on its machine."""

    index: int
    world_size: int
    local_index: int
    local_ranks: int


def given_place(nproc: int = 1) -> GivenPlace | None:
    """This process's place when RANK and WORLD_SIZE are set, else None.

    `LayoutError` names the variable that cannot be, or both numbers when `nproc` ranks are asked for and it is another.
    """
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return None
    world_size = _number("WORLD_SIZE", 1, MOST_RANKS)
    index = _number("RANK", 0, world_size - 1)
    if nproc not in (1, world_size):
        raise LayoutError(f"{nproc} ranks were asked for, but the launcher of this process started {world_size}")
    if world_size > 1:
        if not os.environ.get("MASTER_ADDR"):
            raise LayoutError(
                f"MASTER_ADDR is not set: rank {index} of {world_size} cannot know where to meet the others"
            )
        _number("MASTER_PORT", 1, 65_535)
    return GivenPlace(index, world_size, *local_place(1))


def given_world_size(nproc: int) -> int:
    """The ranks there will be: those of torchrun when it started this process, else `nproc`."""
    place = given_place(nproc)
    if place is not None:
        return place.world_size
    if not 1 <= nproc <= MOST_LOCAL_RANKS:
        raise LayoutError(f"cannot start {nproc} ranks on one machine; it can be 1 to {MOST_LOCAL_RANKS}")
    return nproc


def local_place(ranks: int) -> tuple[int, int]:
    """(this process's number on its machine, how many there are): LOCAL_RANK and LOCAL_WORLD_SIZE, else 0 and `ranks`."""
    local_ranks = _number("LOCAL_WORLD_SIZE", 1, MOST_RANKS, ranks)
    most = local_ranks if "LOCAL_WORLD_SIZE" in os.environ else MOST_RANKS
    return _number("LOCAL_RANK", 0, most - 1, 0), local_ranks


def _number(name: str, least: int, most: int, otherwise: int | None = None) -> int:
    said = os.environ.get(name)
    if said is None and otherwise is not None:
        return otherwise
    text = (said or "").strip()
    # Python refuses to read very long numbers with an error of its own.
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        found = "not set" if said is None else repr(said)
        raise LayoutError(f"the launcher's {name} is {found}; it must be a whole number from {least} to {most}")
    return int(text)
