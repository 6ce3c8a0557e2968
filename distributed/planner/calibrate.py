"""Calibration of the present machine: starts ranks, times the sweeps on them, fits one machine description."""

import os
import re
import socket
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from distributed.planner.errors import PlanError
from distributed.planner.fit import Points, fitted

CALIBRATED_ROUNDS = 7


def machine_name() -> str:
    """This machine's name, as a file may be called."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).strip("-") or "this-machine"


def calibrate(name: str, most_ranks: int = 4, report: Callable[[str], None] = lambda _: None,
              rounds: int = CALIBRATED_ROUNDS) -> dict[str, Any]:  # fmt: skip
    """The description of the machine this runs on, as `cluster_from` reads it; a minute, `report` gets a line a part.

    Layers are timed on as many ranks as there are cores (or GPUs) at once, collectives on 2 and more ranks up to
    `most_ranks`. `PlanError` where the timings say nothing, `RankFailed` where a rank fails.
    """
    import torch

    from distributed.launch import launch
    from distributed.planner.sweeps import time_collectives, time_kernels

    if most_ranks < 2:
        raise PlanError(f"collectives of {most_ranks} rank(s) cannot be timed; at least 2 are needed")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cores = 0 if gpus else len(os.sched_getaffinity(0))
    side_by_side = min(gpus or cores, most_ranks)
    report(f"products and layers on {side_by_side} rank(s) at once")
    points = _over_ranks(launch(time_kernels, (rounds,), side_by_side))
    for axes, axis in _groups(min(most_ranks, gpus) if gpus else most_ranks):
        ranks = 1
        for size in re.findall(r"\d+", axes):
            ranks *= int(size)
        report(f"collectives along {axis} of {axes}")
        timed = _over_ranks(launch(time_collectives, (axes, axis, rounds), ranks))
        points |= {(*key, ranks) if key[0] == "overlap" else key: value for key, value in timed.items()}
    return {"name": name, **fitted(name, points, cores, _memory_gib(gpus, max(1, cores)))}


def _groups(most: int) -> list[tuple[str, str]]:
    """Meshes and axes: all ranks as one group, and pairs within the largest world."""
    worlds = [world for world in (2, 4, 8) if world <= most]
    whole = [(f"tp={world}", "tp") for world in worlds]
    return whole + ([(f"dp_shard={worlds[-1] // 2},tp=2", "tp")] if worlds[-1] > 2 else [])


def _over_ranks(found: Sequence[Points]) -> Points:
    return {
        key: (statistics.median(one[key][0] for one in found), max(one[key][1] for one in found)) for key in found[0]
    }


def _memory_gib(gpus: int, cores: int) -> float:
    """Memory of one GPU, or a core's share of the machine's."""
    if gpus:
        import torch

        return torch.cuda.get_device_properties(0).total_memory / 2**30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 / cores
