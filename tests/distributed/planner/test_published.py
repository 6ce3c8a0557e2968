"""The planner meets what it promises on published runs; each goal is a claim of the benchmark."""

from benchmarks.planner import published_rows


def test_every_goal_against_published_tables_is_met(capsys):
    claims = [claim for claim in published_rows().claims if claim.goal and not claim.unit.startswith("s ")]
    assert len(claims) >= 8
    assert [claim.name for claim in claims if not claim.met] == []
    # Every row of every table is printed beside its prediction.
    printed = capsys.readouterr().out
    assert {line.split()[0] for line in printed.splitlines()} == set("ABCDEFGH")
