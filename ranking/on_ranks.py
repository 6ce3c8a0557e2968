"""Fits a ranker on its ranks; what the user can mend is one sentence, whether one rank meets it or one of many."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.errors import BadInput
from distributed import LayoutError, RankFailed, RankRefused, TrainResult, launch
from distributed.given import given_place
from distributed.step_log import begin_step_log
from ranking.settings import RankerSettings, SequenceSettings


def fit_on_ranks(what: str, fit: Callable[..., tuple[int, TrainResult]], arguments: tuple[Any, ...],
                 settings: RankerSettings | SequenceSettings, nproc: int, step_log: Path | None
                 ) -> tuple[int, TrainResult]:  # fmt: skip
    """(rank, result) of `fit(rank, *arguments, step_log)` on `nproc` ranks, of the first one where they are started here.

    The step log is begun before any rank starts. `BadInput` when it cannot be written, then or later, or the ranks cannot
    lie so; `RuntimeError` when a rank fails otherwise.
    """
    try:
        place = given_place(nproc)
        if step_log is not None and (place is None or place.index == 0):
            begin_step_log(step_log)
        return launch(fit, (*arguments, step_log), nproc, timeout_s=settings.collective_timeout_s,
                      threads=settings.threads)[0]  # fmt: skip
    except (LayoutError, RankRefused) as error:
        raise BadInput(f"the {what} was not trained: {error}") from None
    except RankFailed as error:
        raise RuntimeError(f"the {what} was not trained: {error}") from error
    except OSError as error:
        if not error.filename:
            raise
        raise BadInput(f"the {what} was not trained: {error.filename}: {error.strerror}") from None
