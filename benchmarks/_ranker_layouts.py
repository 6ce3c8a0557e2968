"""What every rank of the layouts benchmark runs: the same training once for each layout of so many ranks."""

import time
from collections.abc import Sequence

from contracts.progress import say
from distributed import Rank, TrainResult
from ranking.fit import TaskData, fit
from ranking.layouts import TrainingLayout
from ranking.sequence.fit import Problem, fit_sequence
from ranking.settings import RankerSettings, SequenceSettings

Outcome = tuple[TrainResult, float]
"""A training and its seconds."""


def sequence_outcomes(rank: Rank, problem: Problem, settings: SequenceSettings, layouts: Sequence[TrainingLayout]
                      ) -> list[Outcome]:  # fmt: skip
    """The sequence ranker under each layout."""
    outcomes = []
    for layout in layouts:
        begun = time.perf_counter()
        outcomes.append((fit_sequence(rank, problem, settings, layout)[1], time.perf_counter() - begun))
        _tell(rank, "sequence", layout, outcomes[-1])
    return outcomes


def mmoe_outcomes(rank: Rank, train: TaskData, validation: TaskData, slots_C: list[int], settings: RankerSettings,
                  layouts: Sequence[TrainingLayout]) -> list[Outcome]:  # fmt: skip
    """The MMoE under each layout."""
    outcomes = []
    for layout in layouts:
        begun = time.perf_counter()
        outcomes.append((fit(rank, train, validation, slots_C, settings, layout)[1], time.perf_counter() - begun))
        _tell(rank, "mmoe", layout, outcomes[-1])
    return outcomes


def _tell(rank: Rank, model: str, layout: TrainingLayout, outcome: Outcome) -> None:
    if rank.first:
        say(f"✓ {model} on {rank.world_size} rank(s), {layout}: {outcome[0].steps} steps in {outcome[1]:.1f} s")
