"""The example of the documentation runs as it stands there, through the command line, and gives the rows it speaks of."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from contracts.clock import to_datetime
from contracts.tables import TABLES
from contracts.workspace import Workspace
from feedloop.cli import main
from tests.conftest import ROOT


def write_example(folder: Path) -> None:
    """The files of the example, each a fenced block that bears the file's name."""
    page = (ROOT / "docs" / "data.md").read_text()
    blocks = dict(re.findall(r"```\w+ (\S+\.\w+)\n(.*?)```", page, flags=re.DOTALL))
    assert set(blocks) == {"feed.csv", "events.jsonl", "friends.csv", "our-app.toml"}
    (folder / "our-log").mkdir()
    for name, content in blocks.items():
        (folder / ("" if name.endswith("toml") else "our-log") / name).write_text(content)


def ingest(folder: Path, *options: str) -> tuple[int, dict]:
    mapping = ["--mapping", str(folder / "our-app.toml")]
    arguments = [
        "ingest",
        "mapped",
        str(folder / "our-log"),
        *mapping,
        "--workspace",
        str(folder / "ws"),
        "--json",
        *options,
    ]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, json.loads(result.stdout)


def test_the_documented_example_gives_the_rows_that_it_speaks_of(tmp_path: Path) -> None:
    write_example(tmp_path)
    code, report = ingest(tmp_path, "--no-check")
    assert code == 0 and report["rejected_rows"] == 0, report
    lake = Workspace(tmp_path / "ws").lake
    shown = lake.read(TABLES["impressions"]).to_pylist()
    assert [(row["position"], row["viewed_ms"], row["propensity"]) for row in shown[:2]] == [
        (0, 3500, 0.75),
        (1, 0, 0.25),
    ]
    assert to_datetime(shown[0]["shown_at"]).isoformat() == "2024-03-01T07:00:00+00:00"
    assert [row["kind"] for row in lake.read(TABLES["actions"]).to_pylist()] == ["click", "like", "like", "hide"]
    edges = {(row["user_id"], row["friend_id"]) for row in lake.read(TABLES["friendships"]).to_pylist()}
    assert len(edges) == 4 and all((friend, user) in edges for user, friend in edges)
    assert set(report["lacks"]) == {"blocks", "candidates", "moments of posts", "topics", "sessions"}
    assert Workspace(tmp_path / "ws").dataset().has_propensities


def test_an_unusable_line_of_the_example_stops_it_with_exit_code_2_and_no_workspace_is_left(tmp_path: Path) -> None:
    write_example(tmp_path)
    events = tmp_path / "our-log" / "events.jsonl"
    events.write_text(events.read_text().replace('"ms": 1709276405000', '"ms": "soon"'))
    code, report = ingest(tmp_path)
    assert code == 2 and "events.jsonl: 1 of 5 lines cannot be used, more than the limit of 5.0%" in report["error"]
    assert not (tmp_path / "ws" / "lake").exists()


def test_a_mapping_and_its_source_are_given_together(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["ingest", "mapped", str(tmp_path), "--workspace", str(tmp_path / "ws"), "--json"]
    )
    assert result.exit_code == 2 and "give both or neither" in json.loads(result.stdout)["error"]


@pytest.mark.spark
@pytest.mark.slow
def test_the_command_line_keeps_a_broken_day_out_and_says_so(spark: object, tmp_path: Path) -> None:
    write_example(tmp_path)
    feed = tmp_path / "our-log" / "feed.csv"
    feed.write_text(feed.read_text().replace("0.4,0.60", "-0.4,0.60"))
    code, report = ingest(tmp_path)
    assert code == 0 and report["expectations"]["kept_out"] == {
        "requests": ["2024-03-04"],
        "impressions": ["2024-03-04"],
    }
    assert "2024-03-04" not in Workspace(tmp_path / "ws").lake.manifest(TABLES["impressions"]).days
