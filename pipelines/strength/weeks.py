"""Which weeks a strength is learned from and judged on: closed ones before the moment of use, and nothing later."""

from collections.abc import Iterable

from contracts.clock import to_datetime
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.strength import AHEAD_US


def training_moments(as_of: int, start: int, weeks: int) -> tuple[int, ...]:
    """Up to `weeks` moments, a week apart, latest first, whose week is over at `as_of` (all UTC microseconds).

    Each has at least a week of the log, which begins at `start`, before it: with less nothing is known of anybody.
    """
    moments = (as_of - back * AHEAD_US for back in range(1, weeks + 1))
    return tuple(moment for moment in moments if moment >= start + AHEAD_US)


def check_closed(moments: Iterable[int], as_of: int) -> None:
    """`BadInput` that names the first training week which is not over at `as_of`: it would tell what is to be predicted."""
    for moment in sorted(moments):
        if moment + AHEAD_US > as_of:
            raise BadInput(
                f"the training week from {to_datetime(moment)} ends at {to_datetime(moment + AHEAD_US)}, after "
                f"{to_datetime(as_of)}, where the week to be predicted begins: learn from earlier weeks"
            )


def judged_moments(dataset: Dataset) -> dict[str, int]:
    """Window -> the moment whose week judges: where validation begins; the test window, or the log's last whole week.

    Windows whose week is not over at the log's end are left out, and so is a test week that does not begin after the
    validation week's moment.
    """
    split = dataset.split()
    last = dataset.end - AHEAD_US
    moments = {"validation": split.validation[0], "test": min(split.test[0], last)}
    if moments["test"] <= moments["validation"]:
        del moments["test"]
    return {name: moment for name, moment in moments.items() if moment <= last}
