"""The report of a simulated log beside the one it is like: JSON, one self-contained page, a table in the terminal."""

import os
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from contracts.artifacts import Artifact
from contracts.files import canonical_json
from contracts.workspace import Workspace
from simulator.report.plots import dumbbell_plot

_TEMPLATE = Path(__file__).with_name("page.html")
NAMES = ("logged", "simulated")


def write_report(workspace: Workspace, report: dict[str, Any]) -> Artifact:
    """Writes `likeness.json` and `likeness.html` as an artifact; the link `reports/likeness` leads to the latest.

    The link is replaced in one step, so a reader never sees the JSON of one run beside the page of another.
    """
    page = render_page(report)
    with workspace.artifacts.create(
        "likeness", parents=report["log"]["tables"], settings=report["settings"]
    ) as artifact:
        (artifact.path / "likeness.json").write_bytes(canonical_json(report))
        (artifact.path / "likeness.html").write_text(page, encoding="utf-8")
        artifact.metrics = {one["name"]: one["distance"] for one in report["marginals"]}
    workspace.reports.mkdir(parents=True, exist_ok=True)
    temporary = workspace.reports / f".likeness.{os.getpid()}.link"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(artifact.path, workspace.reports))
    temporary.replace(workspace.reports / "likeness")
    return artifact


def render_page(report: dict[str, Any]) -> str:
    """The HTML page: no script, no request to anywhere, light and dark."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["figure"] = lambda value: f"{value:.4g}"
    plots = [
        Markup(
            dumbbell_plot(
                list(zip(one["labels"], one["logged"], one["simulated"])), names=NAMES, axis=one["value_unit"]
            )
        )
        for one in report["marginals"]
    ]
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(report=report, plots=plots)


def print_marginals(report: dict[str, Any]) -> None:
    """The marginals, the farthest first, then the verdict, what the log lacks and what was not fitted, on stderr."""
    console = Console(file=sys.stderr, highlight=False)
    # A log file has no width of its own, and a table cut at 80 columns cannot be read.
    if not console.is_terminal:
        console.width = 120
    table = Table(title="Simulated against logged, the farthest first", title_justify="left", header_style="bold")
    table.add_column("marginal")
    for name in ("distance", "of the logged mean", "measure", "unit"):
        table.add_column(name, justify="left" if name in ("measure", "unit") else "right")
    for one in report["marginals"]:
        table.add_row(one["name"], f"{one['distance']:.4g}", f"{one['relative']:.1%}", one["measure"], one["unit"])
    console.print(table)
    for sentence in report["verdict"]:
        console.print(sentence, markup=False)
    for name, reason in report["absent"].items():
        console.print(f"not in the log: {name}: {reason}", markup=False)
    for name, reason in report["fit"]["not_fitted"].items():
        console.print(f"not fitted: {name}: {reason}", markup=False)
