"""One HTML page without outside resources: the table, the memory stack, the bytes per axis, where time goes, the timeline."""

import html
import json
from collections.abc import Mapping
from typing import Any

from distributed.planner.answer import Answer
from distributed.planner.timeline import chrome_trace, svg

PARTS = {
    "parameters": "#4c78a8",
    "gradients": "#f58518",
    "optimizer": "#54a24b",
    "activations": "#e45756",
    "buffers": "#b279a2",
}
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; font-family: ui-monospace, monospace; }
figure { margin: 1.5rem 0; overflow-x: auto; } figcaption { font-weight: 600; margin-bottom: .4rem; }
svg { max-width: 100%; height: auto; background: #fff; color: #222; }
"""


def page(answer: Answer) -> str:
    """The page of an answer as one string."""
    report, chosen = answer.report, answer.report["chosen"]
    model, cluster = report["model"], report["cluster"]
    title = f"{model['name']} on {cluster['accelerators']} {cluster['name']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{model['parameters'] / 1e9:.1f} B parameters, sequences of {model['sequence']}, global batch "
        f"{report['global_batch']}. {report['layouts_looked_at']} layouts looked at in {report['seconds_to_answer']:.2f} s, "
        f"{report['layouts_too_large']} too large.</p>",
        f"<h2>Chosen: <code>{html.escape(chosen['layout'])}</code></h2>",
        "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in report["reasons"]) + "</ul>",
    ]
    if "why_not" in report:
        parts.append("<h2>Why not</h2>" + "".join(f"<p>{html.escape(text)}</p>" for text in report["why_not"]))
    sent_gb = {axis: sent / 1e9 for axis, sent in chosen["bytes_by_axis"].items()}
    stack = memory_stack(chosen["memory_gib_by_stage"], cluster["usable_gib"])
    parts += [
        _figure("Memory per stage, GiB (the line is what is usable)", stack),
        _figure("Bytes a rank of the first stage sends in a step, by axis", bars(sent_gb, "GB")),
        _figure("Where the step's time goes", bars(chosen["seconds"], "s")),
    ]
    if answer.timeline is not None:
        stage = max(t.total for t in answer.chosen.stage_times)
        until = stage * min(3.0 * len(answer.timeline.events), 64.0)
        caption = "Timeline of the pipeline's start" if until < answer.timeline.makespan_s else "Timeline of one step"
        parts.append(_figure(f"{caption}, schedule {answer.timeline.schedule}", svg(answer.timeline, until_s=until)))
    parts += [
        "<h2>The first layouts</h2>",
        _table(report["best"]),
        "<h2>Ledger of bytes</h2>",
        _ledger(chosen["ledger"]),
    ]
    sources = "".join(f"<li>{html.escape(k)}: {html.escape(v)}</li>" for k, v in cluster["sources"].items())
    parts.append(f"<h2>Sources of the machine's figures</h2><ul>{sources}</ul>")
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def trace_json(answer: Answer) -> str:
    """The simulated step as a Chrome trace; an empty one without a pipeline."""
    return json.dumps(chrome_trace(answer.timeline) if answer.timeline else {"traceEvents": []})


def memory_stack(stages: list[dict[str, float]], usable: float) -> str:
    """One bar a stage, from parameters to buffers."""
    top = max([usable, *(sum(stage.values()) for stage in stages)]) * 1.05
    wide = max(6, min(60, 1000 // len(stages)))
    height, left = 240, 60
    scale = height / top
    parts = [_open(left + wide * len(stages) + 20, height + 60, "memory per stage")]
    for index, stage in enumerate(stages):
        y = float(height)
        for name, colour in PARTS.items():
            tall = stage[name] * scale
            y -= tall
            parts.append(f'<rect x="{left + index * wide + 2}" y="{y:.1f}" width="{wide - 4}" height="{tall:.1f}" fill="{colour}">'
                         f"<title>stage {index}, {name}: {stage[name]:.2f} GiB</title></rect>")  # fmt: skip
        if wide >= 20 or index % 8 == 0:
            parts.append(f'<text x="{left + index * wide + 4}" y="{height + 14}">{index}</text>')
    line = height - usable * scale
    parts.append(
        f'<line x1="{left}" x2="{left + wide * len(stages)}" y1="{line:.1f}" y2="{line:.1f}" stroke="#c00" stroke-dasharray="4"/>'
    )
    parts.append(f'<text x="2" y="{line + 4:.1f}">{usable:.1f}</text><text x="2" y="{height}">0</text>')
    parts.append("</svg>")
    legend = " ".join(f'<span style="color:{colour}">■</span> {name}' for name, colour in PARTS.items())
    return "".join(parts) + f"<p>{legend}</p>"


def bars(values: Mapping[str, float], unit: str) -> str:
    """Horizontal bars, one a name."""
    if not values:
        return "<p>none</p>"
    top = max(values.values()) or 1.0
    height = 24 * len(values) + 6
    parts = [_open(900, height, "bars")]
    for index, (name, value) in enumerate(values.items()):
        y = 24 * index + 4
        parts.append(f'<text x="230" y="{y + 13}" text-anchor="end">{html.escape(name)}</text>'
                     f'<rect x="240" y="{y}" width="{520 * value / top:.1f}" height="17" fill="#4c78a8"/>'
                     f'<text x="{246 + 520 * value / top:.1f}" y="{y + 13}">{value:.4g} {unit}</text>')  # fmt: skip
    return "".join(parts) + "</svg>"


def _open(width: int, height: int, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{label}" font-family="sans-serif" font-size="12">'
    )


def _figure(caption: str, picture: str) -> str:
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{picture}</figure>"


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("layout", "step, s", "samples/s", "MFU", "HFU", "peak GiB", "bubble", "bottleneck")
    lines = "".join(
        f"<tr><td>{html.escape(r['layout'])}</td><td>{r['step_s']:.4g}</td><td>{r['samples_per_s']:.4g}</td><td>{r['mfu']:.1%}</td>"
        f"<td>{r['hfu']:.1%}</td><td>{r['peak_gib']:.1f}</td><td>{r['bubble']:.1%}</td><td>{html.escape(r['bottleneck'])}</td></tr>"
        for r in rows
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{lines}</table>"


def _ledger(lines: list[dict[str, Any]]) -> str:
    head = ("what", "axis", "collective", "tensor", "ranks", "times a step", "GB sent", "seconds", "level", "overlap")
    rows = "".join(
        f"<tr><td>{html.escape(x['what'])}</td><td>{x['axis']}</td><td>{x['collective']}</td>"
        f"<td>{' x '.join(map(str, x['shape']))} x {x['element_bytes']} B</td><td>{x['ranks']}</td><td>{x['times']:g}</td>"
        f"<td>{x['bytes_sent'] / 1e9:.4g}</td><td>{x['seconds']:.4g}</td><td>{x['level']}</td><td>{html.escape(x['overlap'])}</td></tr>"
        for x in lines
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{rows}</table>"
