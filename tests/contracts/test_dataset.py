"""The description of a log is believed only when it can be true."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from contracts.clock import DAY, EARLIEST, LATEST, day_of, to_datetime
from contracts.dataset import Dataset
from contracts.errors import BadInput

START = 19_000 * DAY
WHOLE = Dataset("test", START, START + 20 * DAY, DAY, DAY, 6 * DAY, ("click", "hide"), True, {"a": "a rule"}, {"users": 3},
                {"weights": [1.0, 2], "none": None, "deep": {"at": "2024-01-01"}}, {"stream": "5-0"})  # fmt: skip
WRONG = [
    ("start", "x"), ("start", float("inf")), ("start", -(10**25)), ("start", 1.0), ("start", None), ("start", True),
    ("end", 0), ("end", START), ("end", LATEST + 1), ("live_us", float("nan")), ("live_us", -1), ("live_us", 10**400),
    ("warmup_us", -1), ("attribution_us", "1"), ("tasks", [5]), ("tasks", "click"), ("tasks", ["clap"]), ("tasks", {}),
    ("settings", 5), ("settings", []), ("counts", [1]), ("counts", {"users": "many"}), ("counts", {"users": -1}),
    ("derived", {"a": 5}), ("drained_to", {"stream": 5}), ("has_propensities", 1), ("has_propensities", "yes"),
    ("source", 5), ("colour", "red"),
]  # fmt: skip


def test_what_was_saved_is_what_is_loaded(tmp_path):
    path = tmp_path / "dataset.json"
    WHOLE.save(path)
    assert Dataset.load(path) == WHOLE


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_damaged_description_is_one_sentence_that_names_the_field(name, value, tmp_path):
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(asdict(WHOLE) | {name: value}))
    with pytest.raises(BadInput, match=r"dataset.json ") as raised:
        Dataset.load(path)
    sentence = str(raised.value)
    assert name.removesuffix("s") in sentence and "\n" not in sentence and len(sentence) < 400


@pytest.mark.parametrize("name", ["source", "start", "tasks"])
def test_a_description_that_lacks_a_field_names_it(name, tmp_path):
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({key: value for key, value in asdict(WHOLE).items() if key != name}))
    with pytest.raises(BadInput, match=f"{name} is missing"):
        Dataset.load(path)


@pytest.mark.parametrize("content", ["[]", "5", "null", "{", '"x"'])
def test_what_is_no_description_at_all_is_refused(content, tmp_path):
    path = tmp_path / "dataset.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"dataset.json is not"):
        Dataset.load(path)


@pytest.mark.parametrize("at", [EARLIEST - 1, LATEST + 1, -(10**25), 10**400, float("inf"), np.int64(2**63 - 1)])
def test_a_moment_outside_the_calendar_is_bad_input(at):
    with pytest.raises(BadInput, match="years 1 to 9999"):
        to_datetime(at)


def test_the_calendars_own_ends_are_moments():
    assert to_datetime(EARLIEST).year == 1 and to_datetime(LATEST).microsecond == 999_999
    assert day_of(LATEST).isoformat() == "9999-12-31"
