"""Time as the contracts tell it: int64 microseconds since 1970, UTC."""

from datetime import UTC, date, datetime

import numpy as np

from contracts.errors import BadInput

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def micros(moment: datetime) -> int:
    """The microseconds since 1970 of an aware `moment`."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds


def now() -> int:
    """This moment in UTC microseconds."""
    return micros(datetime.now(UTC))


EARLIEST, LATEST = (micros(moment.replace(tzinfo=UTC)) for moment in (datetime.min, datetime.max))
"""The first and the last moment that a calendar of the years 1 to 9999 has, UTC microseconds."""


def to_datetime(at: int) -> datetime:
    """The aware UTC datetime of `at` (UTC microseconds); `BadInput` for one outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"moment {at} (microseconds since 1970) lies outside the years 1 to 9999") from None


def day_of(at: int) -> date:
    """The UTC date of `at` (UTC microseconds)."""
    return to_datetime(at).date()


def days_of(at_N: np.ndarray) -> np.ndarray:
    """The UTC dates, as `datetime64[D]` (N,), of UTC microseconds (N,)."""
    return np.asarray(at_N, dtype="datetime64[us]").astype("datetime64[D]")
