"""Batches of a file into rows of the contract's tables, ids still as text; a bad line gives no row in any table."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import SECOND
from contracts.tables import TABLES
from pipelines.sources.batches import Batch
from pipelines.sources.conversion import MARK, NUMBER, converted, moments
from pipelines.sources.foreign_files import Rejected
from pipelines.sources.mapping import ID_KINDS, RANGES, WORDS, Each, Files, Log, Rows

_FROM = (pa.field("_file", pa.string()), pa.field("_line", pa.int64()), pa.field("_piece", pa.int64()),
         pa.field("_again", pa.bool_()))  # fmt: skip
"""Where a row came from, and whether a later row of its key may say the same again."""


def foreign_schema(table: str) -> pa.Schema:
    """The schema of `table` with ids as text, all columns nullable, and where each row came from."""
    fields = []
    for one in TABLES[table].schema:
        dtype = one.type
        if one.name in ID_KINDS:
            dtype = pa.list_(pa.string()) if pa.types.is_list(dtype) else pa.string()
        fields.append(pa.field(one.name, dtype))
    return pa.schema([*fields, *_FROM])


@dataclass
class Marks:
    """Why lines of one batch are bad: the first reason of each."""

    reason_of: dict[int, str] = field(default_factory=dict)

    def among(self, place_M: np.ndarray) -> MARK:
        """Marks rows that stand at `place_M` (M,) in the batch."""

        def mark(bad_M: np.ndarray, reason: str) -> None:
            for place in place_M[bad_M].tolist():
                self.reason_of.setdefault(place, reason)

        return mark


@dataclass
class FileOrder:
    """How far a file's moments have come, for files whose lines are said to be in order."""

    latest: int = -(2**62)

    def mark_late(self, batch: Batch, spec: Files, log: Log, mark: MARK) -> None:
        """Marks lines whose moment lies more than `late_s` before that of an earlier line."""
        assert spec.ordered_by is not None
        at = moments(batch, spec.ordered_by, log, f"order ({'/'.join(spec.ordered_by.columns)})", mark)
        at_N = pc.fill_null(at, self.latest).to_numpy(zero_copy_only=False)
        before_N = np.maximum.accumulate(np.r_[self.latest, at_N])
        mark(at_N < before_N[:-1] - round(spec.late_s * SECOND), f"out of order by more than {spec.late_s:g} s")
        self.latest = int(before_N[-1])


def rows_of(batch: Batch, spec: Files, log: Log, order: FileOrder, rejected: Rejected) -> dict[str, list[pa.Table]]:
    """Table -> rows of the good lines; bad lines go to `rejected`."""
    marks = Marks()
    if spec.ordered_by is not None:
        order.mark_late(batch, spec, log, marks.among(np.arange(len(batch))))
    made = [(rows.table, *_of_one(batch, rows, log, marks)) for rows in spec.rows]
    bad_N = np.zeros(len(batch), bool)
    for place, reason in sorted(marks.reason_of.items()):
        bad_N[place] = True
        rejected.add(batch.file, int(batch.line_N[place]), reason, "")
    tables: dict[str, list[pa.Table]] = {}
    for name, table, place_M in made:
        tables.setdefault(name, []).append(table.filter(pa.array(~bad_N[place_M])))
    return tables


def _of_one(batch: Batch, rows: Rows, log: Log, marks: Marks) -> tuple[pa.Table, np.ndarray]:
    """(rows (M,), the place in the batch that each came from)."""
    place_M = np.arange(len(batch))
    if rows.each is not None:
        batch, place_M = _pieces(batch, rows.each, marks)
    for when in rows.when:
        text = batch.text(when.column)
        kept = pc.is_valid(text)
        if when.filled is False:
            kept = pc.invert(kept)
        if when.is_:
            kept = pc.and_(kept, pc.is_in(text, pa.array(when.is_, pa.string())))
        if when.above is not None:
            number = pc.match_substring_regex(text, NUMBER)
            marks.among(place_M)(
                ~pc.fill_null(number, True).to_numpy(zero_copy_only=False), f"{when.column} is not a number"
            )
            numbers = pc.if_else(number, text, pa.scalar(None, pa.string())).cast(pa.float64())
            kept = pc.and_(kept, pc.greater(numbers, when.above))
        at_M = np.flatnonzero(pc.fill_null(kept, False).to_numpy(zero_copy_only=False))
        batch, place_M = batch.take(at_M), place_M[at_M]
    mark = marks.among(place_M)
    schema = foreign_schema(rows.table)
    contract = TABLES[rows.table].schema
    columns = {name: pa.nulls(len(batch), schema.field(name).type) for name in schema.names}
    for name, source in rows.columns.items():
        columns[name] = converted(batch, name, contract.field(name), source, log, mark)
        if not contract.field(name).nullable:
            empty_M = columns[name].is_null().to_numpy(zero_copy_only=False)
            mark(empty_M, f"{name} ({'/'.join(source.columns)}) is empty")
        if source.columns:
            _mark_impossible(rows.table, name, columns[name], f"{name} ({'/'.join(source.columns)})", mark)
    if rows.attributes:
        columns["attributes"] = _attributes(batch, rows.attributes)
    piece = batch.columns.get("_piece")
    columns["_file"], columns["_line"] = batch.columns["_file"], pa.array(batch.line_N)
    columns["_piece"] = piece.cast(pa.int64()) if piece is not None else pa.array(np.zeros(len(batch), np.int64))
    columns["_again"] = pa.repeat(pa.scalar(rows.repeats == "first"), len(batch))
    return pa.table([columns[name] for name in schema.names], schema=schema), place_M


def _mark_impossible(table: str, name: str, column: pa.Array, label: str, mark: MARK) -> None:
    """Marks values (M,) that read well and that no log can have: unknown words, probabilities that are none."""
    if words := WORDS.get((table, name)):
        unknown = pc.and_(pc.is_valid(column), pc.invert(pc.is_in(column, pa.array(words, pa.string()))))
        mark(unknown.to_numpy(zero_copy_only=False), f"{label} is none of {', '.join(words)}")
    elif name == "propensity":
        least, most, said = RANGES[table, name]
        inside = pc.and_(pc.greater_equal(column, float(least)), pc.less_equal(column, float(most)))
        mark(~pc.fill_null(inside, True).to_numpy(zero_copy_only=False), f"{label} is no probability: it {said}")


def _pieces(batch: Batch, each: Each, marks: Marks) -> tuple[Batch, np.ndarray]:
    """One line for each piece of a column, and the place that it came from."""
    lists = pc.split_pattern(pc.fill_null(batch.text(each.column), ""), each.separator)
    place_M = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    pieces = pc.list_flatten(lists)
    first_N = np.r_[0, np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))[:-1]]
    number_M = np.arange(len(place_M)) - first_N[place_M]
    groups = pc.extract_regex(pieces, each.pattern)
    filled_M = pc.not_equal(pieces, "").to_numpy(zero_copy_only=False)
    odd_M = groups.is_null().to_numpy(zero_copy_only=False) & filled_M
    marks.among(place_M)(odd_M, f"a part of {each.column} does not look as it should")
    parts = {groups.type.field(i).name: groups.field(i) for i in range(groups.type.num_fields)}
    whole = batch.take(place_M)
    columns = whole.columns | parts | {"_piece": pa.array(number_M).cast(pa.string())}
    made = Batch(batch.file, whole.line_N, columns, batch.lines_before)
    kept = np.flatnonzero(filled_M)
    return made.take(kept), place_M[kept]


def _attributes(batch: Batch, names: tuple[str, ...]) -> pa.Array:
    texts = [batch.text(name).to_pylist() for name in names]
    rows = [[(name, text) for name, text in zip(names, row) if text is not None] for row in zip(*texts)]
    return pa.array(rows, pa.map_(pa.string(), pa.string()))
