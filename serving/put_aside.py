"""Entries of the streams that cannot become rows: found one by one, kept in a file with the reason, and never in the way."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from contracts.errors import BadInput
from contracts.files import write_atomically
from contracts.lake import conform
from contracts.tables import TableSpec
from contracts.workspace import Workspace
from serving.store.protocol import Unreadable

Entry = TypeVar("Entry")
Row = dict[str, Any]
Rows = list[tuple[TableSpec, list[Row], tuple[str, ...]]]
"""Per table its rows and the columns that tell them apart."""
Tables = list[tuple[TableSpec, pa.Table, tuple[str, ...]]]
_NO_ROW = (ValueError, OverflowError, TypeError, pa.ArrowException, BadInput, Unreadable)
_MOST_SHOWN = 2000
"""Characters of an entry that are kept."""


def tables_of(entries: dict[str, Entry], rows_of: Callable[[dict[str, Entry]], Rows]
              ) -> tuple[Tables, dict[str, Entry], dict[str, str]]:  # fmt: skip
    """(tables, the entries that are in them, the others with why they cannot be rows).

    An entry is in all of the tables or in none. Entries are tried one by one only where they do not fit together.
    """
    try:
        return _built(rows_of(entries)), entries, {}
    except _NO_ROW:
        reasons = {}
        for name, entry in entries.items():
            try:
                _built(rows_of({name: entry}))
            except _NO_ROW as error:
                reasons[name] = str(error)
        if not reasons:
            raise
        kept = {name: entry for name, entry in entries.items() if name not in reasons}
        return _built(rows_of(kept)), kept, reasons


def _built(rows: Rows) -> Tables:
    return [(spec, conform(pa.Table.from_pylist(new, schema=spec.schema), spec), key) for spec, new, key in rows]


def put_aside(workspace: Workspace, stream: str, entries: dict[str, Any], reasons: dict[str, str]) -> None:
    """Adds the entries with a reason to `lake/quarantine/feedback.jsonl`, each once however often it is found."""
    if not reasons:
        return
    path = workspace.root / "lake" / "quarantine" / "feedback.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = {(one["stream"], one["entry"]): one for one in map(json.loads, lines)}
    for name, reason in reasons.items():
        content = repr(entries[name])[:_MOST_SHOWN]
        kept[stream, name] = {"stream": stream, "entry": name, "reason": reason, "content": content}
    write_atomically(path, "".join(f"{json.dumps(one, sort_keys=True)}\n" for one in kept.values()).encode())
