"""Pictures of a simulated schedule: SVG for the page, Chrome trace for chrome://tracing and Perfetto."""

from typing import Any

from distributed.planner.simulate import Timeline

COLOURS = {"F": "#4c78a8", "B": "#f58518", "W": "#54a24b", "D": "#e45756"}
NAMES = {"F": "forward", "B": "gradient of inputs", "W": "gradient of weights", "D": "whole backward"}


def svg(timeline: Timeline, width: int = 1100, row: int = 22, until_s: float | None = None) -> str:
    """One row a rank, time from left to right up to `until_s`; overlapped operations share their block, one above the other.

    Numbers are micro-batches where they fit; grey is waiting.
    """
    total = min(timeline.makespan_s, until_s or float("inf")) or 1.0
    scale, left, top = (width - 70) / total, 60, 26
    height = top + row * len(timeline.events) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Timeline of {timeline.schedule}" font-family="sans-serif" font-size="11">',
        f"<title>Timeline of {timeline.schedule}: bubble {timeline.bubble_rate:.1%}</title>",
    ]
    for index, (kind, colour) in enumerate(COLOURS.items()):
        at_x = left + 150 * index
        parts.append(
            f'<rect x="{at_x}" y="6" width="11" height="11" fill="{colour}"/><text x="{at_x + 16}" y="16">{NAMES[kind]}</text>'
        )
    for rank, events in enumerate(timeline.events):
        y = top + rank * row
        parts.append(f'<text x="4" y="{y + row - 8}">rank {rank}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{total * scale:.1f}" height="{row - 3}" fill="#eee"/>')
        for event in events:
            if event.start >= total:
                break
            share = (row - 3) / len(event.ops)
            x, wide = left + event.start * scale, (min(event.end, total) - event.start) * scale
            for part, op in enumerate(event.ops):
                # Chunks and paths after the first are drawn lighter, so that a V or a second direction is seen.
                light = 0.65 if op.path or op.stage >= len(timeline.events) else 1.0
                at = y + part * share
                parts.append(
                    f'<rect x="{x:.1f}" y="{at:.1f}" width="{wide:.1f}" height="{share:.1f}" fill="{COLOURS[op.kind]}" '
                    f'fill-opacity="{light}" stroke="#fff" stroke-width="0.5"/>'
                )
                if wide > 13 and share > 10:
                    parts.append(f'<text x="{x + 2:.1f}" y="{at + share - 5:.1f}" fill="#fff">{op.micro}</text>')
    parts.append(f'<text x="{left}" y="{height - 7}">0</text>')
    parts.append(f'<text x="{width - 10}" y="{height - 7}" text-anchor="end">{total:.4g} s</text></svg>')
    return "".join(parts)


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The timeline as a trace object: one thread a rank, microseconds."""
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"pipeline rank {rank}"}}
        for rank in range(len(timeline.events))
    ]
    for rank, row in enumerate(timeline.events):
        for event in row:
            name = " & ".join(f"{op.kind}{op.micro}" for op in event.ops)
            events.append({
                "name": name, "cat": NAMES[event.ops[0].kind], "ph": "X", "pid": 0, "tid": rank,
                "ts": event.start * 1e6, "dur": (event.end - event.start) * 1e6,
                "args": {"stages": [op.stage for op in event.ops], "paths": [op.path for op in event.ops]},
            })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"schedule": timeline.schedule}}
