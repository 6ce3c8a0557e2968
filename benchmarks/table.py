"""Writes the README's table of measured claims from the last full results: `python -m benchmarks.table`."""

import sys
from pathlib import Path

from benchmarks.claims import RESULTS
from contracts.files import read_json, write_atomically

README = Path(__file__).parent.parent / "README.md"
FIRST = ("loop", "serving")
"""What a newcomer looks for first."""
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def table() -> str:
    """The Markdown table of every kept result, with the machine below it."""
    lines = ["| claim | measured | beside | goal | |", "|---|---|---|---|---|"]
    machines = set()
    for path in sorted(RESULTS.glob("*.json"), key=lambda path: (path.stem not in FIRST, path.stem)):
        result = read_json(path)
        machines.add(result["machine"])
        for claim in result["claims"]:
            beside = f"{claim['peer']}: {claim['peer_value']:.4g}" if claim["peer_value"] is not None else claim["peer"]
            mark = ("met" if claim["met"] else "**missed**") if claim["goal"] else ""
            lines.append(
                f"| {claim['name']} | {claim['value']:.4g} {claim['unit']} | {beside} | {claim['goal']} | {mark} |"
            )
        lines += [f"| not measured: {missing} | | | | |" for missing in result["not_measured"]]
    return "\n".join([*lines, "", f"Machine: {'; '.join(sorted(machines))}. Each row: `python -m benchmarks.NAME`."])


def main() -> None:
    """Replaces the text between the two marks in the README."""
    text = README.read_text()
    if BEGIN not in text or END not in text:
        print(f"README.md lacks the marks {BEGIN} and {END}", file=sys.stderr)
        raise SystemExit(2)
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    write_atomically(README, f"{head}{BEGIN}\n{table()}\n{END}{tail}".encode())


if __name__ == "__main__":
    main()
