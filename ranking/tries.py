"""A ranker's tries, each at a third of the rate before, and what a training writes beside its result.

A log with few positives is overfitted at once at a rate that a rich log needs. Then it is tried again at a third of the rate,
and the best of the tries by the validation figure is kept; all ranks see the same figure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from distributed import TrainerSettings, TrainResult
from ranking.settings import RankerSettings, SequenceSettings

_AT_ONCE = 2
"""A best epoch among this many first ones means that the rate was too high for the few labels there are."""

_OF_THE_RUN = ("threads", "collective_timeout_s", "learning_rate", "tries")
"""Settings that make no other training, or that each try has its own of."""


@dataclass(frozen=True)
class Beside:
    """`step_log`: file for a line a step and rank. `checkpoints`: folder for those of every try, from which a training that
    was stopped goes on; `made_of` (JSON) is what beside the trainer's settings makes a training another one."""

    step_log: Path | None = None
    checkpoints: Path | None = None
    made_of: Mapping[str, Any] = field(default_factory=dict)

    def checkpoints_of(self, number: int) -> Path | None:
        """Those of a try, counted from 0."""
        return None if self.checkpoints is None else self.checkpoints / f"try-{number + 1}"


def made_of(settings: RankerSettings | SequenceSettings, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The tables' content `hashes`, and the settings that the trainer's own do not hold."""
    known = {*_OF_THE_RUN, *(one.name for one in fields(TrainerSettings))}
    return {**hashes, **{name: value for name, value in settings.model_dump(mode="json").items() if name not in known}}


def trainer_settings(settings: RankerSettings | SequenceSettings, number: int = 0) -> TrainerSettings:
    """What the training loop needs of a ranker's settings for a try, counted from 0."""
    return TrainerSettings(
        epochs=settings.epochs, batch_size=settings.batch_size, learning_rate=settings.learning_rate / 3**number,
        weight_decay=settings.weight_decay, clip_norm=settings.clip_norm, patience=settings.patience,
        seed=settings.seed, precision=settings.precision, schedule=settings.rate_schedule,
        decay_share=settings.decay_share, average_decay=settings.average_decay,
    )  # fmt: skip


def best_of_tries(attempt: Callable[[TrainerSettings, Path | None], TrainResult],
                  settings: RankerSettings | SequenceSettings, beside: Beside) -> TrainResult:  # fmt: skip
    """The best of `attempt(settings of the try, folder of its checkpoints)`, tried again while a try overfits at once."""
    best: TrainResult | None = None
    earlier_seconds = 0.0
    for number in range(settings.tries):
        result = attempt(trainer_settings(settings, number), beside.checkpoints_of(number))
        earlier_seconds += result.earlier_seconds
        if best is None or result.best_validation < best.best_validation:
            best = result
        if result.best_epoch >= _AT_ONCE or len(result.history) == settings.epochs:
            break
    assert best is not None
    best.earlier_seconds = earlier_seconds
    return best
