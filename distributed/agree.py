"""Ranks that must find the same: what one of them sees or refuses, all do, so that none waits for another in vain."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distributed.errors import LayoutError
from distributed.groups import Mesh


def united(mesh: Mesh, mine: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The union over all ranks of dicts of dicts with the same outer keys."""
    everyone: list[dict[str, dict[str, Any]]] = [mine]
    if mesh.rank.world_size > 1:
        everyone = [{} for _ in range(mesh.rank.world_size)]
        dist.all_gather_object(everyone, mine)
    return {part: {key: value for one in everyone for key, value in one[part].items()} for part in mine}


def together(mesh: Mesh, check: Callable[[], None]) -> None:
    """Runs `check` on all ranks; what the first of them finds wrong is raised on all, as a `LayoutError`."""
    said = ""
    try:
        check()
    except (LayoutError, OSError) as error:
        said = _sentence(error)
    everyone = [said]
    if mesh.rank.world_size > 1:
        everyone = [""] * mesh.rank.world_size
        dist.all_gather_object(everyone, said)
    for sentence in filter(None, everyone):
        raise LayoutError(sentence)


def on_first(mesh: Mesh, act: Callable[[], Any]) -> Any:
    """Runs `act` on the first rank; its result, or its failure as a `LayoutError`, on all."""
    answer: list[Any] = [None, ""]
    if mesh.rank.first:
        try:
            answer[0] = act()
        except (LayoutError, OSError) as error:
            answer[1] = _sentence(error)
    if mesh.rank.world_size > 1:
        dist.broadcast_object_list(answer, src=0)
    if answer[1]:
        raise LayoutError(answer[1])
    return answer[0]


def _sentence(error: LayoutError | OSError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
