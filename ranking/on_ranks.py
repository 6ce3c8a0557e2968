"""Fits a ranker on its ranks; what the user can mend is one sentence, whether one rank meets it or one of many."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from contracts.errors import BadInput
from distributed import LayoutError, RankFailed, RankRefused, TrainResult, launch
from distributed.given import given_place
from distributed.step_log import begin_step_log
from ranking.settings import RankerSettings, SequenceSettings
from ranking.tries import Beside, trainer_settings


def fit_on_ranks(what: str, fit: Callable[..., tuple[int, TrainResult]], arguments: tuple[Any, ...],
                 settings: RankerSettings | SequenceSettings, nproc: int, beside: Beside
                 ) -> tuple[int, TrainResult]:  # fmt: skip
    """(rank, result) of `fit(rank, *arguments, beside)` on `nproc` ranks, of the first one where they are started here.

    The step log and the checkpoints' folder are begun before any rank starts. `BadInput` when they cannot be written, then or
    later, the folder holds another training, or the ranks cannot lie so; `RuntimeError` when a rank fails otherwise.
    """
    try:
        place = given_place(nproc)
        if place is None or place.index == 0:
            _begin(settings, beside)
        return launch(fit, (*arguments, beside), nproc, timeout_s=settings.collective_timeout_s,
                      threads=settings.threads)[0]  # fmt: skip
    except (LayoutError, RankRefused) as error:
        raise BadInput(f"the {what} was not trained: {error}") from None
    except RankFailed as error:
        raise RuntimeError(f"the {what} was not trained: {error}") from error
    except OSError as error:
        if not error.filename:
            raise
        raise BadInput(f"the {what} was not trained: {error.filename}: {error.strerror}") from None


def _begin(settings: RankerSettings | SequenceSettings, beside: Beside) -> None:
    if beside.step_log is not None:
        begin_step_log(beside.step_log)
    for number in range(settings.tries):
        folder = beside.checkpoints_of(number)
        if folder is not None and (number == 0 or folder.exists()):
            # Brings in more than a training without checkpoints needs.
            from distributed.checkpoint.epochs import begin_checkpoints

            begin_checkpoints(folder, {**asdict(trainer_settings(settings, number)), **beside.made_of})
