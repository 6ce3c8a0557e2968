"""A schedule on ranks that share cores: whoever has work gets an equal part of a core, and an idle rank's part goes to the
others, so that a bubble costs nothing while there is work for every core. Copying a message is work like all other."""

from collections.abc import Sequence

from distributed.planner.errors import PlanError
from distributed.planner.schedules import Schedule
from distributed.planner.simulate import Event, StageCost, Timeline, duration, needs, peaks

Need = tuple[str, int, int, int]
"""What an operation waits for: kind, micro-batch, stage and path of another one."""


def simulate_crowded(schedule: Schedule, costs: Sequence[StageCost], cores: float, p2p_s: float = 0.0) -> Timeline:
    """The timeline on `cores` shared by all ranks of the pipeline (a part of a core counts); `costs` are seconds alone.

    Processor sharing: n jobs run at min(1, cores / n). A message is a job of its own of `p2p_s`, beside the ranks: between
    processes of one machine a core copies it. `PlanError` when the orders wait for each other in a circle.
    """
    ranks, orders = schedule.ranks, schedule.orders
    handed = {
        need
        for order in orders
        for slot in order
        for op in slot
        for need, to_another_rank in needs(op, schedule.paths)
        if to_another_rank
    }
    done: set[Need] = set()
    arrived: set[Need] = set()
    at, now = [0] * ranks, 0.0
    left: dict[int | Need, float] = {}
    begun: dict[int, float] = {}
    events: list[list[Event]] = [[] for _ in orders]
    while True:
        for rank in range(ranks):
            if rank not in left and at[rank] < len(orders[rank]) and _is_ready(schedule, rank, at[rank], done, arrived):
                left[rank], begun[rank] = duration(orders[rank][at[rank]], costs), now
        if not left:
            break
        speed = min(1.0, cores / len(left))
        step = min(left.values()) / speed
        now += step
        for job in list(left):
            left[job] -= step * speed
            if left[job] > 1e-12:
                continue
            del left[job]
            if not isinstance(job, int):
                arrived.add(job)
                continue
            slot = orders[job][at[job]]
            events[job].append(Event(job, begun[job], now, slot))
            at[job] += 1
            made: set[Need] = {
                (kind, op.micro, op.stage, op.path)
                for op in slot
                for kind in (("B", "W") if op.kind == "D" else (op.kind,))
            }
            done |= made
            for message in sorted(made & handed):
                left[message] = p2p_s
    stuck = [rank for rank in range(ranks) if at[rank] < len(orders[rank])]
    if stuck:
        raise PlanError(f"{schedule.name}: ranks {stuck} wait for each other in a circle")
    return Timeline(schedule.name, tuple(tuple(e) for e in events), *peaks(schedule))


def _is_ready(schedule: Schedule, rank: int, place: int, done: set[Need], arrived: set[Need]) -> bool:
    return all(
        need in (arrived if to_another_rank else done)
        for op in schedule.orders[rank][place]
        for need, to_another_rank in needs(op, schedule.paths)
    )
