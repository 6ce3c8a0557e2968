"""What lasts, from the tables of a log: figures by hand, and a policy that buys clicks with what lasts is marked."""

import numpy as np
import pyarrow as pa
import pytest

from contracts.clock import DAY, HOUR, MINUTE
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.tables import TABLES
from contracts.workspace import Workspace
from simulator.replay import Question
from simulator.replay.long_term import long_term
from simulator.replay.settings import ReplaySettings

START, DAYS = 20_000 * DAY, 60
DATASET = Dataset("test", START, START + DAYS * DAY, 0, DAY, DAY, ("click", "hide"), True)
SETTINGS = ReplaySettings(resamples=400)


class Log:
    """Rows of a log of visits, written as tables."""

    def __init__(self):
        self.rows: dict[str, list[dict]] = {name: [] for name in TABLES}

    def visit(
        self, user: int, at: int, policy: str, kinds: list[str], experiment: str | None = None, shown: int = 4
    ) -> None:
        """A visit of twenty minutes with `shown` impressions of the friend `user + 1`, and the actions of `kinds`."""
        self.rows["sessions"].append({"user_id": user, "started_at": at, "ended_at": at + 20 * MINUTE, "requests": 1})
        request = len(self.rows["sessions"])
        for position in range(shown):
            self.rows["impressions"].append({
                "request_id": request, "user_id": user, "post_id": 7, "author_id": user + 1, "position": position, "shown_at": at,
                "viewed_ms": 100, "policy": policy, "experiment": experiment, "known_at": at})  # fmt: skip
        for kind in kinds:
            self.rows["actions"].append({
                "action_id": len(self.rows["actions"]), "request_id": request, "user_id": user, "post_id": 7,
                "author_id": user + 1, "kind": kind, "occurred_at": at + MINUTE, "known_at": at + MINUTE})  # fmt: skip

    def person(self, user: int) -> None:
        self.rows["users"].append({"user_id": user, "registered_at": START - DAY, "known_at": START - DAY})
        self.rows["friendships"].append({"user_id": user, "friend_id": user + 1, "since": START - DAY, "kind": "friend",
                                         "known_at": START - DAY})  # fmt: skip

    def written(self, root) -> Workspace:
        workspace = Workspace(root)
        for name, spec in TABLES.items():
            workspace.lake.write(spec, pa.Table.from_pylist(self.rows[name], schema=spec.schema))
        DATASET.save(workspace.dataset_path)
        return workspace

    def judged(self, root) -> dict:
        return long_term(self.written(root).lake, DATASET, SETTINGS)


def figures(report: dict, arm: str) -> dict[str, float | None]:
    return {one["key"]: (one["by_arm"][arm] or {}).get("value") for one in report["measures"]}


def test_figures_of_one_persons_visits_by_hand(tmp_path):
    log = Log()
    log.person(10)
    # Gaps between visits: 10 hours, 5 days, 40 days (each less the twenty minutes of the visit before).
    for days, kinds in ((0, ["click", "like"]), (10 / 24, []), (10 / 24 + 5, ["hide"]), (10 / 24 + 45, ["click"])):
        log.visit(10, START + int(days * DAY), "feed", kinds)
    log.rows["blocks"].append(
        {"user_id": 10, "target_id": 11, "kind": "block", "since": START + DAY, "known_at": START + DAY}
    )
    found = figures(log.judged(tmp_path), "feed")
    assert found["clicks"] == pytest.approx(1000 * 2 / 16)
    assert found["hides"] == found["blocks"] == pytest.approx(1000 / 16)
    assert found["return_1"] == pytest.approx(1 / 4)
    assert found["return_7"] == pytest.approx(2 / 4)  # the last visit's week is over at the log's end, and nobody came
    assert found["return_28"] == pytest.approx(2 / 3)  # the last visit's 28 days are not over yet, so it does not count
    assert found["days_active"] == pytest.approx(3 / (DAYS / 7))
    assert found["hours_between"] == pytest.approx((10 + 5 * 24 + 40 * 24) / 3 - 1 / 3)
    assert found["weaker_ties"] == 1.0  # two contacts in the first half, one in the second


def test_a_tie_that_ended_is_weaker_and_one_without_any_contact_does_not_count(tmp_path):
    log = Log()
    for user in (10, 20, 30):
        log.person(user)
        log.visit(user, START + 40 * DAY, "feed", ["click"] if user == 30 else [])
    log.rows["friendships"][0]["ended_at"] = START + 50 * DAY
    assert figures(log.judged(tmp_path), "feed")["weaker_ties"] == pytest.approx(
        1 / 2
    )  # 10 ended, 20 is silent, 30 got stronger


def population(
    log: Log, arm: str, first: int, *, clicks: float, hides: float, gap_days: float, seed: int, by: str = "policy"
) -> None:
    """150 people of one arm, who come back after `gap_days` on average; the same seed is the same people."""
    visits, extra = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    for person in range(150):
        user = first + 2 * person
        log.person(user)
        at = START + int(visits.random() * 2 * DAY)
        while at < START + (DAYS - 1) * DAY:
            kinds = (
                ["like"] * int(visits.random() < 0.2)
                + ["click"] * int(extra.random() < clicks)
                + ["hide"] * int(extra.random() < hides)
            )
            where = {"policy": arm} if by == "policy" else {"policy": "full", "experiment": arm}
            log.visit(user, at, kinds=kinds, **where)
            at += 2 * HOUR + int(visits.exponential(gap_days) * DAY)


def test_a_policy_that_buys_clicks_with_what_lasts_is_marked_with_what_it_loses(tmp_path):
    log = Log()
    population(log, "chronological", 1_000, clicks=0.3, hides=0.03, gap_days=3.0, seed=1)
    population(log, "bait", 5_000, clicks=0.5, hides=0.10, gap_days=4.5, seed=2)
    report = log.judged(tmp_path)
    assert report["baseline"] == "chronological" and report["viewers"] == {"bait": 150, "chronological": 150}
    (mark,) = report["marks"]
    assert mark["arm"] == "bait" and mark["gains_clicks"]
    assert {"return_1", "return_7", "days_active", "hours_between", "hides"} <= set(mark["loses"])
    assert mark["sentence"].startswith("bait gains clicks (+") and "hides per 1,000 impressions +" in mark["sentence"]


def test_a_policy_that_gains_clicks_and_loses_nothing_is_not_marked(tmp_path):
    log = Log()
    population(log, "test: control", 1_000, clicks=0.3, hides=0.05, gap_days=3.0, seed=1, by="experiment")
    population(log, "test: treatment", 5_000, clicks=0.5, hides=0.05, gap_days=3.0, seed=1, by="experiment")
    report = log.judged(tmp_path)
    assert report["baseline"] == "test: control" and report["marks"] == []
    (clicks,) = [one for one in report["measures"] if one["key"] == "clicks"]
    assert clicks["by_arm"]["test: treatment"]["difference"]["low"] > 0


def test_the_log_of_another_policy_stands_beside_as_an_arm(tmp_path):
    for name, clicks, hides in (("chronological", 0.3, 0.03), ("bait", 0.5, 0.10)):
        log = Log()
        population(log, name, 1_000, clicks=clicks, hides=hides, gap_days=3.0, seed=1)
        log.written(tmp_path / name)
    workspace = Workspace(tmp_path / "chronological")
    report = long_term(
        workspace.lake, DATASET, SETTINGS, Question.of((), None, None, beside=[tmp_path / "bait"]).other_logs
    )
    assert report["baseline"] == "chronological" and report["viewers"] == {"chronological": 150, "bait": 150}
    assert [(mark["arm"], mark["gains_clicks"], mark["loses"]) for mark in report["marks"]] == [
        ("bait", True, ["hides"])
    ]
    assert "other logs (1) stand beside it" in report["note"]
    twice = long_term(workspace.lake, DATASET, SETTINGS, [workspace])
    assert list(twice["viewers"]) == ["chronological", "chronological, chronological"]
    with pytest.raises(BadInput, match="holds no log yet"):
        _ = Question.of((), None, None, beside=[tmp_path / "nowhere"]).other_logs


def test_a_viewer_who_saw_several_policies_belongs_to_none(tmp_path):
    log = Log()
    for user in (10, 20, 30):
        log.person(user)
        log.visit(user, START + DAY, "a" if user < 30 else "b", [])
        log.visit(user, START + 3 * DAY, "a" if user < 20 else "b", [])
    report = log.judged(tmp_path)
    assert report["mixed_viewers"] == 1 and report["viewers"] == {"a": 1, "b": 1}
    assert "1 viewers who saw several policies belong to none" in report["note"]


def test_what_a_log_does_not_hold_is_not_zero(tmp_path):
    log = Log()
    log.person(10)
    log.visit(10, START, "feed", [])
    log.rows["sessions"].clear()
    found = figures(log.judged(tmp_path), "feed")
    assert (
        found["return_7"]
        is found["days_active"]
        is found["hours_between"]
        is found["blocks"]
        is found["weaker_ties"]
        is None
    )
