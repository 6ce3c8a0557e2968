"""A zero-bubble schedule made for given times and a memory limit, greedily (after Qi et al. 2023, section 3).

Each rank, whenever it is free: a B that can start, else an F if memory allows, else a W to fill the gap. A few variants
of when a W may fill a gap and of how many forwards start early are tried, and the one with the smallest bubble is kept.
"""

import heapq
from collections.abc import Sequence

from distributed.planner.errors import PlanError
from distributed.planner.schedules import Op, Schedule, Slot
from distributed.planner.simulate import StageCost, Timeline, simulate


def automatic_schedule(
    ranks: int, micro_batches: int, costs: Sequence[StageCost], p2p_s: float, memory: float, weight_share: float = 0.5
) -> tuple[Schedule, Timeline]:
    """The best schedule found and its timeline. `memory` in micro-batches' activations a rank (p: ZB-1p, 2p: ZB-2p);
    `weight_share` is the part of them that a weight gradient still needs after B.
    """
    if memory < 1:
        raise PlanError(f"a memory limit of {memory} micro-batches leaves no room for one")
    best: tuple[Schedule, Timeline] | None = None
    for early in (1.0, 2.0):
        for gap in (0.0, 0.3, 0.6):
            schedule = _greedy(ranks, micro_batches, costs, p2p_s, memory, weight_share, early, gap)
            timeline = simulate(schedule, costs, p2p_s)
            if best is None or timeline.bubble_s < best[1].bubble_s - 1e-12:
                best = schedule, timeline
    assert best is not None
    return best


def _greedy(p: int, m: int, costs: Sequence[StageCost], p2p_s: float, memory: float, weight_share: float,
            early: float, gap: float) -> Schedule:  # fmt: skip
    """One greedy pass. `early` x the straight distance to the end is how many forwards a rank may be ahead of its
    backwards; a W starts only if nothing else is known to become ready within `gap` x its time.
    """
    done: dict[tuple[str, int, int], float] = {}
    count = [{"F": 0, "B": 0, "W": 0} for _ in range(p)]
    held = [0.0] * p
    orders: list[list[Slot]] = [[] for _ in range(p)]
    free_at = [0.0] * p
    events = [(0.0, rank) for rank in range(p)]
    while events:
        now, rank = heapq.heappop(events)
        if now < free_at[rank] - 1e-12:
            continue
        c, cost = count[rank], costs[rank]
        starts = {"F": _forward_at(rank, c["F"], m, done, p2p_s), "B": _backward_at(rank, c["B"], p, done, p2p_s)}
        room = held[rank] + 1 <= memory + 1e-9
        ahead = c["F"] - c["B"] < max(1, round(early * (p - rank)))
        if not room or not ahead:
            starts["F"] = None
        kind, later = None, []
        for name in ("B", "F"):
            at = starts[name]
            if at is not None and at <= now + 1e-12:
                kind = name
                break
            if at is not None:
                later.append(at)
        if kind is None and c["W"] < c["B"]:
            soon = min(later, default=float("inf"))
            full = not room and starts["B"] is None
            if full or soon - now >= gap * cost.backward_weight:
                kind = "W"
        if kind is None:
            if later:
                heapq.heappush(events, (min(later), rank))
            continue
        micro = c[kind]
        c[kind] += 1
        orders[rank].append((Op(kind, micro, rank),))
        took = {"F": cost.forward, "B": cost.backward_input, "W": cost.backward_weight}[kind]
        held[rank] += {"F": 1.0, "B": weight_share - 1.0, "W": -weight_share}[kind]
        end = now + took
        done[kind, micro, rank] = free_at[rank] = end
        heapq.heappush(events, (end, rank))
        neighbour = rank + 1 if kind == "F" else rank - 1
        if kind != "W" and 0 <= neighbour < p:
            heapq.heappush(events, (max(end + p2p_s, free_at[neighbour]), neighbour))
    return Schedule("automatic", tuple(tuple(order) for order in orders), (tuple(range(p)),))


def _forward_at(rank: int, micro: int, m: int, done: dict[tuple[str, int, int], float], p2p_s: float) -> float | None:
    if micro >= m:
        return None
    if rank == 0:
        return 0.0
    before = done.get(("F", micro, rank - 1))
    return None if before is None else before + p2p_s


def _backward_at(rank: int, micro: int, p: int, done: dict[tuple[str, int, int], float], p2p_s: float) -> float | None:
    own = done.get(("F", micro, rank))
    if own is None or rank == p - 1:
        return own
    after = done.get(("B", micro, rank + 1))
    return None if after is None else max(own, after + p2p_s)
