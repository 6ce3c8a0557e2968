"""The feed's own log back into the lake: what was served and done becomes the next turn's input.

Feeds and events are read from Redis' streams and upserted, so doing it twice, or again after a kill, ends with the same
rows. A post counts as viewed when the event stream has a `view` of it (see `serving.api.accept`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import redis

from contracts.clock import DAY
from contracts.progress import stage
from contracts.served import (
    POST_EVENTS,
    FeedRecord,
    LiveEvent,
    action_row,
    block_rows,
    impression_rows,
    look_row,
    post_row,
    request_row,
)
from contracts.tables import ACTIONS, BLOCKS, IMPRESSIONS, POSTS, REQUESTS
from contracts.workspace import Workspace
from serving.feed.side_effects import decode_record
from serving.live_events import events_after, is_later
from serving.put_aside import Row, Rows, put_aside, tables_of
from serving.store.packing import unpack_document
from serving.store.protocol import Unreadable
from serving.store.redis import EVENTS, FEED_LOG, answering, connect, stream_name
from serving.versions import FIRST, log_identity

_READ_AT_ONCE = 1000
_BLOCK_KEY = ("user_id", "target_id", "kind", "since")


def drain(workspace: Workspace, redis_url: str) -> dict[str, int]:
    """Brings what was served and done since the log's end into the lake; returns how many rows of each table came.

    `put_aside` counts entries that cannot become rows: they go to `lake/quarantine/feedback.jsonl` and hold up nothing.
    All tables are made before the first is written.

    What arrives meanwhile is left for the next time: the streams are read up to ids that are fixed first, and the dataset
    remembers them. Its end moves to just after the last of it, and moves whenever anything came, so that features are
    built anew. Raises `BadInput` when there is no log or nothing answers.
    """
    dataset = workspace.dataset()
    log_id = log_identity(dataset)
    client = connect(redis_url, timeout_s=60.0)
    with stage("bring served feeds and events into the lake"):
        upto = _last_ids(client)
        names = {stream: stream_name(client, stream) for stream in upto}
        events = {one: event for one, log, _, event in _all_events(client, upto[EVENTS]) if log == log_id}
        found = {one: feed for one, feed in _all_feeds(client, upto[FEED_LOG]) if feed.versions.get("log") == log_id}
        tables, sound, unsound = tables_of(events, _event_rows)
        views = _views(sound.values())
        feed_tables, served, unserved = tables_of(found, lambda some: _feed_rows(some.values(), views))
        put_aside(workspace, EVENTS, events, unsound)
        put_aside(workspace, FEED_LOG, found, unserved)
        events, found, feeds = sound, served, list(served.values())
        for spec, table, key in (*feed_tables, *tables):
            workspace.lake.upsert(spec, table, key)
        drained_to = dataset.drained_to | {names[stream]: last for stream, last in upto.items()}
        end = dataset.end
        for stream, ids in ((EVENTS, events), (FEED_LOG, found)):
            if any(is_later(one, dataset.drained_to.get(names[stream], FIRST)) for one in ids):
                moments = [feed.served_at for feed in feeds] + [event.at for event in events.values()]
                end = max(dataset.end, max(moments)) + 1
        if drained_to != dataset.drained_to:
            replace(dataset, end=end, drained_to=drained_to).save(workspace.dataset_path)
    rows = {spec.name: table.num_rows for spec, table, _ in (*feed_tables, *tables)}
    return rows | {"put_aside": len(unsound) + len(unserved)}


def _feed_rows(feeds: Iterable[FeedRecord], views: dict[tuple[int, int], tuple[int, int]]) -> Rows:
    feeds = list(feeds)
    return [
        (REQUESTS, [request_row(feed) for feed in feeds], ("request_id",)),
        (IMPRESSIONS, [row for feed in feeds for row in _impressions(feed, views)], ("request_id", "position")),
    ]


def _event_rows(events: dict[str, LiveEvent]) -> Rows:
    """Raises ValueError for a look that took no time that can be."""
    actions = [action_row(one, event) for one, event in events.items()]
    return [
        (ACTIONS, [row for row in actions if row is not None], ("action_id",)),
        (POSTS, list(_posts(events)), ("post_id",)),
        (BLOCKS, list(_blocks(events)), _BLOCK_KEY),
    ]


def _last_ids(client: redis.Redis) -> dict[str, str]:
    """Stream -> id of its last entry, of both streams at one moment, so that no event is without its feed."""
    with answering(), client.pipeline(transaction=True) as pipe:
        entries = pipe.xrevrange(EVENTS, count=1).xrevrange(FEED_LOG, count=1).execute()
    return {stream: last[0][0].decode() if last else FIRST for stream, last in zip((EVENTS, FEED_LOG), entries)}


def _all_events(client: redis.Redis, upto: str) -> Iterator[tuple[str, str, int, LiveEvent]]:
    after = FIRST
    while is_later(upto, after) and (entries := events_after(client, after, _READ_AT_ONCE)):
        yield from (one for one in entries if not is_later(one[0], upto))
        after = entries[-1][0]


def _all_feeds(client: redis.Redis, upto: str) -> Iterator[tuple[str, FeedRecord]]:
    after = FIRST
    while is_later(upto, after):
        with answering():
            entries = client.xrange(FEED_LOG, min=f"({after}", max=upto, count=_READ_AT_ONCE)
        if not entries:
            return
        for stream_id, fields in entries:
            after = stream_id.decode()
            try:
                feed = decode_record(fields[b"feed"])
            except (KeyError, ValueError):
                raise Unreadable(f"entry {after} of the stream {FEED_LOG} is no feed: delete it there") from None
            yield after, feed


def _views(events: Iterable[LiveEvent]) -> dict[tuple[int, int], tuple[int, int]]:
    """(request, post) -> (UTC us of the first look at it, milliseconds of it that were reported, at least 1)."""
    views: dict[tuple[int, int], tuple[int, int]] = {}
    for look in filter(None, map(look_row, events)):
        key = look["request_id"], look["post_id"]
        at, viewed_ms = views.get(key, (look["looked_at"], 1))
        views[key] = min(at, look["looked_at"]), max(viewed_ms, look["looked_ms"])
    return views


def _impressions(feed: FeedRecord, views: dict[tuple[int, int], tuple[int, int]]) -> Iterator[Row]:
    # A row stays in the day it was served in, whenever it is drained again.
    day_ends = feed.served_at // DAY * DAY + DAY - 1
    for row in impression_rows(feed):
        looked_at, viewed_ms = views.get((feed.request_id, row["post_id"]), (feed.served_at, 0))
        shown_at = min(looked_at, day_ends)
        yield row | {"shown_at": shown_at, "viewed_ms": viewed_ms, "known_at": shown_at}


def _posts(events: dict[str, LiveEvent]) -> Iterator[Row]:
    documents = {e.post_id: e.document for e in events.values() if e.kind in POST_EVENTS}
    yield from map(post_row, map(unpack_document, documents.values()))


def _blocks(events: dict[str, LiveEvent]) -> Iterator[Row]:
    rows = {tuple(row[name] for name in _BLOCK_KEY): row for event in events.values() for row in block_rows(event)}
    yield from rows.values()
