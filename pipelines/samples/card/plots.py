"""The card's pictures as inline SVG; the same figures give the same bytes."""

import io
from collections.abc import Callable
from typing import Any

from contracts.tasks import TASK_NAMES

_STYLE = {
    "svg.hashsalt": "feedloop", "svg.fonttype": "none", "font.size": 11, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": "#8a8f98", "xtick.color": "#6b7078", "ytick.color": "#6b7078",
    "axes.labelcolor": "#6b7078", "text.color": "#6b7078",
}  # fmt: skip


def pictures(card: dict[str, Any]) -> dict[str, str]:
    """Name -> `<svg>…</svg>`."""
    drawn = {
        "days": _svg(lambda axes: _rates(axes, card["days"], "day")),
        "positions": _svg(lambda axes: _rates(axes, card["positions"], "position")),
    }
    if card["examination"]:
        drawn["examination"] = _svg(lambda axes: _examination(axes, card["examination"]))
    return drawn


def _rates(axes: Any, parts: dict[str, Any], what: str) -> None:
    names = list(parts)
    for task in TASK_NAMES:
        rates = [part["rates"][task] for part in parts.values()]
        if rates and rates[0] is not None:
            axes.plot(range(len(names)), rates, marker="o", markersize=3, linewidth=1.4, label=task)
    every = max(1, len(names) // 6)
    axes.set_xticks(range(0, len(names), every), [name[-5:] for name in names[::every]])
    axes.set_xlabel(what)
    axes.set_ylabel("share of rows with the action")
    axes.set_ylim(bottom=0)
    if axes.lines:
        axes.legend(frameon=False, fontsize=9)


def _examination(axes: Any, examination: dict[str, Any]) -> None:
    curve, low, high = (examination[name] for name in ("curve", "low", "high"))
    below, above = ([c - x for c, x in zip(curve, low)], [x - c for c, x in zip(curve, high)])
    axes.errorbar(range(len(curve)), curve, yerr=[below, above], marker="o", markersize=4, linewidth=1.4, capsize=3)
    axes.set_xlabel("position")
    axes.set_ylabel("looked at, relative to the most")
    axes.set_ylim(bottom=0)


def _svg(draw: Callable[[Any], None]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.0, 3.2), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = sink.getvalue()
    return svg[svg.index("<svg") :]
