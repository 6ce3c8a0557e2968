"""Live events: what the API accepts, as one record for the stream and as changes of serving state.

An event is acknowledged once one script has put both into Redis. Publishing replays the stream over a new version with
the same functions, so nothing that was acknowledged is lost.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import redis

from contracts.served import Document, LiveEvent
from serving.changes import block_mutations, post_mutations
from serving.features.updater import Event, event_mutations
from serving.store.families import key
from serving.store.packing import pack, reader, unpack_document
from serving.store.protocol import Mutation, Put, Store, Unreadable
from serving.store.redis import EVENTS, POINTER, PREFIXES, ROOT, answering, done_key, packed
from serving.store.scripts import COMMIT

DONE_DAYS = 7
"""How long an event id is remembered, in days."""


decode_event = reader(LiveEvent)


def mutations_of(event: LiveEvent, live_us: int) -> Iterator[Mutation]:
    """What an event changes, by the same functions as the log's rows. `live_us`: how long a post stays a candidate."""
    if event.kind == "block":
        yield from block_mutations(event.user_id, event.target_id, event.block_kind, event.at)
    elif event.kind == "unblock":
        for since in event.since:
            yield from block_mutations(event.user_id, event.target_id, event.block_kind, since, event.at)
    elif event.kind == "post":
        document = unpack_document(event.document)
        yield from post_mutations(document, live_us)
        yield from event_mutations(_counted(event))
    elif event.kind == "delete_post":
        yield Put(key("doc", event.post_id), event.document)
    else:
        yield from event_mutations(_counted(event))


def _counted(event: LiveEvent) -> Event:
    return Event(event.kind, event.user_id, event.author_id, event.post_id, event.topic, event.at, event.at)


def ended(document: Document, at: int) -> bytes:
    """The document of a post that is taken down at `at` (UTC us)."""
    return pack(msgspec.structs.replace(document, deleted_at=min(document.deleted_at, at)))


class EventLog:
    """Commits live events to Redis. `log_id` says which log they go on from; `live_us` as in `mutations_of`."""

    def __init__(self, client: redis.Redis, log_id: str, live_us: int):
        self.client, self.log_id, self.live_us = client, log_id, live_us
        self._commit = client.register_script(COMMIT)

    def commit(self, events: Mapping[str, LiveEvent]) -> dict[str, bool]:
        """event id -> whether it counted now (False: it had before). All are durable when this returns.

        Each event is atomic; after an error a client sends the whole batch again, and none counts twice.
        """
        with answering(), self.client.pipeline(transaction=False) as pipe:
            for event_id, event in events.items():
                self._commit(
                    keys=[POINTER, EVENTS, done_key(event_id)],
                    args=[ROOT, PREFIXES, packed(mutations_of(event, self.live_us)), DONE_DAYS * 86_400, self.log_id,
                          event.at, pack(event)],
                    client=pipe,
                )  # fmt: skip
            return {event_id: bool(counted) for event_id, counted in zip(events, pipe.execute())}

    def counted(self, event_ids: Sequence[str]) -> set[str]:
        """Those of `event_ids` that have been counted."""
        with answering():
            values = self.client.mget([done_key(one) for one in event_ids])
        return {one for one, value in zip(event_ids, values) if value is not None}


def events_after(client: redis.Redis, stream_id: str, count: int = 1000) -> list[tuple[str, str, int, LiveEvent]]:
    """(stream id, log id, known_at, event) of the next entries of the stream after `stream_id`.

    `Unreadable` names an entry that no API wrote.
    """
    with answering():
        entries = client.xrange(EVENTS, min=f"({stream_id}", max="+", count=count)
    return [_entry(one.decode(), fields) for one, fields in entries]


def is_later(stream_id: str, other: str) -> bool:
    """Whether a stream's entry came after another of the same stream."""
    return tuple(map(int, stream_id.split("-"))) > tuple(map(int, other.split("-")))


def _entry(stream_id: str, fields: Mapping[bytes, bytes]) -> tuple[str, str, int, LiveEvent]:
    try:
        return stream_id, fields[b"log"].decode(), int(fields[b"known_at"]), decode_event(fields[b"event"])
    except (KeyError, ValueError):
        raise Unreadable(f"entry {stream_id} of the stream {EVENTS} is no event: delete it there") from None


def read_store_document(store: Store, post_id: int) -> Document | None:
    """A post's document, None when there is none."""
    value = store.get_many([key("doc", post_id)])[0]
    return unpack_document(value) if value is not None else None
