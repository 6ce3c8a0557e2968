"""Writes the tables of measured claims from the last full results: `python -m benchmarks.table`.

All of them go to docs/measured.md, a section a benchmark; the README gets what a newcomer asks first and a count of the rest.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.claims import RESULTS
from contracts.files import read_json, write_atomically

ROOT = Path(__file__).parent.parent
README, MEASURED = ROOT / "README.md", ROOT / "docs" / "measured.md"
FIRST = ("loop", "serving")
"""The benchmarks whose every claim with a goal stands in the README."""
HEADLINES = (
    "recall@100, all paths merged", "full feed over HTTP, p50", "12 estimators, SLOPE and 1,000 resamples",
    "largest difference from obp", "95% intervals that hold the known parameter",
    "environment: 20-post feeds under a popularity policy, 100,000 people",
    "pipelines: feature states of 10 million events, Spark", "pipelines: from 1 million to 50 million events, seconds",
    "ranker on corrected samples", "step: dp_replicate, 4 ranks", "step: dp_shard, ZeRO 3, 4 ranks",
    "peak memory: dp_shard, ZeRO 3, 4 ranks", "weak scaling", "planner: A100 step times (A and C), mean", "planner: search for 405B",
)  # fmt: skip
"""Claims of the other benchmarks that begin so stand in the README too."""
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_HEAD = ["| claim | measured | beside | goal | |", "|---|---|---|---|---|"]


def results() -> dict[str, dict[str, Any]]:
    """The kept results by benchmark, those of `FIRST` first."""
    paths = sorted(RESULTS.glob("*.json"), key=lambda path: (path.stem not in FIRST, path.stem))
    return {path.stem: read_json(path) for path in paths}


def headlines(kept: dict[str, dict[str, Any]]) -> str:
    """The README's table, then one line a benchmark on how many of its goals are met."""
    lines, counts = list(_HEAD), []
    for name, result in kept.items():
        chosen = [
            claim
            for claim in result["claims"]
            if (name in FIRST and claim["goal"]) or claim["name"].startswith(HEADLINES)
        ]
        lines += [_row(claim) for claim in chosen]
        goals = [claim["met"] for claim in result["claims"] if claim["goal"]]
        missing = f", {len(result['not_measured'])} not measured" if result["not_measured"] else ""
        counts.append(f"`{name}` {sum(goals)} of {len(goals)}{missing}")
    machines = "; ".join(sorted({result["machine"] for result in kept.values()}))
    said = f"Goals met, by benchmark: {', '.join(counts)}. Every claim, the missed ones too: [docs/measured.md](docs/measured.md)."
    return "\n".join([*lines, "", said, "", f"Machine: {machines}."])


def everything(kept: dict[str, dict[str, Any]]) -> str:
    """The page of all claims."""
    parts = ["# Everything that is measured", "", "Written by `python -m benchmarks.table` from the last full run of each "
             "benchmark (`python -m benchmarks.NAME`)."]  # fmt: skip
    for name, result in kept.items():
        parts += ["", f"## {name}", "", *_HEAD, *(_row(claim) for claim in result["claims"])]
        parts += (
            ["", *(f"Not measured: {missing}." for missing in result["not_measured"])] if result["not_measured"] else []
        )
        parts += ["", f"Machine: {result['machine']}."]
    return "\n".join([*parts, ""])


def _row(claim: dict[str, Any]) -> str:
    beside = f"{claim['peer']}: {claim['peer_value']:.4g}" if claim["peer_value"] is not None else claim["peer"]
    mark = ("met" if claim["met"] else "**missed**") if claim["goal"] else ""
    return f"| {claim['name']} | {claim['value']:.4g} {claim['unit']} | {beside} | {claim['goal']} | {mark} |"


def main() -> None:
    """Writes docs/measured.md and replaces the text between the two marks in the README."""
    text = README.read_text()
    if BEGIN not in text or END not in text:
        print(f"README.md lacks the marks {BEGIN} and {END}", file=sys.stderr)
        raise SystemExit(2)
    kept = results()
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    write_atomically(MEASURED, everything(kept).encode())
    write_atomically(README, f"{head}{BEGIN}\n{headlines(kept)}\n{END}{tail}".encode())


if __name__ == "__main__":
    main()
