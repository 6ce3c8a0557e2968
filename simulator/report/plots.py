"""Pictures of a report as inline SVG, drawn by hand so that the same figures give the same bytes and follow the page's theme.

All are as wide as a phone's column and grow with the page, so no text gets smaller than it is here: labels stand above
their marks and not beside them. Colours are CSS classes of the page; every mark carries a <title>, so a pointer or a screen
reader gets the number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 330
_SIDE = 16  # room left and right of an axis, for its outer tick labels

Mapper = Callable[[float], float]


@dataclass(frozen=True)
class Row:
    """One line of a row plot: a label above, a dot with its interval below; `truth` is a diamond, `bad` a warning colour."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    truth: float | None = None
    note: str = ""
    bad: bool = False


@dataclass(frozen=True)
class Point:
    """One numbered mark of a scatter plot, with its intervals on both axes."""

    label: str
    x: float
    y: float
    x_interval: tuple[float, float]
    y_interval: tuple[float, float]
    bad: bool = False


def row_plot(rows: Sequence[Row], *, axis: str, reference: float | None = None, reference_label: str = "",
             form: str = ".3f") -> str:  # fmt: skip
    """Values as dots, intervals as lines, truths as diamonds, over one value axis; `form` formats the numbers."""
    top, step = 26 if reference_label else 8, 44
    height = top + step * len(rows) + 44
    bottom = height - 40
    numbers = [x for row in rows for x in (row.value, row.low, row.high, row.truth) if x is not None]
    low, high, ticks = _scale([*numbers, *([] if reference is None else [reference])])
    x = _mapper(low, high, _SIDE, WIDTH - _SIDE)
    parts = [_axis(ticks, x, top, bottom, axis, form)]
    if reference is not None:
        parts.append(f'<line class="reference" x1="{x(reference)}" x2="{x(reference)}" y1="{top}" y2="{bottom}"/>')
        if reference_label:
            at, anchor = _kept_inside(x(reference), reference_label)
            parts.append(
                f'<text class="small" x="{at}" y="{top - 8}" text-anchor="{anchor}">{escape(reference_label)}</text>'
            )
    for i, row in enumerate(rows):
        parts += _row(row, top + step * i, x, form)
    return _svg(height, parts, axis)


def _row(row: Row, y: float, x: Mapper, form: str) -> list[str]:
    said = row.note or "no estimate" if row.value is None else f"{row.value:{form}}"
    parts = [f'<text class="label" x="0" y="{y + 16}">{escape(row.label)}</text>',
             f'<text class="small" x="{WIDTH}" y="{y + 16}" text-anchor="end">{escape(said)}</text>']  # fmt: skip
    middle = y + 30
    if row.value is not None:
        mark = "dot bad" if row.bad else "dot"
        title, whisker = f"{row.label}: {row.value:{form}}", ""
        if row.low is not None and row.high is not None:
            title += f", interval {row.low:{form}} to {row.high:{form}}"
            whisker = f'<line class="whisker{" bad" if row.bad else ""}" x1="{x(row.low)}" x2="{x(row.high)}" y1="{middle}" y2="{middle}"/>'
        parts.append(
            f'<g><title>{escape(title)}</title>{whisker}<circle class="{mark}" cx="{x(row.value)}" cy="{middle}" r="5.5"/></g>'
        )
    if row.truth is not None:
        at = x(row.truth)
        parts.append(
            f'<path class="truth" d="M{at} {middle - 8}l6 8l-6 8l-6 -8z"><title>true value {row.truth:{form}}</title></path>'
        )
    return parts


def scatter_plot(points: Sequence[Point], *, x_axis: str, y_axis: str, form: str = ".1f") -> str:
    """Numbered dots with a cross of intervals each; the page lists what the numbers stand for."""
    left, top, height = 44, 26, 300
    bottom = height - 42
    x_low, x_high, x_ticks = _scale([v for p in points for v in (p.x, *p.x_interval)])
    y_low, y_high, y_ticks = _scale([v for p in points for v in (p.y, *p.y_interval)])
    x, y = _mapper(x_low, x_high, left, WIDTH - _SIDE), _mapper(y_low, y_high, bottom, top)
    parts = [_axis(x_ticks, x, top, bottom, x_axis, "g")]
    parts += [f'<line class="grid" x1="{left}" x2="{WIDTH - _SIDE}" y1="{y(t)}" y2="{y(t)}"/>'
              f'<text class="small" x="{left - 6}" y="{y(t) + 4}" text-anchor="end">{t:g}</text>' for t in y_ticks]  # fmt: skip
    parts.append(f'<text class="small" x="0" y="14">↑ {escape(y_axis)}</text>')
    for number, p in enumerate(points, start=1):
        title = f"{p.label}: {x_axis} {p.x:{form}}, {y_axis} {p.y:{form}}"
        bad = " bad" if p.bad else ""
        parts.append(f'<g><title>{escape(title)}</title>'
                     f'<line class="cross{bad}" x1="{x(p.x_interval[0])}" x2="{x(p.x_interval[1])}" y1="{y(p.y)}" y2="{y(p.y)}"/>'
                     f'<line class="cross{bad}" x1="{x(p.x)}" x2="{x(p.x)}" y1="{y(p.y_interval[0])}" y2="{y(p.y_interval[1])}"/>'
                     f'<circle class="dot{bad}" cx="{x(p.x)}" cy="{y(p.y)}" r="10"/>'
                     f'<text class="number" x="{x(p.x)}" y="{y(p.y) + 4.5}" text-anchor="middle">{number}</text></g>')  # fmt: skip
    return _svg(height, parts, f"{y_axis} against {x_axis}")


def dumbbell_plot(rows: Sequence[tuple[str, float | None, float | None]], *, names: tuple[str, str], axis: str) -> str:
    """Two values per label, joined by a line: the first as the filled dot, the second as the open one."""
    top, step = 8, 44
    height = top + step * len(rows) + 44
    low, high, ticks = _scale([v for _, a, b in rows for v in (a, b) if v is not None])
    x = _mapper(low, high, _SIDE, WIDTH - _SIDE)
    parts = [_axis(ticks, x, top, height - 40, axis, "g")]
    for i, (label, first, second) in enumerate(rows):
        y = top + step * i
        said = " / ".join("–" if v is None else f"{v:.3f}" for v in (first, second))
        parts.append(f'<text class="label" x="0" y="{y + 16}">{escape(label)}</text>'
                     f'<text class="small" x="{WIDTH}" y="{y + 16}" text-anchor="end">{said}</text>')  # fmt: skip
        middle = y + 30
        if first is not None and second is not None:
            parts.append(f'<line class="join" x1="{x(first)}" x2="{x(second)}" y1="{middle}" y2="{middle}"/>')
        for value, mark, name in ((second, "open", names[1]), (first, "dot", names[0])):
            if value is not None:
                parts.append(
                    f'<circle class="{mark}" cx="{x(value)}" cy="{middle}" r="5.5"><title>{escape(name)} {value:.4f}</title></circle>'
                )
    return _svg(height, parts, axis)


def bar_plot(rows: Sequence[tuple[str, float]], *, axis: str, strong: str = "", form: str = ".3f") -> str:
    """Horizontal bars from zero, labels above; the one named `strong` stands out."""
    top, step = 4, 42
    height = top + step * len(rows) + 44
    low, high, ticks = _scale([0.0, *(value for _, value in rows)])
    x = _mapper(low, high, _SIDE, WIDTH - _SIDE)
    parts = [_axis(ticks, x, top, height - 40, axis, "g")]
    for i, (label, value) in enumerate(rows):
        y = top + step * i
        parts.append(f'<text class="label" x="{_SIDE}" y="{y + 16}">{escape(label)}</text>'
                     f'<text class="small" x="{WIDTH}" y="{y + 16}" text-anchor="end">{value:{form}}</text>'
                     f'<rect class="{"bar strong" if label == strong else "bar"}" x="{x(0.0)}" y="{y + 22}" '
                     f'width="{max(x(value) - x(0.0), 1):.2f}" height="13" rx="3"/>')  # fmt: skip
    return _svg(height, parts, axis)


def reliability_plot(curve: dict[str, list[float]], *, title: str) -> str:
    """Observed rate against mean prediction, a small square; the diagonal is perfect calibration."""
    size, left, top = 116, 36, 22
    most = max([*curve["predicted"], *curve["observed"], 1e-9]) * 1.08
    x, y = _mapper(0.0, most, left, left + size), _mapper(0.0, most, size + top, top)
    points = list(zip(curve["predicted"], curve["observed"], curve["impressions"]))
    path = "M" + "L".join(f"{x(p)} {y(o)}" for p, o, _ in points) if points else ""
    parts = [f'<rect class="frame" x="{left}" y="{top}" width="{size}" height="{size}"/>',
             f'<line class="reference" x1="{x(0)}" y1="{y(0)}" x2="{x(most)}" y2="{y(most)}"/>',
             f'<path class="curve" d="{path}"/>',
             *(f'<circle class="dot" cx="{x(p)}" cy="{y(o)}" r="3"><title>{p:.4f} predicted, {o:.4f} observed of {int(n)}</title></circle>'
               for p, o, n in points),
             f'<text class="label" x="{left}" y="14">{escape(title)}</text>',
             f'<text class="small" x="{left - 5}" y="{y(most / 1.08) + 4}" text-anchor="end">{most / 1.08:.2f}</text>',
             f'<text class="small" x="{left - 5}" y="{y(0)}" text-anchor="end">0</text>',
             f'<text class="small" x="{left + size}" y="{size + top + 15}" text-anchor="end">predicted</text>']  # fmt: skip
    return _svg(size + top + 20, parts, f"{title}: observed rate against predicted", width=left + size + 4)


def _scale(numbers: Sequence[float]) -> tuple[float, float, list[float]]:
    """A rounded range around `numbers` and its ticks, at most six."""
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    step = next(unit * 10**e for e in range(-9, 10) for unit in (1, 2, 5) if (high - low) / (unit * 10**e) <= 4)
    first, last = int(low // step), int(-(-high // step))
    return first * step, last * step, [round(i * step, 10) for i in range(first, last + 1)]


def _mapper(low: float, high: float, start: float, end: float) -> Mapper:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 2)


def _kept_inside(at: float, text: str) -> tuple[float, str]:
    """Where to write `text` centred on `at`, or at the edge of the picture where it would stick out."""
    half = 3.4 * len(text)
    if at - half < 0:
        return 0, "start"
    return (WIDTH, "end") if at + half > WIDTH else (at, "middle")


def _axis(ticks: Sequence[float], x: Mapper, top: float, bottom: float, name: str, form: str) -> str:
    parts = []
    for t in ticks:
        said = f"{t:+.0%}" if form.endswith("%") and t else f"{t:g}"
        parts.append(f'<line class="grid" x1="{x(t)}" x2="{x(t)}" y1="{top}" y2="{bottom}"/>'
                     f'<text class="small" x="{x(t)}" y="{bottom + 19}" text-anchor="middle">{said}</text>')  # fmt: skip
    parts.append(
        f'<text class="small axis" x="{WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">{escape(name)}</text>'
    )
    return "".join(parts)


def _svg(height: float, parts: Sequence[str], label: str, width: float = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
