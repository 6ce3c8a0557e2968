"""What a mapping file says: which files hold a log, and how their columns become rows of the contract's tables."""

import tomllib
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from contracts.clock import micros
from contracts.errors import BadInput
from contracts.tables import ACTION_KINDS, BLOCK_KINDS, FRIENDSHIP_KINDS, POST_KINDS, TABLES, VISIBILITIES

ID_KINDS = {
    "user_id": "user", "friend_id": "user", "target_id": "user", "author_id": "user", "audience": "user",
    "post_id": "post", "origin_post_id": "post", "candidates": "post", "request_id": "request", "action_id": "action",
    "subject_id": "subject", "topic": "topic",
}  # fmt: skip
"""Column of the contract -> what its ids stand for; equal foreign ids of one kind get equal numbers."""
TIMES = frozenset(
    ("registered_at", "since", "ended_at", "created_at", "edited_at", "deleted_at", "known_at", "requested_at", "shown_at",
     "occurred_at", "started_at")
)  # fmt: skip
WORDS = {
    ("actions", "kind"): ACTION_KINDS, ("posts", "kind"): POST_KINDS, ("posts", "visibility"): VISIBILITIES,
    ("friendships", "kind"): FRIENDSHIP_KINDS, ("blocks", "kind"): BLOCK_KINDS,
}  # fmt: skip
"""(table, column) -> the words that it can hold."""
RANGES = {
    ("impressions", "propensity"): (5e-324, 1, "lies above 0 and at most at 1"),
    ("impressions", "position"): (0, 1_000_000, "lies from 0 to 1,000,000"),
    ("impressions", "viewed_ms"): (0, 86_400_000, "lies from 0 to 86,400,000"),
    ("requests", "slate_size"): (0, 10_000, "lies from 0 to 10,000"),
    ("sessions", "requests"): (0, 100_000, "lies from 0 to 100,000"),
}
"""(table, column) -> the least and the most that its numbers can be, and so in words."""
CENTURY_S = 100 * 366 * 86_400
PLACES = ("_file", "_folder", "_line", "_piece")
"""Columns that every file has: its name, the name of the folder it lies in, the line (from 1), the place in `each`."""
_COMPLETED = {
    "users": {"registered_at", "known_at"}, "friendships": {"since", "known_at"}, "blocks": {"known_at"},
    "posts": {"author_id", "created_at", "known_at", "kind", "topic", "visibility"}, "topics": {"known_at"},
    "subjects": {"known_at", "kind"}, "requests": {"candidates", "slate_size", "policy", "known_at"},
    "impressions": {"request_id", "author_id", "position", "viewed_ms", "policy", "known_at"},
    "actions": {"action_id", "author_id", "known_at"}, "sessions": set(),
}  # fmt: skip
"""Columns that may not be empty in the lake and need not be mapped: `pipelines.sources.completion` fills them."""


def _groups(pattern: str) -> list[str]:
    """The named groups of a regular expression (RE2); ValueError when it is none, or has groups without a name."""
    try:
        return [one.name for one in pc.extract_regex(pa.array([""]), pattern).type]
    except pa.ArrowInvalid as error:
        raise ValueError(f"{pattern!r} cannot be used: {error}") from None


def _check_pattern(pattern: str) -> None:
    """ValueError when no moment can be read by `pattern`."""
    import pandas as pd

    try:
        pd.to_datetime(pd.Series(["x"], dtype="object"), format=pattern, errors="coerce")
    except ValueError as error:
        raise ValueError(f"time {pattern!r} cannot be used: {error}") from None


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Source(_Strict):
    """Where one column's values come from."""

    columns: tuple[str, ...] = Field(
        (), alias="from", description="foreign column; several are joined by '/' to one id"
    )
    value: str | int | float | None = Field(None, description="the same value in every row, instead of `from`")
    default: str | int | float | None = Field(None, description="stands for an empty value")
    map: dict[str, str | int | float] = Field(
        {}, description="foreign value -> value; any other is an error without default"
    )
    pattern: str | None = Field(
        None, description="regular expression whose group `value` is taken, as ^(?P<value>[0-9]+)"
    )
    scale: float = Field(1.0, description="factor for numbers, as 1000 from seconds to milliseconds")
    less: int = Field(
        0, ge=-(2**53), le=2**53, description="taken off whole numbers, as 1 from positions that count from 1"
    )
    separator: str | None = Field(None, description="between the values of a list")
    time: str | None = Field(None, description="s, ms, us, iso, days or line, or a pattern such as %Y-%m-%d %H:%M:%S")
    zone: str = Field("UTC", description="time zone of moments that name none")
    origin: date = Field(date(1970, 1, 1), description="what `days` (0 is this day) and `line` count from")
    step_s: float = Field(1.0, gt=0, le=CENTURY_S, description="seconds from one line to the next, for `line`")
    plus_s: float = Field(0.0, ge=-CENTURY_S, le=CENTURY_S, description="seconds added")
    spread_by: tuple[str, ...] = Field(
        (), description="for days: columns whose hash gives the moment in the first 12 hours"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"columns": (given,)}
        if isinstance(given, dict) and isinstance(given.get("from"), str):
            return {**given, "from": (given["from"],)}
        return given

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.columns) == (self.value is not None):
            raise ValueError("give either from or value")
        if self.pattern is not None and _groups(self.pattern) != ["value"]:
            raise ValueError(f"pattern {self.pattern!r} needs one named group, (?P<value>...)")
        if self.zone != "UTC" and self.zone not in available_timezones():
            raise ValueError(f"there is no time zone {self.zone}")
        if self.time is not None and self.time not in ("s", "ms", "us", "iso", "days", "line") and "%" not in self.time:
            raise ValueError(f"time is s, ms, us, iso, days, line or a pattern with %, not {self.time!r}")
        if "%" in (self.time or ""):
            _check_pattern(self.time or "")
        return self


class When(_Strict):
    """Which rows of a file are meant: all conditions that are given must hold."""

    column: str
    is_: tuple[str, ...] = Field((), alias="is", description="one of these values")
    above: float | None = Field(None, description="a number above this")
    filled: bool | None = Field(None, description="whether there is a value")

    @model_validator(mode="before")
    @classmethod
    def _one_is_many(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("is"), str):
            return {**given, "is": (given["is"],)}
        return given

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.is_ and self.above is None and self.filled is None:
            raise ValueError(f"when names column {self.column} and no condition: say is, above or filled")
        return self


class Each(_Strict):
    """A column that holds many values, each of which becomes a row: `pattern`'s named groups become columns."""

    column: str
    separator: str = Field(min_length=1)
    pattern: str

    @model_validator(mode="after")
    def _named(self) -> Self:
        _groups(self.pattern)
        return self


class Rows(_Strict):
    """Rows of one table from each line of a file."""

    table: str
    columns: dict[str, Source]
    when: Annotated[tuple[When, ...], BeforeValidator(lambda one: (one,) if isinstance(one, dict) else one)] = ()
    each: Each | None = None
    attributes: tuple[str, ...] = Field((), description="users: foreign columns that are kept by their own names")
    repeats: Literal["reject", "first"] = Field("reject", description="what a later line of the same key is: an error, or "
                                                "the same thing said again, of which the first line counts")  # fmt: skip

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.table not in TABLES:
            raise ValueError(f"there is no table {self.table}; there are: {', '.join(TABLES)}")
        schema = TABLES[self.table].schema
        for name, source in self.columns.items():
            if name not in schema.names:
                raise ValueError(f"table {self.table} has no column {name}; it has: {', '.join(schema.names)}")
            if pa.types.is_map(schema.field(name).type):
                raise ValueError(
                    f"{name} is not made of one column: name the foreign columns in attributes of these rows"
                )
            if name in TIMES and source.value is None and source.time is None:
                raise ValueError(f"{name} is a moment: say its unit or pattern in time")
            if len(source.columns) > 1 and name not in ID_KINDS:
                raise ValueError(f"{name} is no id: only ids are joined from several columns")
            if pa.types.is_list(schema.field(name).type) and source.columns and source.separator is None:
                raise ValueError(f"{name} is a list: say its separator")
            self._check_numbers(name, source)
        needed = {field.name for field in schema if not field.nullable} - _COMPLETED[self.table]
        if missing := sorted(needed - set(self.columns)):
            raise ValueError(f"table {self.table} needs column {', '.join(missing)}")
        if self.attributes and self.table != "users":
            raise ValueError("only users have attributes")
        return self

    def _check_numbers(self, name: str, source: Source) -> None:
        """ValueError for what is given by the mapping itself and the column cannot hold."""
        dtype = TABLES[self.table].schema.field(name).type
        number = name not in ID_KINDS and (pa.types.is_integer(dtype) or pa.types.is_floating(dtype))
        if not number and (source.less or source.scale != 1.0):
            raise ValueError(f"{name} is no number: less and scale do not apply")
        for value in (source.value, source.default, *(() if name in TIMES else source.map.values())):
            if value is not None and (fault := self._fault(name, dtype, value)):
                raise ValueError(f"{name} cannot be {value!r}: {fault}")

    def _fault(self, name: str, dtype: pa.DataType, value: str | int | float) -> str | None:
        if name in ID_KINDS:
            return "one value is no list" if pa.types.is_list(dtype) else None
        if known := WORDS.get((self.table, name)):
            return None if value in known else f"it is one of {', '.join(known)}"
        if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
            return None if pa.types.is_string(dtype) else "only numbers, words and ids can be given here"
        try:
            held = pa.scalar(float(value) if pa.types.is_floating(dtype) else int(value), dtype).as_py()
        except (ValueError, OverflowError, pa.ArrowInvalid):
            return "it is a moment in whole UTC microseconds" if name in TIMES else f"it is a number of type {dtype}"
        if held != float(value) or not np.isfinite(held):
            return f"it is a finite number of type {dtype}"
        least, most, words = RANGES.get((self.table, name), (held, held, ""))
        return None if least <= held <= most else f"it {words}"

    def foreign(self) -> list[str]:
        """The file's columns that these rows are made of."""
        made = set(self.each_columns())
        named = [name for source in self.columns.values() for name in (*source.columns, *source.spread_by)]
        named += [*(one.column for one in self.when), *self.attributes, *((self.each.column,) if self.each else ())]
        return [name for name in dict.fromkeys(named) if name not in made and name not in PLACES]

    def each_columns(self) -> list[str]:
        """The columns that `each` makes."""
        return _groups(self.each.pattern) if self.each else []


class Files(_Strict):
    """Files of one layout."""

    path: tuple[str, ...] = Field(min_length=1, description="file names or patterns below the log's folder")
    format: Literal["csv", "jsonl", "parquet"]
    rows: tuple[Rows, ...]
    delimiter: str = Field(",", min_length=1, max_length=1)
    quote: str = Field('"', max_length=1, description="empty: quotation marks are letters like others")
    header: tuple[str, ...] = Field((), description="names of the columns of a file that has no header line")
    encoding: str = Field("utf-8", description="one that keeps ASCII as it is: utf-8, latin-1, gb18030, shift_jis, …")
    optional: bool = Field(False, description="whether the log may lack it")
    ordered_by: Source | None = Field(None, description="the moment by which the lines are said to be in order; a line "
                                      "that comes too late is rejected")  # fmt: skip
    late_s: float = Field(0.0, ge=0, le=CENTURY_S, description="seconds by which a line may come late")

    @model_validator(mode="before")
    @classmethod
    def _one_is_many(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("path"), str):
            return {**given, "path": (given["path"],)}
        return given

    @model_validator(mode="after")
    def _readable(self) -> Self:
        try:
            broken = " \t,".encode(self.encoding) != b" \t,"
        except LookupError:
            raise ValueError(f"there is no encoding {self.encoding}") from None
        if broken:
            raise ValueError(f"encoding {self.encoding} does not keep ASCII as it is: convert the files first")
        if self.ordered_by is not None and self.ordered_by.time is None:
            raise ValueError("ordered_by is a moment: say its unit or pattern in time")
        if self.ordered_by is not None and not self.ordered_by.columns:
            raise ValueError("ordered_by needs a column: say which in from")
        if not (self.delimiter + self.quote).isascii() or self.delimiter in "\r\n":
            raise ValueError(
                f"delimiter {self.delimiter!r} and quote {self.quote!r} must be ASCII, and no end of a line"
            )
        for one in self.path:
            if not one or Path(one).is_absolute() or ".." in Path(one).parts:
                raise ValueError(f"path {one!r} names no file below the log's folder")
        return self

    def foreign(self) -> list[str]:
        """The columns that are read."""
        order = self.ordered_by.columns if self.ordered_by else ()
        return list(dict.fromkeys([*(name for rows in self.rows for name in rows.foreign()), *order]))


class Log(_Strict):
    """The log as a whole."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="names the id map and the quarantine")
    attribution_hours: float = Field(
        24.0, gt=0, le=876_000, description="hours after an impression in which an action counts for it"
    )
    live_days: float = Field(30.0, gt=0, le=36_500, description="days that a post stays a candidate")
    warmup_days: float = Field(0.0, ge=0, le=36_500, description="days of history before the first sample")
    first_date: date = Field(date(1990, 1, 1), ge=date(1900, 1, 1), description="earlier moments are impossible")
    last_date: date = Field(date(2100, 1, 1), le=date(2200, 1, 1), description="later moments are impossible")
    reject_limit: float = Field(0.05, ge=0, le=1, description="share of a file's lines that may be unusable")
    publisher: str = Field("(publisher)", description="the author of posts that name none")
    post_kind: str = Field("link", description="kind of posts whose kind is not known")
    number_ids: tuple[Literal["user", "post", "request", "action", "subject"], ...] = Field(
        (), description="kinds whose ids are whole numbers that the lake keeps; others are numbered from 1"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.first_date >= self.last_date:
            raise ValueError(f"first_date {self.first_date} is not before last_date {self.last_date}")
        if self.post_kind not in POST_KINDS:
            raise ValueError(f"post_kind {self.post_kind!r} is none of {', '.join(POST_KINDS)}")
        return self


class Mapping(_Strict):
    """A whole mapping file."""

    log: Log
    files: tuple[Files, ...] = Field(min_length=1)
    derived: dict[str, str] = Field({}, description="table or column -> the rule that made what the files do not hold")
    not_used: dict[str, str] = Field({}, description="what the files hold and the lake does not, and why")

    @model_validator(mode="after")
    def _moments_possible(self) -> Self:
        first, last = (micros(datetime.combine(day, time(), UTC)) for day in (self.log.first_date, self.log.last_date))
        given = [
            (name, source.value) for files in self.files for rows in files.rows for name, source in rows.columns.items()
        ]
        for name, value in given:
            if name in TIMES and value is not None and not first <= int(value) < last:
                raise ValueError(
                    f"{name} cannot be {value!r}: it lies outside {self.log.first_date} to {self.log.last_date}, in UTC microseconds"
                )
        return self


def load_mapping(path: Path) -> Mapping:
    """The mapping in the TOML file `path`; `BadInput` names the file and the line or the key that is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"mapping {path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"mapping {path} is not TOML: {error}") from None
    try:
        return Mapping.model_validate(content)
    except ValidationError as error:
        # Of the kinds that a value may be, the first is not what a number that is none was meant to be.
        first = next((one for one in error.errors() if one["type"] == "finite_number"), error.errors()[0])
        place = ".".join(str(part) for part in first["loc"])
        value = f", not {first['input']}" if isinstance(first["input"], int | float) else ""
        raise BadInput(f"mapping {path}: {place}: {first['msg'].removeprefix('Value error, ')}{value}") from None
