"""Published versions in Redis: what each is made of, catching up with live events, switching, and sweeping old ones."""

import time
from dataclasses import asdict, dataclass

import orjson
import redis

from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.files import hash_value
from serving.live_events import events_after, is_later, mutations_of
from serving.store.protocol import StoreDown
from serving.store.redis import EVENTS, LOCK, POINTER, ROOT, VERSIONS, RedisStore, answering, meta_key, stream_name
from serving.store.scripts import FLIP

FIRST = "0-0"
"""The stream id before all entries."""


@dataclass(frozen=True)
class Meta:
    """What a published version was made of.

    `as_of`: end of its log (UTC us). `clock_offset_us`: added to this machine's clock it gives the moment that feeds are
    made for, so that a log of the past goes on from its end. `artifacts`: model kind -> version. `counts`: keys by family.
    `drained_to`: id of the last event of this Redis that its log has; "": nothing came back from serving into its log.
    """

    version: str
    log_id: str
    source: str
    as_of: int
    live_us: int
    tasks: tuple[str, ...]
    feature_version: str
    artifacts: dict[str, str]
    clock_offset_us: int
    counts: dict[str, int]
    drained_to: str = ""

    def lacks(self, stream_id: str, log_id: str, known_at: int) -> bool:
        """Whether an event of the stream goes on from this version's log and is not in it.

        The place in the stream decides, as an event may arrive after later moments were brought into the log. For a log
        into which no stream was ever brought, but which may have grown otherwise, the log's end decides.
        """
        if log_id != self.log_id:
            return False
        return is_later(stream_id, self.drained_to) if self.drained_to else known_at >= self.as_of


def log_identity(dataset: Dataset) -> str:
    """Which log live events go on from: the same for a log that only grew longer."""
    return hash_value([dataset.source, dataset.start, dataset.settings])[:16]


def write_meta(client: redis.Redis, meta: Meta) -> None:
    """Stores what the version is made of."""
    record = orjson.dumps(asdict(meta))
    client.hset(meta_key(meta.version), mapping={"record": record, "log": meta.log_id, "holds_until": FIRST})


def read_meta(client: redis.Redis, version: str) -> Meta:
    """`StoreDown` when the version is not whole in Redis."""
    with answering():
        content = client.hget(meta_key(version), "record")
    if content is None:
        raise StoreDown(f"version {version} is not whole in Redis: publish again")
    try:
        record = orjson.loads(content)
        return Meta(**{**record, "tasks": tuple(record["tasks"])})
    except (ValueError, TypeError, KeyError):
        raise StoreDown(f"what Redis says of version {version} is unreadable: publish again") from None


def drained_to(client: redis.Redis, dataset: Dataset) -> str:
    """The id of the last event of this Redis that the log has; "" when no stream was ever brought into it.

    What the log has of another Redis says nothing of this one's events, nor does an id that this stream does not hold.
    """
    if not dataset.drained_to:
        return ""
    stream_id = dataset.drained_to.get(stream_name(client, EVENTS), FIRST)
    with answering():
        return stream_id if client.xrange(EVENTS, min=stream_id, max=stream_id) else FIRST


def pointers(client: redis.Redis) -> tuple[str | None, str | None]:
    """The version in force and the one before it."""
    with answering():
        current, previous = client.hmget(POINTER, "current", "previous")
    return (current.decode() if current else None), (previous.decode() if previous else None)


def catch_up(client: redis.Redis, meta: Meta, after: str) -> tuple[str, int, int]:
    """Applies the stream's events after the stream id `after` to a version that is not in force.

    Returns the last stream id seen, how many were applied, and how many were not (of another log, or already in this
    version's own log).
    """
    store, applied, skipped = RedisStore(client, meta.version), 0, 0
    while entries := events_after(client, after):
        with client.pipeline(transaction=False) as pipe:
            for stream_id, log_id, known_at, event in entries:
                after = stream_id
                if meta.lacks(stream_id, log_id, known_at):
                    store.apply(mutations_of(event, meta.live_us), client=pipe)
                    applied += 1
                else:
                    skipped += 1
            with answering():
                pipe.execute()
    return after, applied, skipped


def switch_to(client: redis.Redis, meta: Meta, after: str) -> tuple[int, int]:
    """Catches up from the stream id `after` and puts the version in force, with no event in between lost.

    Returns (events applied, events skipped). The version that was in force stays, for a rollback.
    """
    flip, applied, skipped = client.register_script(FLIP), 0, 0
    while True:
        after, more, other = catch_up(client, meta, after)
        applied, skipped = applied + more, skipped + other
        with answering():
            if flip(keys=[POINTER, EVENTS, meta_key(meta.version)], args=[ROOT, meta.version, after]):
                return applied, skipped


def holds_until(client: redis.Redis, version: str) -> str:
    """The stream id up to which a version that was in force holds all events."""
    with answering():
        held = client.hget(meta_key(version), "holds_until")
    return held.decode() if held else FIRST


def count_keys(client: redis.Redis, version: str) -> dict[str, int]:
    """Keys of a version in Redis, by family."""
    counts: dict[str, int] = {}
    skip = len(ROOT) + len(version) + 1
    for full in client.scan_iter(match=_pattern(version), count=10_000):
        family = full[skip:].split(b":", 1)[0].decode()
        counts[family] = counts.get(family, 0) + 1
    counts.pop("meta", None)
    return counts


def sweep(client: redis.Redis) -> list[str]:
    """Deletes every version but the one in force and the one before it; returns those deleted."""
    gone = [one.decode() for one in client.smembers(VERSIONS) if one.decode() not in pointers(client)]
    for version in sorted(gone):
        batch: list[bytes] = []
        for full in client.scan_iter(match=_pattern(version), count=10_000):
            batch.append(full)
            if len(batch) == 5_000:
                client.unlink(*batch)
                batch = []
        if batch:
            client.unlink(*batch)
        client.srem(VERSIONS, version)
    return sorted(gone)


class PublisherLock:
    """One publisher at a time; the lock of one that was killed goes by itself after `lock_s` seconds."""

    def __init__(self, client: redis.Redis, token: str, lock_s: int):
        self.client, self.token, self.lock_s = client, token, lock_s

    def __enter__(self) -> "PublisherLock":
        give_up_at = time.monotonic() + self.lock_s + 5
        while not self.client.set(LOCK, self.token, nx=True, ex=self.lock_s):
            if time.monotonic() > give_up_at:
                raise BadInput("another publish is running on this Redis: wait for it to end")
            time.sleep(0.2)
        return self

    def renew(self) -> None:
        """Keeps the lock; `BadInput` when it was lost because this process stood still for too long."""
        if self.client.get(LOCK) != self.token.encode():
            raise BadInput(f"this publish stood still for over {self.lock_s} s and another one took over")
        self.client.expire(LOCK, self.lock_s)

    def __exit__(self, *_: object) -> None:
        if self.client.get(LOCK) == self.token.encode():
            self.client.delete(LOCK)


def _pattern(version: str) -> str:
    return f"{ROOT}{version}:*"
