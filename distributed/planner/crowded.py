"""A schedule on ranks that share cores: whoever has work gets an equal part of a core, and an idle rank's part goes to the
others, so that a bubble costs nothing while there is work for every core."""

from collections.abc import Sequence

from distributed.planner.errors import PlanError
from distributed.planner.schedules import Schedule
from distributed.planner.simulate import Event, StageCost, Timeline, duration, needs, peaks


def simulate_crowded(schedule: Schedule, costs: Sequence[StageCost], cores: float, p2p_s: float = 0.0) -> Timeline:
    """The timeline on `cores` shared by all ranks of the pipeline (a part of a core counts); `costs` are seconds alone.

    Processor sharing: n working ranks run at min(1, cores / n). `PlanError` when the orders wait for each other in a circle.
    """
    ranks, orders = schedule.ranks, schedule.orders
    done: dict[tuple[str, int, int, int], float] = {}
    at, now = [0] * ranks, 0.0
    left: dict[int, float] = {}
    begun: dict[int, float] = {}
    events: list[list[Event]] = [[] for _ in orders]
    while True:
        arrivals = []
        for rank in range(ranks):
            if rank in left or at[rank] == len(orders[rank]):
                continue
            ready = _ready_at(schedule, rank, at[rank], done, p2p_s)
            if ready is not None and ready <= now + 1e-12:
                left[rank], begun[rank] = duration(orders[rank][at[rank]], costs), now
            elif ready is not None:
                arrivals.append(ready)
        if not left and not arrivals:
            break
        speed = min(1.0, cores / len(left)) if left else 1.0
        step = min((work / speed for work in left.values()), default=float("inf"))
        step = min(step, min(arrivals, default=float("inf")) - now)
        now += step
        for rank in list(left):
            left[rank] -= step * speed
            if left[rank] <= 1e-12:
                del left[rank]
                slot = orders[rank][at[rank]]
                events[rank].append(Event(rank, begun[rank], now, slot))
                at[rank] += 1
                for op in slot:
                    for kind in ("B", "W") if op.kind == "D" else (op.kind,):
                        done[kind, op.micro, op.stage, op.path] = now
    stuck = [rank for rank in range(ranks) if at[rank] < len(orders[rank])]
    if stuck:
        raise PlanError(f"{schedule.name}: ranks {stuck} wait for each other in a circle")
    return Timeline(schedule.name, tuple(tuple(e) for e in events), *peaks(schedule))


def _ready_at(schedule: Schedule, rank: int, place: int, done: dict[tuple[str, int, int, int], float], p2p_s: float
              ) -> float | None:  # fmt: skip
    latest = 0.0
    for op in schedule.orders[rank][place]:
        for need, handed in needs(op, schedule.paths):
            ended = done.get(need)
            if ended is None:
                return None
            latest = max(latest, ended + (p2p_s if handed else 0.0))
    return latest
