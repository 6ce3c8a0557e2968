"""The feed's own log back into the lake: what was served and done becomes the next turn's input.

Feeds and events are read from Redis' streams and upserted, so doing it twice, or again after a kill, ends with the same
rows. A post counts as viewed when the event stream has a `view` of it (see `serving.api.accept`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import redis

from contracts.clock import DAY, SECOND
from contracts.features import FEATURE_NAMES
from contracts.progress import stage
from contracts.tables import (
    ACTION_KINDS,
    ACTIONS,
    BLOCKS,
    IMPRESSIONS,
    POST_KINDS,
    POSTS,
    REQUESTS,
    VISIBILITIES,
)
from contracts.workspace import Workspace
from serving.feed.side_effects import FeedRecord, decode_record
from serving.live_events import LiveEvent, events_after, is_later
from serving.put_aside import Row, Rows, put_aside, tables_of
from serving.store.families import FOREVER
from serving.store.packing import NO_ID, unpack_document
from serving.store.protocol import Unreadable
from serving.store.redis import EVENTS, FEED_LOG, answering, connect, stream_name
from serving.versions import FIRST, log_identity

_READ_AT_ONCE = 1000
_MS = {"view": 1, "dwell": 1000}
"""Milliseconds in the unit that the value of each kind of event that says how long a post was looked at comes in."""


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
        (REQUESTS, [_request(feed) for feed in feeds], ("request_id",)),
        (IMPRESSIONS, [row for feed in feeds for row in _impressions(feed, views)], ("request_id", "position")),
    ]


def _event_rows(events: dict[str, LiveEvent]) -> Rows:
    """Raises ValueError for a look that took no time that can be."""
    for event in events.values():
        most = 1000 * DAY // SECOND if event.kind == "view" else DAY // SECOND
        if not 0 <= event.value <= most:
            raise ValueError(f"value {event.value} of a {event.kind} is not between 0 and {most}")
    return [
        (ACTIONS, [_action(one, e) for one, e in events.items() if e.kind in ACTION_KINDS], ("action_id",)),
        (POSTS, list(_posts(events)), ("post_id",)),
        (BLOCKS, list(_blocks(events)), ("user_id", "target_id", "kind", "since")),
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


def _request(feed: FeedRecord) -> Row:
    return {
        "request_id": feed.request_id, "user_id": feed.user_id, "requested_at": feed.served_at, "policy": feed.policy,
        "slate_size": len(feed.post_ids), "candidates": feed.considered_ids, "known_at": feed.served_at,
    }  # fmt: skip


def _views(events: Iterable[LiveEvent]) -> dict[tuple[int, int], tuple[int, int]]:
    """(request, post) -> (UTC us of the first look at it, milliseconds of it that were reported, at least 1)."""
    views: dict[tuple[int, int], tuple[int, int]] = {}
    for event in events:
        if event.kind in _MS and event.request_id != NO_ID:
            at, viewed_ms = views.get((event.request_id, event.post_id), (event.at, 1))
            views[event.request_id, event.post_id] = (
                min(at, event.at),
                max(viewed_ms, round(event.value * _MS[event.kind])),
            )
    return views


def _impressions(feed: FeedRecord, views: dict[tuple[int, int], tuple[int, int]]) -> Iterator[Row]:
    features_KF = np.frombuffer(feed.features, "<f8").reshape(-1, len(FEATURE_NAMES)).tolist()
    # A row stays in the day it was served in, whenever it is drained again.
    day_ends = feed.served_at // DAY * DAY + DAY - 1
    shown = zip(feed.post_ids, feed.author_ids, feed.propensities, features_KF)
    for position, (post_id, author_id, propensity, features) in enumerate(shown):
        looked_at, viewed_ms = views.get((feed.request_id, post_id), (feed.served_at, 0))
        shown_at = min(looked_at, day_ends)
        yield {
            "request_id": feed.request_id, "user_id": feed.user_id, "post_id": post_id, "author_id": author_id,
            "position": position, "shown_at": shown_at, "viewed_ms": viewed_ms, "policy": feed.policy,
            "propensity": propensity, "feature_version": feed.feature_version, "features": features,
            "known_at": shown_at,
        }  # fmt: skip


def _action(stream_id: str, event: LiveEvent) -> Row:
    milliseconds, sequence = map(int, stream_id.split("-"))
    return {
        # Unique and above the ids of any earlier log: 44 bits of time, 16 of the place within the millisecond.
        "action_id": milliseconds << 16 | sequence, "request_id": None if event.request_id == NO_ID else event.request_id,
        "user_id": event.user_id, "post_id": event.post_id, "author_id": event.author_id, "kind": event.kind,
        "value": event.value or None, "occurred_at": event.at, "known_at": event.at,
    }  # fmt: skip


def _posts(events: dict[str, LiveEvent]) -> Iterator[Row]:
    documents = {e.post_id: e.document for e in events.values() if e.kind in ("post", "delete_post")}
    for document in map(unpack_document, documents.values()):
        yield {
            "post_id": document.post_id, "author_id": document.author_id,
            "origin_post_id": document.chain[0][0] if document.chain else None,
            "subject_id": None if document.subject_id == NO_ID else document.subject_id,
            "created_at": document.created_at, "edited_at": None, "known_at": document.known_at,
            "kind": POST_KINDS[document.kind], "topic": document.topic, "text": document.text,
            "embedding": np.frombuffer(document.embedding, "<f4").tolist() if document.embedding else None,
            "visibility": VISIBILITIES[document.visibility], "audience": list(document.audience) or None,
            "deleted_at": None if document.deleted_at == FOREVER else document.deleted_at,
        }  # fmt: skip


def _blocks(events: dict[str, LiveEvent]) -> Iterator[Row]:
    rows: dict[tuple[int, int, str, int], Row] = {}
    for event in events.values():
        if event.kind not in ("block", "unblock"):
            continue
        for since in event.since or (event.at,):
            key = (event.user_id, event.target_id, event.block_kind, since)
            ended_at = event.at if event.kind == "unblock" else None
            rows[key] = dict(zip(("user_id", "target_id", "kind", "since"), key), ended_at=ended_at, known_at=since)
    yield from rows.values()
