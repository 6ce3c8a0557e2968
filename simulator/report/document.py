"""The report's files: canonical JSON and a self-contained page, published together or not at all."""

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from contracts.artifacts import Artifact
from contracts.files import canonical_json
from contracts.workspace import Workspace
from simulator.report.plots import IntervalRow, bar_plot, dumbbell_plot, interval_plot, reliability_plot

NAMES = ("replay.json", "replay.html")
_TEMPLATE = Path(__file__).with_name("replay.html.jinja")


def write_report(
    workspace: Workspace, report: dict[str, Any], *, parents: dict[str, str], settings: dict[str, Any]
) -> Artifact:
    """Writes `report` as artifact kind "report" and makes `reports/replay.json` and `reports/replay.html` show it.

    Both names lead through one link, `reports/latest`, which is replaced in one step: a reader never sees the JSON of
    one replay beside the page of another, and a crash leaves the earlier report in force.
    """
    page = render_page(report)
    with workspace.artifacts.create("report", parents=parents, settings=settings) as artifact:
        (artifact.path / NAMES[0]).write_bytes(canonical_json(report))
        (artifact.path / NAMES[1]).write_text(page, encoding="utf-8")
        artifact.metrics = {"policies": {policy["name"]: policy["headline"] for policy in report["policies"]}}
    workspace.reports.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        _point(workspace.reports / name, Path("latest") / name)
    _point(workspace.reports / "latest", Path(os.path.relpath(artifact.path, workspace.reports)))
    return artifact


def render_page(report: dict[str, Any]) -> str:
    """The HTML page: no script, no request to anywhere, light and dark."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:+.1%}"
    environment.filters["number"] = lambda value, digits=3: "–" if value is None else f"{value:.{digits}f}"
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(report=report, plots={name: Markup(svg) for name, svg in _plots(report).items()},
                           curves=[Markup(svg) for svg in _curves(report)])  # fmt: skip


def _plots(report: dict[str, Any]) -> dict[str, str]:
    plots = {}
    if report["off_policy"]["possible"]:
        rows = [_interval_row(policy) for policy in report["policies"]]
        logged = report["off_policy"]["logged"]["value"]
        plots["values"] = interval_plot(rows, axis="value per feed request (clicks' worth)", reference=logged,
                                        reference_label="as logged")  # fmt: skip
    tasks = [
        (name, metrics["auc"], metrics["logistic_auc"])
        for name, metrics in report["tasks"].items()
        if metrics["auc"] is not None
    ]
    if tasks:
        plots["auc"] = dumbbell_plot(
            tasks, names=("multi-task ranker", "logistic regression"), axis="AUC on the test window"
        )
    recall = sorted(report["recall"]["recall_at_100"].items(), key=lambda item: (-item[1], item[0]))
    if recall:
        plots["recall"] = bar_plot(recall, axis="recall@100 on the test window", strong="merged")
    return plots


def _interval_row(policy: dict[str, Any]) -> IntervalRow:
    headline, truth = policy["headline"], policy["truth"]
    known = truth["value"] if truth else None
    if headline is None:
        return IntervalRow(policy["name"], None, None, None, known, "no estimate: too little overlap")
    return IntervalRow(policy["name"], headline["value"], headline["low"], headline["high"], known)


def _curves(report: dict[str, Any]) -> list[str]:
    return [
        reliability_plot(metrics["reliability"], title=name)
        for name, metrics in report["tasks"].items()
        if metrics["positives"]
    ]


def _point(link: Path, target: Path) -> None:
    """Makes `link` a symbolic link to `target`, replacing what was there in one step."""
    if link.is_symlink() and Path(os.readlink(link)) == target:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
