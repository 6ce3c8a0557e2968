"""The report's files: canonical JSON and a self-contained page, published together or not at all."""

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from contracts.artifacts import Artifact
from contracts.files import canonical_json
from contracts.workspace import Workspace
from simulator.report.pictures import changes, curves, numbered, plots
from simulator.report.words import ESTIMATOR_WORDS, GLOSSARY, GROUP_WORDS

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
    """The HTML page: no script, no request to anywhere, light and dark, as legible on a phone as on a desk."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:+.1%}"
    environment.filters["number"] = lambda value, digits=3: "–" if value is None else f"{value:,.{digits}f}"
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        report=report, plots={name: Markup(svg) for name, svg in plots(report).items()}, curves=[Markup(svg) for svg in curves(report)],
        changes=[(arm, Markup(svg)) for arm, svg in changes(report)], numbered=numbered(report), refusals=_refusals(report),
        estimator_words=ESTIMATOR_WORDS, group_words=GROUP_WORDS, glossary=GLOSSARY,
    )  # fmt: skip


def _refusals(report: dict[str, Any]) -> list[str]:
    """Why an estimator has no figure, once for all policies for which the reason is the same."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for policy in report["policies"]:
        for name, sentence in policy["refused"].items():
            by_reason.setdefault((name, sentence), []).append(policy["name"])
    everyone = len(report["policies"])
    return [
        f"{name}, {'all policies' if len(policies) == everyone else ', '.join(policies)}: {sentence}."
        for (name, sentence), policies in by_reason.items()
    ]


def _point(link: Path, target: Path) -> None:
    """Makes `link` a symbolic link to `target`, replacing what was there in one step."""
    if link.is_symlink() and Path(os.readlink(link)) == target:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
