"""Runs a schedule's orders against given times: when each operation starts, who waits, and what is held in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from distributed.planner.errors import PlanError
from distributed.planner.schedules import Op, Schedule


@dataclass(frozen=True)
class StageCost:
    """Seconds of one stage: forward, gradient of inputs, gradient of weights.

    `overlapped` is the time of a forward and a whole backward as one block (DualPipe's F&B); None: their sum.
    """

    forward: float
    backward_input: float
    backward_weight: float
    overlapped: float | None = None


@dataclass(frozen=True)
class Event:
    """One slot as it ran."""

    rank: int
    start: float
    end: float
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Timeline:
    """What the simulation found. `peak_stages[rank]`: stages' activations held at once, each until its B (or D) is done;

    `peak_with_weights` counts them until their W is done, which is what a deferred weight gradient keeps at most.
    """

    schedule: str
    events: tuple[tuple[Event, ...], ...]
    peak_stages: tuple[int, ...]
    peak_with_weights: tuple[int, ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(rank[-1].end for rank in self.events)

    @property
    def spans_s(self) -> tuple[float, ...]:
        """Each rank's time from its own first start to its own last end."""
        return tuple(rank[-1].end - rank[0].start for rank in self.events)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Each rank's working time."""
        return tuple(sum(event.end - event.start for event in rank) for rank in self.events)

    @property
    def idle_s(self) -> tuple[float, ...]:
        """Each rank's waiting time inside its own span."""
        return tuple(span - busy for span, busy in zip(self.spans_s, self.busy_s))

    @property
    def bubble_s(self) -> float:
        """Idle time of the rank with the longest span.

        Spans and not the makespan: a schedule such as ZB-H2 is a parallelogram, in which ranks end one after the other
        and start the next step so (the optimizer is validated afterwards).
        """
        return max(self.spans_s) - self.busy_s[self.spans_s.index(max(self.spans_s))]

    @property
    def bubble_rate(self) -> float:
        """Idle share of the longest span: (cost - work) / cost."""
        return self.bubble_s / max(self.spans_s)


def simulate(schedule: Schedule, costs: Sequence[StageCost], p2p_s: float = 0.0) -> Timeline:
    """The timeline of a schedule whose stage i costs `costs[i]`, with `p2p_s` seconds to hand over between ranks.

    `PlanError` when the orders wait for each other in a circle.
    """
    paths, orders = schedule.paths, schedule.orders
    done: dict[tuple[str, int, int, int], float] = {}
    clock, position = [0.0] * schedule.ranks, [0] * schedule.ranks
    events: list[list[Event]] = [[] for _ in orders]
    waiting: dict[tuple[str, int, int, int], list[int]] = {}
    ready = list(range(schedule.ranks))
    while ready:
        rank = ready.pop()
        while position[rank] < len(orders[rank]):
            slot = orders[rank][position[rank]]
            begin, missing = clock[rank], None
            for op in slot:
                for need, handed in needs(op, paths):
                    at = done.get(need)
                    if at is None:
                        missing = need
                        break
                    begin = max(begin, at + (p2p_s if handed else 0.0))
                if missing:
                    break
            if missing:
                waiting.setdefault(missing, []).append(rank)
                break
            end = begin + duration(slot, costs)
            events[rank].append(Event(rank, begin, end, slot))
            clock[rank], position[rank] = end, position[rank] + 1
            for op in slot:
                for kind in ("B", "W") if op.kind == "D" else (op.kind,):
                    key = (kind, op.micro, op.stage, op.path)
                    # A whole backward hands its input gradient on only when it has ended, as an unsplit backward does.
                    done[key] = end
                    ready += waiting.pop(key, ())
    stuck = [rank for rank in range(schedule.ranks) if position[rank] < len(orders[rank])]
    if stuck:
        raise PlanError(f"{schedule.name}: ranks {stuck} wait for each other in a circle")
    return Timeline(schedule.name, tuple(tuple(e) for e in events), *peaks(schedule))


def needs(op: Op, paths: tuple[tuple[int, ...], ...]) -> list[tuple[tuple[str, int, int, int], bool]]:
    """What must have ended before `op`, each with whether it comes from another rank."""
    path, last = paths[op.path], len(paths[op.path]) - 1
    if op.kind == "F":
        if op.stage == 0:
            return []
        return [(("F", op.micro, op.stage - 1, op.path), path[op.stage - 1] != path[op.stage])]
    own = (("F", op.micro, op.stage, op.path), False)
    if op.kind == "W":
        return [(("B", op.micro, op.stage, op.path), False)]
    if op.stage == last:
        return [own]
    return [own, (("B", op.micro, op.stage + 1, op.path), path[op.stage + 1] != path[op.stage])]


def duration(slot: tuple[Op, ...], costs: Sequence[StageCost]) -> float:
    """Seconds of one slot on a core of its own."""
    total = 0.0
    for op in slot:
        cost = costs[op.stage]
        if op.kind == "F":
            total += cost.forward
        if op.kind in "BD":
            total += cost.backward_input
        if op.kind in "WD":
            total += cost.backward_weight
    if len(slot) > 1:
        named = [costs[op.stage].overlapped for op in slot]
        if all(value is not None for value in named):
            return sum(value for value in named if value is not None) / len(named)
    return total


def peaks(schedule: Schedule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Per rank: the most stages' activations held until B, and until W. The order alone decides both."""
    until_input, until_weight = [], []
    for order in schedule.orders:
        held = kept = most = most_kept = 0
        for slot in order:
            for op in slot:
                if op.kind == "F":
                    held, kept = held + 1, kept + 1
            most, most_kept = max(most, held), max(most_kept, kept)
            for op in slot:
                held -= op.kind in "BD"
                kept -= op.kind in "WD"
        until_input.append(most)
        until_weight.append(most_kept)
    return tuple(until_input), tuple(until_weight)


def closed_bubble_s(name: str, ranks: int, cost: StageCost, virtual: int = 1) -> float:
    """Idle seconds of equal ranks by the published formula; `cost` is of a rank's whole share of one micro-batch.

    GPipe, 1F1B (p-1)(F+B+W); interleaved that / v; H1 (p-1)(F+B-W); H2 (p-1)(F+B-2W), both for W <= F and B; ZB-V
    (p-1)(3 max(F, B, W) - F - B - W), which is 0 at F = B = W, exact at F = B >= W and a bound from above otherwise;
    DualPipe (p/2-1)(F&B + D - 3W) with D = B + W, exact at F = B >= W and F&B = F + D; DualPipeV the same with p counted
    in stages, two of half cost a rank.
    """
    p, f, b, w = ranks, cost.forward, cost.backward_input, cost.backward_weight
    both = f + b + w if cost.overlapped is None else cost.overlapped
    if name in ("gpipe", "1f1b"):
        return (p - 1) * (f + b + w)
    if name == "interleaved":
        return (p - 1) * (f + b + w) / virtual
    if name == "zb-h1":
        return (p - 1) * (f + b - w)
    if name == "zb-h2":
        return (p - 1) * (f + b - 2 * w)
    if name == "zb-v":
        return (p - 1) * (3 * max(f, b, w) - f - b - w)
    if name == "dualpipe":
        return (p / 2 - 1) * (both + b + w - 3 * w)
    if name == "dualpipe-v":
        return (p - 1) * (both + b + w - 3 * w) / 2
    raise PlanError(f"no closed formula for {name!r}")
