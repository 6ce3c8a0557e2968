"""The most bytes of tensors alive at once, as torch's profiler of memory sees them."""

import bisect
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.beside_torch.workload import Builder, Workload
from distributed import Rank

MIB = 2**20
_STEP, _STEPS = "a step to be measured", 4


def peak_mib(rank: Rank, builder: Builder, work: Workload) -> float:
    """From before the model to the end of a fourth step, in MiB: of the worst rank.

    Counted at torch's allocator, so what the system keeps of freed memory plays no part. The profiler does not hear of what
    a thread of gloo's frees, which is whatever such a thread lets go of last: this would pile up, by chance more on one
    rank than on another. Such a tensor is taken to live until its address is given out again, the third collective after it
    begins (no side has more under way) or its step ends. As this can but add, the step that counts is the least of those
    after the first, which makes the optimizer's state.
    """
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = builder(rank, work)
        for number in range(_STEPS):
            with torch.profiler.record_function(_STEP):
                step(number)
        del step
        gc.collect()
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    changes: list[tuple[int, int, int]] = []
    ends: list[int] = []
    collectives: list[int] = []
    for event in _all(profile.profiler.kineto_results.experimental_event_tree()):
        extra = event.typed[1]
        if event.name == _STEP:
            ends.append(event.end_time_ns)
        elif event.name.startswith("c10d::"):
            collectives.append(event.start_time_ns)
        elif event.name == "[memory]":
            changes.append((event.start_time_ns, extra.ptr, extra.alloc_size))
    until_first, *later = most_alive(changes, sorted(ends), sorted(collectives))
    per_rank = torch.zeros(rank.world_size)
    per_rank[rank.index] = max(until_first, min(later)) / MIB
    return rank.sum_(per_rank).max().item()


def most_alive(
    changes: Iterable[tuple[int, int, int]], ends: Sequence[int], collectives: Sequence[int] = ()
) -> list[int]:
    """Bytes at the peak until each of `ends` (rising) from the one before, of (moment, address, bytes; below 0: freed).

    A free that was not heard of came by the next of `ends` and by the third next of `collectives` (rising).
    """
    alive: dict[int, tuple[int, int]] = {}
    events: list[tuple[int, int]] = []

    def freed_unheard(born: int, held: int, by: int | None) -> None:
        place = bisect.bisect_left(ends, born)
        third = bisect.bisect_right(collectives, born) + 2
        latest = (by, *ends[place : place + 1], *collectives[third : third + 1])
        moments = [moment for moment in latest if moment is not None]
        if moments:
            events.append((min(moments), -held))

    for moment, address, size in sorted(changes):
        before = alive.pop(address, None)
        if before is not None and size < 0:
            events.append((moment, -before[1]))
        elif before is not None:
            freed_unheard(*before, moment)
        if size > 0:
            alive[address] = (moment, size)
            events.append((moment, size))
    for born, held in alive.values():
        freed_unheard(born, held, None)
    peaks, now = [0] * len(ends), 0
    for moment, change in sorted(events):
        now += change
        place = bisect.bisect_left(ends, moment)
        if place < len(ends):
            peaks[place] = max(peaks[place], now)
    return peaks


def _all(events: Iterable[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        yield event
