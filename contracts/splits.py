"""Time splits: train | gap | validation | gap | test, each gap one attribution window. There is no random split."""

from dataclasses import asdict, dataclass

from contracts.clock import DAY, to_datetime
from contracts.errors import BadInput


@dataclass(frozen=True)
class TimeSplit:
    """Half-open windows [start, end) in UTC microseconds over impression time."""

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]
    window_us: int

    def __post_init__(self) -> None:
        for earlier, later in (("train", "validation"), ("validation", "test")):
            gap = getattr(self, later)[0] - getattr(self, earlier)[1]
            if gap < self.window_us:
                raise BadInput(
                    f"{earlier} and {later} are {gap} us apart, less than the attribution window of {self.window_us} us"
                )
        for name in ("train", "validation", "test"):
            start, end = getattr(self, name)
            if end <= start:
                raise BadInput(f"the {name} window is empty: {to_datetime(start)} to {to_datetime(end)}")

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict) -> "TimeSplit":
        """The inverse of `as_dict`."""
        windows = {name: (int(record[name][0]), int(record[name][1])) for name in ("train", "validation", "test")}
        return cls(**windows, window_us=int(record["window_us"]))


def split_log(
    start: int, end: int, window_us: int, *, validation_share: float = 0.15, test_share: float = 0.25
) -> TimeSplit:
    """The split of a log [start, end): shares of the time that is left after two gaps and the last open window.

    Edges lie on UTC midnights when the log spans ten days or more. `BadInput` when the log is too short.
    """
    usable = (end - start) - 3 * window_us
    if usable <= 0:
        raise BadInput(
            f"a log of {(end - start) / DAY:.2f} days is too short for three windows and gaps of {window_us / DAY:.2f} days"
        )
    step = DAY if end - start >= 10 * DAY else 1

    def down(at: float) -> int:
        return int(at) // step * step

    test_end = end - window_us
    test_start = down(test_end - test_share * usable)
    validation_end = test_start - window_us
    validation_start = down(validation_end - validation_share * usable)
    return TimeSplit(
        (start, validation_start - window_us), (validation_start, validation_end), (test_start, test_end), window_us
    )
