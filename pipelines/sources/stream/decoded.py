"""Entries into one row each, with the rows of the contract's tables inside it, or with the reason why there are none."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from contracts import served
from contracts.tables import ACTIONS, BLOCKS, IMPRESSIONS, POSTS, REQUESTS, TableSpec
from pipelines.sources.stream.entries import EVENTS

_event = msgspec.msgpack.Decoder(served.LiveEvent).decode
_feed = msgspec.msgpack.Decoder(served.FeedRecord).decode
_document = msgspec.msgpack.Decoder(served.Document).decode
_MOST_SHOWN = 2000
"""Characters of an entry that are kept."""


def _struct(spec: TableSpec) -> pa.DataType:
    return pa.struct([pa.field(one.name, one.type) for one in spec.schema])


_LOOK = pa.struct([(name, pa.int64()) for name in ("request_id", "post_id", "looked_at", "looked_ms")])
_PARTS = {
    "action": _struct(ACTIONS), "look": _LOOK, "post": _struct(POSTS), "blocks": pa.list_(_struct(BLOCKS)),
    "request": _struct(REQUESTS), "impressions": pa.list_(_struct(IMPRESSIONS)),
}  # fmt: skip
SCHEMA = pa.schema(
    [("stream", pa.string()), ("entry_id", pa.string()), ("milliseconds", pa.int64()), ("number", pa.int64()), ("log", pa.string()),
     ("at", pa.int64()), ("of_post", pa.int64()), ("reason", pa.string()), ("content", pa.string()), *_PARTS.items()]
)  # fmt: skip
"""One entry: its place, the log that it goes on from, its moment (UTC us), and what it became. `reason` is null for a sound one."""


def decoded(entries: DataFrame) -> DataFrame:
    """`SCHEMA` from entries; the work is done in Spark's workers."""
    return entries.mapInArrow(_decode_batches, from_arrow_schema(SCHEMA))


def _decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            _decode(stream, entry_id, dict(fields))
            for stream, entry_id, fields in zip(*(batch.column(i).to_pylist() for i in range(3)))
        ]
        try:
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        except (pa.ArrowException, OverflowError, TypeError):
            yield pa.RecordBatch.from_pylist([_fitting(row) for row in rows], schema=SCHEMA)


def _fitting(row: dict[str, Any]) -> dict[str, Any]:
    """`row`, or the same without rows inside where these do not fit the contract's types."""
    try:
        pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        bare = row | dict.fromkeys([*_PARTS, "at", "of_post"]) | {"reason": f"does not fit the tables: {error}"}
        return bare
    return row


def _decode(stream: str, entry_id: str, fields: dict[str, bytes]) -> dict[str, Any]:
    milliseconds, number = map(int, entry_id.split("-"))
    row: dict[str, Any] = dict.fromkeys(SCHEMA.names) | {
        "stream": stream, "entry_id": entry_id, "milliseconds": milliseconds, "number": number
    }  # fmt: skip
    try:
        made = _of_event(entry_id, fields) if stream == EVENTS else _of_feed(fields)
    except KeyError as error:
        made = {"reason": f"has no field {error}", "content": repr(fields)[:_MOST_SHOWN]}
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        log = fields.get("log")
        made = {
            "reason": str(error),
            "content": repr(fields)[:_MOST_SHOWN],
            "log": log.decode(errors="replace") if log else None,
        }
    return row | made


def _of_event(entry_id: str, fields: dict[str, bytes]) -> dict[str, Any]:
    event = _event(fields["event"])
    post = served.post_row(_document(event.document)) if event.kind in served.POST_EVENTS else None
    return {
        "log": fields["log"].decode(), "at": event.at, "of_post": event.post_id, "content": repr(event)[:_MOST_SHOWN],
        "action": served.action_row(entry_id, event), "look": served.look_row(event), "post": post,
        "blocks": list(served.block_rows(event)),
    }  # fmt: skip


def _of_feed(fields: dict[str, bytes]) -> dict[str, Any]:
    feed = _feed(fields["feed"])
    return {
        "log": feed.versions.get("log"), "at": feed.served_at, "content": repr(feed)[:_MOST_SHOWN],
        "request": served.request_row(feed), "impressions": list(served.impression_rows(feed)),
    }  # fmt: skip
