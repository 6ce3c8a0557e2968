"""One foreign column into one of the contract's types: ids, moments, numbers, words, lists; what cannot be is marked."""

from collections.abc import Callable
from datetime import UTC, datetime, time

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import DAY, HOUR, SECOND, micros
from pipelines.sources.batches import Batch
from pipelines.sources.mapping import ID_KINDS, TIMES, Log, Source

MARK = Callable[[np.ndarray, str], None]
"""(rows (N,) that are bad, why) -> puts them aside."""
WHOLE_ID = r"^(0|[1-9]\d{0,17})$"
_WHOLE = r"^[+-]?\d{1,18}(\.0*)?$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def converted(batch: Batch, name: str, field: pa.Field, source: Source, log: Log, mark: MARK) -> pa.Array:
    """The contract's column `name` (N,): ids as text, all else in the type of `field`.

    A value that cannot be one is null and marked; so is an empty one, unless `field` may be null or has a default.
    """
    if source.value is not None:
        return pa.repeat(pa.scalar(source.value if name not in ID_KINDS else str(source.value)), len(batch)).cast(
            pa.string() if name in ID_KINDS else field.type
        )
    label = f"{name} ({'/'.join(source.columns)})"
    if pa.types.is_list(field.type):
        return _lists(batch, name, field, source, label, mark)
    if name in TIMES:
        made = moments(batch, source, log, label, mark)
    elif name in ID_KINDS:
        made = _ids(batch, source, label, mark)
        if ID_KINDS[name] in log.number_ids:
            good = pc.match_substring_regex(made, WHOLE_ID)
            mark(~pc.fill_null(good, True).to_numpy(zero_copy_only=False), f"{label} is not a whole number from 0 on")
    else:
        text = _words(batch, source, label, mark)
        made = text if pa.types.is_string(field.type) else _numbers(text, field.type, source, label, mark)
    if source.default is not None:
        default = str(source.default) if pa.types.is_string(made.type) else source.default
        made = pc.fill_null(made, pa.scalar(default).cast(made.type))
    return made


def _nulls(column: pa.Array) -> np.ndarray:
    return column.is_null().to_numpy(zero_copy_only=False)


def _words(batch: Batch, source: Source, label: str, mark: MARK) -> pa.Array:
    """The text of one column after `pattern` and `map`."""
    text = batch.text(source.columns[0])
    if source.pattern is not None:
        named = pc.extract_regex(text, source.pattern).field("value")
        mark(_nulls(named) & ~_nulls(text), f"{label} does not look as it should")
        text = named
    if source.map:
        at = pc.index_in(text, pa.array(list(source.map), pa.string()))
        known = pa.array([str(value) for value in source.map.values()], pa.string()).take(at)
        if source.default is None:
            mark(_nulls(known) & ~_nulls(text), f"{label} is none of the values of the map")
        text = known
    return text


def _ids(batch: Batch, source: Source, label: str, mark: MARK) -> pa.Array:
    if len(source.columns) == 1:
        return _words(batch, source, label, mark)
    parts = [batch.text(column) for column in source.columns]
    return pc.binary_join_element_wise(*parts, "/")


def _numbers(text: pa.Array, dtype: pa.DataType, source: Source, label: str, mark: MARK) -> pa.Array:
    whole = pa.types.is_integer(dtype) and source.scale == 1
    good = pc.match_substring_regex(text, _WHOLE if whole else NUMBER)
    mark(~pc.fill_null(good, True).to_numpy(zero_copy_only=False), f"{label} is not a {'whole ' * whole}number")
    text = pc.if_else(good, text, pa.scalar(None, pa.string()))
    if whole:
        numbers = pc.subtract(pc.replace_substring_regex(text, r"^\+|\.0*$", "").cast(pa.int64()), source.less)
    else:
        numbers = pc.subtract(pc.multiply(text.cast(pa.float64()), source.scale), float(source.less))
        if not pa.types.is_integer(dtype):
            finite = pc.is_finite(numbers)
            mark(~pc.fill_null(finite, True).to_numpy(zero_copy_only=False), f"{label} is too large")
            return pc.if_else(finite, numbers, pa.scalar(None, numbers.type)).cast(dtype)
        numbers = pc.round(numbers)
    # A double holds whole numbers exactly up to here; ids are checked where they are read.
    least, most = (-(2**31), 2**31 - 1) if dtype == pa.int32() else (-(2**53), 2**53)
    inside = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    mark(~pc.fill_null(inside, True).to_numpy(zero_copy_only=False), f"{label} is too large")
    return pc.if_else(inside, numbers, pa.scalar(None, numbers.type)).cast(dtype)


def _lists(batch: Batch, name: str, field: pa.Field, source: Source, label: str, mark: MARK) -> pa.Array:
    column = batch.columns[source.columns[0]]
    inner = pa.string() if name in ID_KINDS else field.type.value_type
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        try:
            return column.cast(pa.list_(inner))
        except pa.ArrowInvalid:  # some row is not a list of such values: row by row, to know which
            cells = column.to_pylist()
    else:
        cells = batch.text(source.columns[0]).to_pylist()
    bad_N = np.zeros(len(batch), bool)
    values: list[list | None] = []
    for at, cell in enumerate(cells):
        try:
            values.append(None if cell is None else _parts(cell, source.separator or " ", inner))
        except (ValueError, TypeError):
            bad_N[at] = True
            values.append(None)
    mark(bad_N, f"{label} is not a list of numbers")
    return pa.array(values, pa.list_(inner))


def _parts(cell: str | list, separator: str, inner: pa.DataType) -> list:
    parts = cell
    if isinstance(cell, str):
        parts = orjson.loads(cell) if cell.startswith("[") else [part for part in cell.split(separator) if part]
    return [str(part) for part in parts] if pa.types.is_string(inner) else [float(part) for part in parts]


def moments(batch: Batch, source: Source, log: Log, label: str, mark: MARK) -> pa.Array:
    """UTC microseconds (N,), null where the column is empty; marked where no calendar or clock has them."""
    if source.time == "line":
        steps_N = (batch.lines_before + batch.line_N) * source.step_s * SECOND
        at_N = _midnight(source.origin) + np.minimum(steps_N, 2.0**62).astype(np.int64)
        at = pa.array(at_N)
    else:
        column = batch.columns[source.columns[0]]
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            at = _zoned(column.cast(pa.timestamp("us", getattr(column.type, "tz", None))), source.zone)
        else:
            at = _parsed(batch, source, label, mark)
    if source.plus_s:
        at = pc.add(at, round(source.plus_s * SECOND))
    if source.spread_by:
        at = pc.add(at, pa.array(_spread(batch, source.spread_by)))
    inside = pc.and_(
        pc.greater_equal(at, _midnight(log.first_date)), pc.less(at, _midnight(log.last_date))
    )  # fmt: skip
    mark(~pc.fill_null(inside, True).to_numpy(zero_copy_only=False),
         f"{label} lies outside {log.first_date} to {log.last_date}")  # fmt: skip
    return pc.if_else(inside, at, pa.scalar(None, pa.int64()))


def _midnight(day: "datetime | object") -> int:
    return micros(datetime.combine(day, time(), UTC))  # type: ignore[arg-type]


def _parsed(batch: Batch, source: Source, label: str, mark: MARK) -> pa.Array:
    text = _words(batch, source, label, mark)
    units = {"s": SECOND, "ms": 1000, "us": 1, "days": DAY}
    if source.time in units:
        unit = units[source.time]
        plain = bool(pc.all(pc.match_substring_regex(text, _WHOLE), min_count=0).as_py())
        numbers = _numbers(text, pa.int64() if plain else pa.float64(), source, label, mark)
        # Beyond this no unit gives a moment; the product would not fit into 64 bits.
        sane = pc.less(pc.abs(numbers), min(2**53, 2**62 // unit))
        mark(~pc.fill_null(sane, True).to_numpy(zero_copy_only=False), f"{label} is no moment")
        numbers = pc.multiply(pc.if_else(sane, numbers, pa.scalar(None, numbers.type)), unit)
        at = numbers if plain else pc.round(numbers).cast(pa.int64())
        return pc.add(at, _midnight(source.origin)) if source.time == "days" else at
    import pandas as pd

    form = "ISO8601" if source.time == "iso" else source.time
    stamps = pd.to_datetime(
        pd.Series(text.to_pylist(), dtype="object"), format=form, errors="coerce", utc=_names_zone(source)
    )
    if stamps.dt.tz is None:
        stamps = stamps.dt.tz_localize(source.zone, ambiguous="NaT", nonexistent="NaT").dt.tz_convert("UTC")
    at = pa.Array.from_pandas(stamps).cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    mark(_nulls(at) & ~_nulls(text), f"{label} is no moment of the calendar")
    return at


def _names_zone(source: Source) -> bool:
    """Whether the text says its zone: then it counts; for iso, text without one is UTC unless `zone` says otherwise."""
    return (source.time == "iso" and source.zone == "UTC") or "%z" in (source.time or "")


def _zoned(column: pa.Array, zone: str) -> pa.Array:
    if column.type.tz is None and zone != "UTC":
        column = pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="earliest")
    return column.cast(pa.int64())


def _spread(batch: Batch, names: tuple[str, ...]) -> np.ndarray:
    """Microseconds (N,) in [1 s, 12 h): a fixed hash of the columns, which is stable and blind to any outcome."""
    import pandas as pd

    joined = pc.binary_join_element_wise(*(pc.fill_null(batch.text(name), "") for name in names), "/")
    mixed_N = pd.util.hash_array(np.array(joined.to_pylist(), dtype=object), categorize=True)
    return SECOND + (mixed_N % np.uint64(12 * HOUR - SECOND)).astype(np.int64)
