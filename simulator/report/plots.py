"""Pictures of a report as inline SVG, drawn by hand so that the same figures give the same bytes and follow the page's theme.

Colours are CSS classes of the page; every mark carries a <title>, so a pointer or a screen reader gets the number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720


@dataclass(frozen=True)
class IntervalRow:
    """One line of an interval plot; `truth` is drawn as a diamond where it is known."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    truth: float | None = None
    note: str = ""


def interval_plot(
    rows: Sequence[IntervalRow], *, axis: str, reference: float | None = None, reference_label: str = ""
) -> str:
    """Estimates as dots, 95% intervals as lines, truths as diamonds, over one value axis."""
    left, right, top, step = 150, 24, 30, 40
    height = top + step * len(rows) + 46
    numbers = [x for row in rows for x in (row.value, row.low, row.high, row.truth) if x is not None]
    numbers += [reference] if reference is not None else []
    low, high, ticks = _scale(numbers)
    x = _mapper(low, high, left, WIDTH - right)
    parts = [_axis(ticks, x, top - 8, height - 38, axis, height)]
    if reference is not None:
        middle = f'x="{x(reference)}" y="{top - 14}" text-anchor="middle"'
        parts.append(f'<line class="reference" x1="{x(reference)}" x2="{x(reference)}" y1="{top - 8}" y2="{height - 38}"/>'
                     f'<text class="small" {middle}>{escape(reference_label)}</text>')  # fmt: skip
    for i, row in enumerate(rows):
        y = top + step * i + step / 2 - 6
        parts.append(f'<text class="label" x="{left - 14}" y="{y + 5}" text-anchor="end">{escape(row.label)}</text>')
        if row.value is None or row.low is None or row.high is None:
            parts.append(f'<text class="small" x="{left + 6}" y="{y + 4}">{escape(row.note or "no estimate")}</text>')
        else:
            said = f"{row.label}: {row.value:.3f}, 95% interval {row.low:.3f} to {row.high:.3f}"
            parts.append(f'<g><title>{escape(said)}</title><line class="whisker" x1="{x(row.low)}" x2="{x(row.high)}" y1="{y}" y2="{y}"/>'
                         f'<circle class="dot" cx="{x(row.value)}" cy="{y}" r="6"/></g>')  # fmt: skip
        if row.truth is not None:
            at = x(row.truth)
            parts.append(
                f'<path class="truth" d="M{at} {y - 8}l6 8l-6 8l-6 -8z"><title>true value {row.truth:.3f}</title></path>'
            )
    return _svg(height, parts, axis)


def dumbbell_plot(rows: Sequence[tuple[str, float | None, float | None]], *, names: tuple[str, str], axis: str) -> str:
    """Two values per label, joined by a line: the first as the filled dot, the second as the open one."""
    left, right, top, step = 110, 70, 20, 36
    height = top + step * len(rows) + 46
    low, high, ticks = _scale([v for _, a, b in rows for v in (a, b) if v is not None])
    x = _mapper(low, high, left, WIDTH - right)
    parts = [_axis(ticks, x, top - 6, height - 38, axis, height)]
    for i, (label, first, second) in enumerate(rows):
        y = top + step * i + step / 2 - 4
        parts.append(f'<text class="label" x="{left - 14}" y="{y + 5}" text-anchor="end">{escape(label)}</text>')
        if first is not None and second is not None:
            parts.append(f'<line class="join" x1="{x(first)}" x2="{x(second)}" y1="{y}" y2="{y}"/>')
        if second is not None:
            parts.append(
                f'<circle class="open" cx="{x(second)}" cy="{y}" r="6"><title>{escape(names[1])} {second:.4f}</title></circle>'
            )
        if first is not None:
            parts.append(f'<circle class="dot" cx="{x(first)}" cy="{y}" r="6"><title>{escape(names[0])} {first:.4f}</title></circle>'
                         f'<text class="small" x="{WIDTH - right + 12}" y="{y + 4}">{first:.3f}</text>')  # fmt: skip
    return _svg(height, parts, axis)


def bar_plot(rows: Sequence[tuple[str, float]], *, axis: str, strong: str = "") -> str:
    """Horizontal bars from zero; the one named `strong` stands out."""
    left, right, top, step = 170, 60, 10, 32
    height = top + step * len(rows) + 46
    low, high, ticks = _scale([0.0, *(value for _, value in rows)])
    x = _mapper(low, high, left, WIDTH - right)
    parts = [_axis(ticks, x, top - 4, height - 38, axis, height)]
    for i, (label, value) in enumerate(rows):
        y = top + step * i + 4
        parts.append(f'<text class="label" x="{left - 14}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
                     f'<rect class="{"bar strong" if label == strong else "bar"}" x="{x(0.0)}" y="{y}" '
                     f'width="{max(x(value) - x(0.0), 1):.2f}" height="18" rx="3"><title>{escape(label)} {value:.4f}</title></rect>'
                     f'<text class="small" x="{x(value) + 8:.2f}" y="{y + 14}">{value:.3f}</text>')  # fmt: skip
    return _svg(height, parts, axis)


def reliability_plot(curve: dict[str, list[float]], *, title: str) -> str:
    """Observed rate against mean prediction, a small square; the diagonal is perfect calibration."""
    size, left, bottom = 168, 40, 34
    top = max([*curve["predicted"], *curve["observed"], 1e-9]) * 1.08
    x, y = _mapper(0.0, top, left, left + size), _mapper(0.0, top, size + 24, 24)
    points = list(zip(curve["predicted"], curve["observed"], curve["impressions"]))
    path = "M" + "L".join(f"{x(p)} {y(o)}" for p, o, _ in points) if points else ""
    parts = [f'<rect class="frame" x="{left}" y="24" width="{size}" height="{size}"/>',
             f'<line class="reference" x1="{x(0)}" y1="{y(0)}" x2="{x(top)}" y2="{y(top)}"/>',
             f'<path class="curve" d="{path}"/>',
             *(f'<circle class="dot" cx="{x(p)}" cy="{y(o)}" r="3"><title>{p:.4f} predicted, {o:.4f} observed of {int(n)}</title></circle>'
               for p, o, n in points),
             f'<text class="label" x="{left}" y="15">{escape(title)}</text>',
             f'<text class="small" x="{left - 6}" y="{y(top / 1.08) + 4}" text-anchor="end">{top / 1.08:.2f}</text>',
             f'<text class="small" x="{left - 6}" y="{y(0)}" text-anchor="end">0</text>',
             f'<text class="small" x="{left + size}" y="{size + 24 + 16}" text-anchor="end">predicted</text>']  # fmt: skip
    return _svg(size + 24 + bottom, parts, f"{title}: observed rate against predicted", width=left + size + 12)


def _scale(numbers: Sequence[float]) -> tuple[float, float, list[float]]:
    """A rounded range around `numbers` and its ticks, at most seven."""
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    power = 1e-9
    while (high - low) / power > 1e12:
        power *= 10
    step = next(unit * 10**e for e in range(-9, 10) for unit in (1, 2, 5) if (high - low) / (unit * 10**e) <= 5)
    first, last = int(low // step), int(-(-high // step))
    return first * step, last * step, [round(i * step, 10) for i in range(first, last + 1)]


def _mapper(low: float, high: float, start: float, end: float):
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 2)


def _axis(ticks: Sequence[float], x, top: float, bottom: float, name: str, height: float) -> str:
    lines = "".join(f'<line class="grid" x1="{x(t)}" x2="{x(t)}" y1="{top}" y2="{bottom}"/>'
                    f'<text class="small" x="{x(t)}" y="{bottom + 16}" text-anchor="middle">{t:g}</text>' for t in ticks)  # fmt: skip
    middle = (x(ticks[0]) + x(ticks[-1])) / 2
    return f'{lines}<text class="small axis" x="{middle}" y="{height - 4}" text-anchor="middle">{escape(name)}</text>'


def _svg(height: float, parts: Sequence[str], label: str, width: float = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
