"""Which layers make up each stage, and which stages a rank holds."""

from collections.abc import Sequence

from distributed.planner.balance import partition
from distributed.planner.schedules import Schedule


def stage_layers(costs: Sequence[float], stages: int, first: float = 0.0, last: float = 0.0) -> list[range]:
    """Runs of layers, one a stage, whose dearest is as cheap as can be; `first` and `last` price embedding and loss.

    `PlanError` with both numbers when there are fewer layers than stages.
    """
    ends = 0
    runs = []
    for count in partition(costs, stages, first, last):
        runs.append(range(ends, ends + count))
        ends += count
    return runs


def stages_of(schedule: Schedule, rank: int) -> list[int]:
    """The stages that pipeline rank `rank` holds under a schedule, in rising order."""
    return [stage for stage, holder in enumerate(schedule.paths[0]) if holder == rank]
