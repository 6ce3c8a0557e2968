"""Writes the card: `reports/samples.json` and `reports/samples.html`, one self-contained page without scripts."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from contracts.files import canonical_json, write_atomically
from contracts.tasks import TASK_NAMES
from contracts.workspace import Workspace
from pipelines.samples.card.figures import DRIFTED, figures
from pipelines.samples.card.plots import pictures
from pipelines.samples.examination import Examination

_TEMPLATE = Path(__file__).with_name("page.html")


def write_card(workspace: Workspace, table: pa.Table, examination: Examination | None, of_rows: int) -> str:
    """Writes both files and returns the page's path; `table`: all samples, or drawn ones out of `of_rows`."""
    card = figures(table, examination, workspace.lake, workspace.dataset().attribution_us) | {"of_rows": of_rows}
    write_atomically(workspace.reports / "samples.json", canonical_json(card))
    path = workspace.reports / "samples.html"
    write_atomically(path, render(card).encode())
    return str(path)


def render(card: dict[str, Any]) -> str:
    """The page as HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:.2%}"
    environment.filters["number"] = lambda value: "–" if value is None else f"{value:.4g}"
    drifted = {name: entry for name, entry in card["features"].items() if (entry["drift"] or 0) >= DRIFTED}
    by_drift = sorted(card["features"].items(), key=lambda item: (-(item[1]["drift"] or 0.0), item[0]))
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        card=card, tasks=TASK_NAMES, drifted=drifted, features=by_drift, limit=DRIFTED,
        pictures={name: Markup(svg) for name, svg in pictures(card).items()},
    )  # fmt: skip
