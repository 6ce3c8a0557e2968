"""Foreign files as batches of columns with their line numbers; a line that has no columns is put aside, not skipped."""

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from contracts.errors import BadInput
from contracts.progress import say
from contracts.tables import TABLES
from pipelines.sources.foreign_files import Rejected
from pipelines.sources.mapping import Files

BATCH_BYTES = 8 << 20
JSON_LINES = 50_000
SAY_EVERY_S = 10.0
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Batch:
    """Lines (N,) of one file: the wanted columns as text, or as moments and lists where Parquet has those.

    `lines_before`: lines of all files before this one, which makes the order of lines one order over all files.
    """

    file: str
    line_N: np.ndarray
    columns: dict[str, pa.Array]
    lines_before: int = 0

    def __len__(self) -> int:
        return len(self.line_N)

    def take(self, at_M: np.ndarray) -> "Batch":
        """The lines at these places, in this order."""
        indices = pa.array(at_M)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        return Batch(self.file, self.line_N[at_M], columns, self.lines_before)

    def text(self, name: str) -> pa.Array:
        """A column as text (N,), null where it is empty."""
        column = self.columns[name]
        if not pa.types.is_string(column.type):
            column = column.cast(pa.string())
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


@dataclass
class FileRead:
    """How far a file has been read: lines, without the header, whether they could be used or not."""

    name: str
    lines_before: int = 0
    lines: int = 0

    def reject(self, rejected: Rejected, line: int, reason: str) -> None:
        """Puts a line aside that has no columns to speak of."""
        self.lines += 1
        rejected.add(self.name, line, reason, "")


def found(folder: Path, spec: Files) -> list[Path]:
    """The files that `spec` means, in the order of its patterns, then of their names; `BadInput` when there is none and one must be."""
    if folder.is_file():
        return [folder]
    try:
        paths = list(dict.fromkeys(path for one in spec.path for path in sorted(folder.glob(one)) if path.is_file()))
    except ValueError as error:
        raise BadInput(f"path {' or '.join(spec.path)} cannot be looked for: {error}") from None
    if not paths and not spec.optional:
        raise BadInput(f"{folder} has no file {' or '.join(spec.path)}")
    return paths


def read_batches(path: Path, folder: Path, spec: Files, rejected: Rejected, read: FileRead) -> Iterator[Batch]:
    """The file's lines. Those with another number of columns, or in another encoding, go to `rejected`.

    `BadInput` when the file cannot be read as what it is said to be, or lacks a column; `read.lines` counts as it goes.
    """
    batches = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}[spec.format](path, read, spec, rejected)
    root = folder if folder.is_dir() else folder.parent
    in_folder = path.parent.name if path.parent != root else ""
    said, size = time.monotonic(), path.stat().st_size
    for batch in _readable(batches, path, spec):
        read.lines += len(batch)
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            say(f"  {read.name}: {read.lines:,} lines so far of {size / 1e6:,.0f} MB")
        places: dict[str, Any] = {
            "_file": pa.repeat(pa.scalar(read.name), len(batch)), "_folder": pa.repeat(pa.scalar(in_folder), len(batch)),
            "_line": pa.array(batch.line_N).cast(pa.string()),
        }  # fmt: skip
        if len(batch):
            yield Batch(batch.file, batch.line_N, batch.columns | places, read.lines_before)


def _readable(batches: Iterator[Batch], path: Path, spec: Files) -> Iterator[Batch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} cannot be read as {spec.format}: {error}") from None


def raw_lines(path: Path, numbers: set[int]) -> dict[int, str]:
    """Line number (from 1) -> the line as it stands in a text file, or the row of a Parquet file as JSON."""
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        rows = pq.ParquetFile(path).read().take(pa.array([number - 1 for number in sorted(numbers)]))
        return dict(zip(sorted(numbers), (orjson.dumps(row, default=str).decode() for row in rows.to_pylist())))
    lines = {}
    with pa.input_stream(path, compression="detect") as stream:
        for number, line in enumerate(_lines(stream), start=1):
            if number in numbers:
                lines[number] = line.rstrip(b"\r").decode("utf-8", errors="backslashreplace")
    return lines


def _lines(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(BATCH_BYTES):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _opened(path: Path) -> pa.NativeFile:
    stream = pa.input_stream(path, compression="detect")
    try:
        begin = stream.read(1 << 16)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if b"\0" in begin:
        line = begin[: begin.index(b"\0")].count(b"\n") + 1
        raise BadInput(f"{path}: line {line} holds a zero byte: this is not text in an encoding that keeps ASCII")
    if not begin.strip():
        raise BadInput(f"{path} is empty")
    return pa.input_stream(path, compression="detect")


def _check_columns(path: Path, found_columns: list[str], spec: Files) -> None:
    if repeated := sorted({one for one in found_columns if found_columns.count(one) > 1 and one in spec.foreign()}):
        raise BadInput(f"{path}: line 1 has column {', '.join(repeated)} more than once")
    if missing := [name for name in spec.foreign() if name not in found_columns]:
        raise BadInput(f"{path}: line 1 lacks column {', '.join(missing)}; it has: {', '.join(found_columns)}")


def _csv(path: Path, read: FileRead, spec: Files, rejected: Rejected) -> Iterator[Batch]:
    torn: list[int] = []

    def put_aside(row: pacsv.InvalidRow) -> str:
        torn.append(row.number)
        read.reject(rejected, row.number, f"{row.actual_columns} columns instead of {row.expected_columns}")
        return "skip"

    with _opened(path) as stream:
        first = next(_lines(stream)).removeprefix(BYTE_ORDER_MARK).rstrip(b"\r").decode("utf-8", "replace")
    quote = spec.quote or False
    with _opened(path) as stream:
        parse = pacsv.ParseOptions(delimiter=spec.delimiter, quote_char=quote, double_quote=bool(quote),
                                   ignore_empty_lines=False, invalid_row_handler=put_aside)  # fmt: skip
        # One thread, as only then rows have numbers.
        reading = pacsv.ReadOptions(use_threads=False, block_size=BATCH_BYTES, column_names=list(spec.header) or None)
        if spec.header:
            wanted = spec.foreign()
            if missing := [column for column in wanted if column not in spec.header]:
                raise BadInput(f"the header for {path} lacks column {', '.join(missing)}")
        else:
            names = _names(path, first, spec)
            _check_columns(path, names, spec)
            wanted = spec.foreign()
        convert = pacsv.ConvertOptions(column_types={column: pa.binary() for column in wanted}, include_columns=wanted,
                                       strings_can_be_null=False)  # fmt: skip
        reader = pacsv.open_csv(stream, read_options=reading, parse_options=parse, convert_options=convert)
        line, counted = 1 if spec.header else 2, 0
        for rows in reader:
            line_N, counted = _numbered(line, rows.num_rows, torn, counted)
            line = int(line_N[-1]) + 1 if len(line_N) else line
            columns = {column: rows.column(i) for i, column in enumerate(rows.schema.names)}
            yield _decoded(Batch(read.name, line_N, columns), spec.encoding, read, rejected)


def _names(path: Path, first: str, spec: Files) -> list[str]:
    """The columns that a file's first line names."""
    if "\r" in first:
        raise BadInput(f"{path}: line 1 holds a carriage return: let each line end with a line feed")
    if not spec.quote:
        return first.split(spec.delimiter)
    try:
        return next(csv.reader([first], delimiter=spec.delimiter, quotechar=spec.quote))
    except csv.Error as error:
        raise BadInput(f"{path}: line 1 cannot be read as names of columns: {error}") from None


def _numbered(line: int, rows: int, torn: list[int], counted: int) -> tuple[np.ndarray, int]:
    """(line numbers (rows,) from `line` on without the torn lines, how many of `torn` lie before their end)."""
    end, first = line + rows, counted
    while counted < len(torn) and torn[counted] < end:
        counted += 1
        end += 1
    here = np.array(torn[first:counted], dtype=np.int64)
    return np.setdiff1d(np.arange(line, end), here, assume_unique=True), counted


def _decoded(batch: Batch, encoding: str, read: FileRead, rejected: Rejected) -> Batch:
    """The batch with text for bytes; lines that are empty, or not in the encoding, are put aside."""
    empty_N, broken_N = np.ones(len(batch), bool), np.zeros(len(batch), bool)
    columns = {}
    for name, column in batch.columns.items():
        empty_N &= pc.equal(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        try:
            columns[name] = (
                column.cast(pa.string()) if encoding in ("utf-8", "utf8", "ascii") else _each(column, encoding)
            )
        except (pa.ArrowInvalid, UnicodeDecodeError):
            columns[name] = pa.array([_or_none(one, encoding) for one in column.to_pylist()], pa.string())
            broken_N |= columns[name].is_null().to_numpy(zero_copy_only=False)
    for bad_N, reason in ((empty_N & ~broken_N, "an empty line"), (broken_N, f"not {encoding} text")):
        for at in np.flatnonzero(bad_N):
            read.reject(rejected, int(batch.line_N[at]), reason)
    return Batch(batch.file, batch.line_N, columns).take(np.flatnonzero(~(empty_N | broken_N)))


def _each(column: pa.Array, encoding: str) -> pa.Array:
    return pa.array([one.decode(encoding) for one in column.to_pylist()], pa.string())


def _or_none(content: bytes, encoding: str) -> str | None:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return None


def _json_lines(path: Path, read: FileRead, spec: Files, rejected: Rejected) -> Iterator[Batch]:
    wanted = spec.foreign()
    numbers: list[int] = []
    records: list[dict] = []
    with _opened(path) as stream:
        for number, line in enumerate(_lines(stream), start=1):
            try:
                record = orjson.loads(line if number > 1 else line.removeprefix(BYTE_ORDER_MARK))
            except orjson.JSONDecodeError:
                read.reject(rejected, number, "not JSON" if line.strip() else "an empty line")
                continue
            if not isinstance(record, dict):
                read.reject(rejected, number, "not a JSON object")
                continue
            numbers.append(number)
            records.append(record)
            if len(records) == JSON_LINES:
                yield _from_records(read.name, numbers, records, wanted)
                numbers, records = [], []
    if records:
        yield _from_records(read.name, numbers, records, wanted)


def _from_records(name: str, numbers: list[int], records: list[dict], wanted: list[str]) -> Batch:
    columns = {column: pa.array([_text(_at(record, column)) for record in records], pa.string()) for column in wanted}
    return Batch(name, np.array(numbers, dtype=np.int64), columns)


def _at(record: dict, column: str) -> Any:
    """The value of a name, or of a path of names with dots between."""
    if column in record:
        return record[column]
    value: Any = record
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _parquet(path: Path, read: FileRead, spec: Files, rejected: Rejected) -> Iterator[Batch]:
    file = pq.ParquetFile(path)
    _check_columns(path, file.schema_arrow.names, spec)
    lists = _list_columns(spec)
    for name in spec.foreign():
        dtype = file.schema_arrow.field(name).type
        is_list = name in lists and (pa.types.is_list(dtype) or pa.types.is_large_list(dtype))
        if not _has_text(dtype.value_type if is_list else dtype):
            raise BadInput(f"{path}: column {name} holds {dtype}; here it must hold text, numbers or moments")
    line = 1
    for rows in file.iter_batches(batch_size=JSON_LINES, columns=spec.foreign()):
        line_N = np.arange(line, line + rows.num_rows)
        line += rows.num_rows
        columns = {column: rows.column(column) for column in spec.foreign()}
        yield _text_of_bytes(Batch(read.name, line_N, columns), read, rejected)


def _has_text(dtype: pa.DataType) -> bool:
    try:
        pa.nulls(0, dtype).cast(pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def _list_columns(spec: Files) -> set[str]:
    """The foreign columns of which nothing but lists of the contract are made."""
    lists: set[str] = set()
    others = set(spec.ordered_by.columns if spec.ordered_by else ())
    for rows in spec.rows:
        others |= {*(one.column for one in rows.when), *rows.attributes, *((rows.each.column,) if rows.each else ())}
        for name, source in rows.columns.items():
            is_list = pa.types.is_list(TABLES[rows.table].schema.field(name).type)
            (lists if is_list else others).update(source.columns)
            others |= set(source.spread_by)
    return lists - others


def _text_of_bytes(batch: Batch, read: FileRead, rejected: Rejected) -> Batch:
    """The batch with text for Parquet's bytes; lines whose bytes are no UTF-8 are put aside."""
    broken_N = np.zeros(len(batch), bool)
    columns = dict(batch.columns)
    for name, column in batch.columns.items():
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            continue
        try:
            columns[name] = column.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [None if one is None else _or_none(one, "utf-8") for one in column.to_pylist()]
            columns[name] = pa.array(texts, pa.string())
            broken_N |= np.array([text is None and one.is_valid for text, one in zip(texts, column)])
    for at in np.flatnonzero(broken_N):
        read.reject(rejected, int(batch.line_N[at]), "not utf-8 text")
    made = Batch(batch.file, batch.line_N, columns)
    return made.take(np.flatnonzero(~broken_N)) if broken_N.any() else made
