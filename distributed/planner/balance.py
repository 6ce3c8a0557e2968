"""Unequal layers on equal ranks: the contiguous split whose dearest stage is least, by dynamic programming."""

from collections.abc import Sequence

from distributed.planner.errors import PlanError


def partition(costs: Sequence[float], stages: int, first: float = 0.0, last: float = 0.0) -> tuple[int, ...]:
    """Layers per stage for measured or computed layer costs (any unit); `first` and `last` are what the ends pay beside.

    Embedding and loss are priced so. Inner stages hold at least one layer; an end that pays may hold none.
    best[k][i] = min over j of max(best[k-1][j], cost of layers j..i). O(stages x layers^2).
    """
    n = len(costs)
    if n < stages - 2 or stages < 1 or (not first and not last and n < stages):
        raise PlanError(f"{n} layers do not fill {stages} stages")
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    infinite = float("inf")
    best = [infinite] * (n + 1)
    best[0] = 0.0
    choice: list[list[int]] = []
    for k in range(stages):
        extra = (first if k == 0 else 0.0) + (last if k == stages - 1 else 0.0)
        empty = extra > 0 and stages > 1
        now, chosen = [infinite] * (n + 1), [0] * (n + 1)
        for i in range(n + 1):
            for j in range(i if empty else i - 1, -1, -1):
                own = before[i] - before[j] + extra
                if own >= now[i]:
                    break
                value = max(best[j], own)
                if value < now[i]:
                    now[i], chosen[i] = value, j
        best = now
        choice.append(chosen)
    if best[n] == infinite:
        raise PlanError(f"{n} layers do not fill {stages} stages")
    ends, counts = n, []
    for chosen in reversed(choice):
        counts.append(ends - chosen[ends])
        ends = chosen[ends]
    return tuple(reversed(counts))


def dearest(costs: Sequence[float], counts: Sequence[int], first: float = 0.0, last: float = 0.0) -> float:
    """Cost of the dearest stage of a split."""
    at, worst = 0, 0.0
    for index, count in enumerate(counts):
        own = sum(costs[at : at + count]) + (first if index == 0 else 0.0) + (last if index == len(counts) - 1 else 0.0)
        at, worst = at + count, max(worst, own)
    return worst
