"""A simulated log held against the one it is like: distances with their unit, the farthest first, in three forms."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from contracts.clock import HOUR
from contracts.files import hash_file
from contracts.tables import SESSIONS
from contracts.workspace import Workspace
from feedloop.cli import main
from pipelines.sources import SOURCES
from simulator.environment import EnvironmentSettings, simulate
from simulator.likeness import imitate, open_log, print_marginals, read_log, write_report
from simulator.likeness.marginals import Marginal, compare, marginals
from simulator.likeness.report import render_page

GIVEN = EnvironmentSettings(
    users=120,
    days=7,
    warmup_days=1,
    requests_per_day=1.8,
    mean_friends=12,
    seed=31,
    examination_power=0.9,
    session_end=0.4,
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("given"))
    simulate(made, GIVEN)
    return made


@pytest.fixture(scope="module")
def report(given: Workspace, tmp_path_factory: pytest.TempPathFactory) -> dict:
    target = Workspace(tmp_path_factory.mktemp("like"))
    made = imitate(target, open_log(given.root, target, {}), {}, worlds=2)
    write_report(target, made)
    return {**made, "_workspace": target}


def test_a_log_is_at_no_distance_from_itself(given: Workspace):
    own = marginals(read_log(given.lake))
    records = compare(own, own)
    assert len(records) == len(own) >= 25
    assert all(record["distance"] == record["relative"] == 0.0 for record in records)


def test_distances_are_in_the_units_of_what_is_compared(given: Workspace):
    log = read_log(given.lake)
    own = marginals(log)
    gaps = own["time between sessions"].sample_N
    assert gaps is not None
    later = {
        "time between sessions": Marginal("hours", own["time between sessions"].labels, own["time between sessions"].value_B,
                                          sample_N=gaps + 3.0),
        "posts by hour": Marginal("share of posts", own["posts by hour"].labels, np.roll(own["posts by hour"].value_B, 12)),
        "like by tie strength": Marginal("likes per look", own["like by tie strength"].labels,
                                         own["like by tie strength"].value_B * 1.5, own["like by tie strength"].weight_B),
    }  # fmt: skip
    records = {record["name"]: record for record in compare(own, later)}
    assert records["time between sessions"]["distance"] == pytest.approx(3.0)
    assert records["time between sessions"]["unit"] == "hours"
    assert records["like by tie strength"]["relative"] == pytest.approx(0.5)
    moved = np.abs(own["posts by hour"].value_B - np.roll(own["posts by hour"].value_B, 12)).sum() / 2
    assert records["posts by hour"]["distance"] == pytest.approx(moved)
    assert moved > 0.2


def test_time_between_sessions_is_within_one_person(given: Workspace):
    table = given.lake.read(SESSIONS, ["user_id", "started_at"]).sort_by(
        [("user_id", "ascending"), ("started_at", "ascending")]
    )
    user, at = table["user_id"].to_pylist(), table["started_at"].to_pylist()
    expected = [(b - a) / HOUR for a, b, one, two in zip(at, at[1:], user, user[1:]) if one == two]
    found = marginals(read_log(given.lake))["time between sessions"].sample_N
    assert found is not None
    assert sorted(found.tolist()) == pytest.approx(sorted(expected))


def test_the_simulated_log_follows_the_given_one_where_the_defaults_would_not(
    report: dict, given: Workspace, tmp_path: Path
):
    assert report["settings"]["examination_power"] == pytest.approx(0.9, abs=0.08)
    plain = Workspace(tmp_path)
    simulate(plain, EnvironmentSettings(users=120, days=7, warmup_days=1, seed=7))
    far = {
        one["name"]: one["distance"]
        for one in compare(marginals(read_log(given.lake)), marginals(read_log(plain.lake)))
    }
    near = {one["name"]: one["distance"] for one in report["marginals"]}
    for name in ("examination by position", "requests per session", "friends per person"):
        assert near[name] < 0.6 * far[name], name


def test_the_report_names_the_farthest_marginal_first_and_says_what_was_not_fitted(report: dict):
    relative = [one["relative"] for one in report["marginals"]]
    assert relative == sorted(relative, reverse=True)
    assert report["marginals"][0]["name"] in report["verdict"][1]
    assert "ties themselves" in report["fit"]["not_fitted"]
    names = {one["name"] for one in report["marginals"]}
    assert names >= {
        "examination by position", "like by tie strength", "like by age of the post", "posts by hour", "friends per person",
        "posts per author", "time between sessions", "slate size",
    }  # fmt: skip


def test_the_page_needs_nothing_from_elsewhere_and_shows_every_figure(report: dict):
    workspace: Workspace = report["_workspace"]
    page = (workspace.reports / "likeness" / "likeness.html").read_text()
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<svg") == len(report["marginals"])
    for name in (
        *report["fit"]["estimates"],
        *report["fit"]["not_fitted"],
        *(one["name"] for one in report["marginals"]),
    ):
        assert name.replace("<", "&lt;") in page
    kept = json.loads((workspace.reports / "likeness" / "likeness.json").read_text())
    assert kept == json.loads(
        json.dumps({name: value for name, value in report.items() if name != "_workspace"}, default=str)
    )


def test_terminal_and_page_say_what_the_log_lacks(report: dict, capsys: pytest.CaptureFixture[str]):
    reason = "3 of 9 impressions have no propensity"
    shown = {name: value for name, value in report.items() if name != "_workspace"}
    assert "What the log lacks" not in render_page(shown)
    shown["absent"] = {"propensities": reason}
    assert reason in render_page(shown)
    print_marginals(shown)
    assert f"not in the log: propensities: {reason}" in capsys.readouterr().err


def test_the_command_writes_log_report_and_one_json_object_and_the_same_bytes_again(given: Workspace, tmp_path: Path):
    answers = []
    for name in ("first", "again"):
        target = tmp_path / name
        run = CliRunner().invoke(
            main,
            ["simulate", "--workspace", str(target), "--like", str(given.root / "lake"), "--users", "60", "--json"],
        )
        assert run.exit_code == 0, run.stderr
        answers.append(json.loads(run.stdout))
        assert Workspace(target).dataset().counts["users"] == 60
        assert "Simulated against logged, the farthest first" in run.stderr
    assert answers[0]["content_hashes"] == answers[1]["content_hashes"]
    first, again = (tmp_path / name / "reports" / "likeness" / "likeness.json" for name in ("first", "again"))
    assert hash_file(first) == hash_file(again)


@pytest.mark.data
@pytest.mark.slow
def test_a_real_log_of_friends_and_posts_is_fitted_as_far_as_it_goes(shared_data: Path, tmp_path: Path):
    real, target = Workspace(tmp_path / "real"), Workspace(tmp_path / "like")
    SOURCES["hetrec-lastfm"](shared_data / "hetrec-lastfm-2k", real)
    sizes = {"users": 300, "days": 30}
    made = imitate(target, open_log(real.root, target, sizes), sizes, worlds=2)
    said = made["fit"]["not_fitted"]
    assert said["examination"] == "the log has no impressions: all of them were derived by a rule when it was read in"
    assert said["return times"] == "the log has no sessions"
    assert "posts.created_at" in said["daily rhythm"]
    friends = made["fit"]["estimates"]["mean friends"]
    # 12,717 friendships among 1,892 people.
    assert friends["low"] <= 2 * 12_717 / 1_892 <= friends["high"]
    assert made["fit"]["estimates"]["posts of kind link"]["value"] == 1.0
    assert {one["name"] for one in made["marginals"]} >= {"friends per person", "posts per author", "topics by rank"}
