"""The dates of a window are moments of the calendar in UTC, whatever time zone they were written in."""

import pytest

from contracts.clock import EARLIEST, LATEST
from contracts.errors import BadInput
from simulator.replay import Question


@pytest.mark.parametrize("date", ["0001-01-01T00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00+00:01"])
@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_date_outside_the_years_of_utc_is_refused_by_its_option(option, date):
    start, end = (date, None) if option == "--from" else (None, date)
    with pytest.raises(BadInput, match=f"{option} '.*' lies outside the years 1 to 9999"):
        Question.of((), start, end)


def test_the_ends_of_the_calendar_are_dates():
    question = Question.of((), "0001-01-01", "9999-12-31T23:59:59.999999")
    assert (question.start, question.end) == (EARLIEST, LATEST)
