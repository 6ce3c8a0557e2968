"""What a mapping file says: which files hold a log, and how their columns become rows of the contract's tables."""

import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import available_timezones

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from contracts.errors import BadInput
from contracts.tables import TABLES

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


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


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
    less: int = Field(0, description="taken off whole numbers, as 1 from positions that count from 1")
    separator: str | None = Field(None, description="between the values of a list")
    time: str | None = Field(None, description="s, ms, us, iso, days or line, or a pattern such as %Y-%m-%d %H:%M:%S")
    zone: str = Field("UTC", description="time zone of moments that name none")
    origin: date = Field(date(1970, 1, 1), description="what `days` (0 is this day) and `line` count from")
    step_s: float = Field(1.0, gt=0, description="seconds from one line to the next, for `line`")
    plus_s: float = Field(0.0, description="seconds added")
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


class Each(_Strict):
    """A column that holds many values, each of which becomes a row: `pattern`'s named groups become columns."""

    column: str
    separator: str
    pattern: str


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
            if name in TIMES and source.value is None and source.time is None:
                raise ValueError(f"{name} is a moment: say its unit or pattern in time")
            if len(source.columns) > 1 and name not in ID_KINDS:
                raise ValueError(f"{name} is no id: only ids are joined from several columns")
            if pa.types.is_list(schema.field(name).type) and source.columns and source.separator is None:
                raise ValueError(f"{name} is a list: say its separator")
        needed = {field.name for field in schema if not field.nullable} - _COMPLETED[self.table]
        if missing := sorted(needed - set(self.columns)):
            raise ValueError(f"table {self.table} needs column {', '.join(missing)}")
        if self.attributes and self.table != "users":
            raise ValueError("only users have attributes")
        return self

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

    path: tuple[str, ...] = Field(description="file names or patterns below the log's folder")
    format: Literal["csv", "jsonl", "parquet"]
    rows: tuple[Rows, ...]
    delimiter: str = Field(",", min_length=1, max_length=1)
    quote: str = Field('"', max_length=1, description="empty: quotation marks are letters like others")
    header: tuple[str, ...] = Field((), description="names of the columns of a file that has no header line")
    encoding: str = Field("utf-8", description="one that keeps ASCII as it is: utf-8, latin-1, gb18030, shift_jis, …")
    optional: bool = Field(False, description="whether the log may lack it")
    ordered_by: Source | None = Field(None, description="the moment by which the lines are said to be in order; a line "
                                      "that comes too late is rejected")  # fmt: skip
    late_s: float = Field(0.0, ge=0, description="seconds by which a line may come late")

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
        return self

    def foreign(self) -> list[str]:
        """The columns that are read."""
        order = self.ordered_by.columns if self.ordered_by else ()
        return list(dict.fromkeys([*(name for rows in self.rows for name in rows.foreign()), *order]))


class Log(_Strict):
    """The log as a whole."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="names the id map and the quarantine")
    attribution_hours: float = Field(
        24.0, gt=0, description="hours after an impression in which an action counts for it"
    )
    live_days: float = Field(30.0, gt=0, description="days that a post stays a candidate")
    warmup_days: float = Field(0.0, ge=0, description="days of history before the first sample")
    first_date: date = Field(date(1990, 1, 1), description="earlier moments are impossible")
    last_date: date = Field(date(2100, 1, 1), description="later moments are impossible")
    reject_limit: float = Field(0.05, ge=0, le=1, description="share of a file's lines that may be unusable")
    publisher: str = Field("(publisher)", description="the author of posts that name none")
    post_kind: str = Field("link", description="kind of posts whose kind is not known")
    number_ids: tuple[Literal["user", "post", "request", "action", "subject"], ...] = Field(
        (), description="kinds whose ids are whole numbers that the lake keeps; others are numbered from 1"
    )


class Mapping(_Strict):
    """A whole mapping file."""

    log: Log
    files: tuple[Files, ...] = Field(min_length=1)
    derived: dict[str, str] = Field({}, description="table or column -> the rule that made what the files do not hold")
    not_used: dict[str, str] = Field({}, description="what the files hold and the lake does not, and why")


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
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"mapping {path}: {place}: {first['msg'].removeprefix('Value error, ')}") from None
