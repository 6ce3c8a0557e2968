"""The store in Redis: versioned keys behind one pointer, reads by one MGET, changes by Lua.

`{feedloop}:<version>:<key>` holds a version, `{feedloop}:always:<key>` what outlives versions, `{feedloop}:pointer` says
which version is in force; the streams `{feedloop}:events` and `{feedloop}:feedlog` hold what happened since the log.
"""

import contextlib
import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from serving.store.families import GUARDED_PREFIXES, LIVE_PREFIXES
from serving.store.packing import pack
from serving.store.protocol import Append, Bump, Mutation, Put, StoreDown, Unreadable
from serving.store.scripts import APPLY

ROOT = "{feedloop}:"
"""Begins every key; the braces put all keys on one node of a cluster, so that scripts may touch them together."""
POINTER, EVENTS, FEED_LOG = f"{ROOT}pointer", f"{ROOT}events", f"{ROOT}feedlog"
IDENTITY = f"{ROOT}identity"
VERSIONS, LOCK, PUBLICATIONS = f"{ROOT}versions", f"{ROOT}publisher", f"{ROOT}publications"


def _raw(content: bytes) -> msgspec.Raw:
    """Bytes in the MessagePack of Redis' Lua, which has no type for binary and takes strings of any bytes."""
    size = len(content)
    if size < 32:
        header = bytes([0xA0 | size])
    elif size < 65_536:
        header = struct.pack(">BH", 0xDA, size)
    else:
        header = struct.pack(">BI", 0xDB, size)
    return msgspec.Raw(header + content)


PREFIXES = pack([_raw(prefix) for prefix in LIVE_PREFIXES])


def connect(url: str, timeout_s: float = 2.0) -> redis.Redis:
    """A client whose calls fail after `timeout_s` seconds rather than hang."""
    return redis.Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1)
    )


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turns the client's connection errors, and keys that hold what they should not, into `StoreDown` with one sentence."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StoreDown(f"Redis does not answer ({type(error).__name__})") from None
    except redis.ResponseError as error:
        reason = str(error).rsplit("caused error: ", 1)[-1]  # in a pipeline the client puts its command before it
        if reason.startswith("NOTHINGPUBLISHED"):
            raise StoreDown("nothing is published yet: run `feedloop publish` first") from None
        if reason.startswith(("LOADING", "MASTERDOWN", "READONLY", "MISCONF", "OOM")):
            raise StoreDown(f"Redis cannot serve now: {reason}") from None
        if reason.startswith(("WRONGTYPE", "UNREADABLE")):
            raise Unreadable(f"a key in Redis holds something else than it should: {reason}") from None
        raise


def meta_key(version: str) -> str:
    """Where a version says what it was made of."""
    return f"{ROOT}{version}:meta"


def done_key(event_id: str) -> str:
    """Says that an event was counted."""
    return f"{ROOT}done:{event_id}"


def packed(mutations: Iterable[Mutation]) -> bytes:
    """Mutations as the scripts read them."""
    rows: list[tuple] = []
    for one in mutations:
        if isinstance(one, Bump):
            rows.append((2, _raw(one.key), float(one.at), one.slots, one.latests, one.half_lives, one.width))
        elif isinstance(one, Append):
            rows.append((1, _raw(one.key), _raw(one.record), one.at_column, float(one.horizon), one.expire_s))
        else:
            assert isinstance(one, Put)
            rows.append((0, _raw(one.key), _raw(one.value)))
    return pack(rows)


class RedisStore:
    """One published version."""

    def __init__(self, client: redis.Redis, version: str):
        self.client, self.version = client, version
        self._prefix = f"{ROOT}{version}:".encode()
        self._apply = client.register_script(APPLY)

    def place(self, key: bytes) -> bytes:
        """The whole key in Redis."""
        return (f"{ROOT}always:".encode() if key.startswith(LIVE_PREFIXES) else self._prefix) + key

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, None for an absent key, by one MGET. `StoreDown` when Redis does not answer."""
        if not keys:
            return []
        places = list(map(self.place, keys))
        guarded = [at for at, key in enumerate(keys) if key.startswith(GUARDED_PREFIXES)]
        with answering():
            if not guarded:
                return self.client.mget(places)
            # MGET says None for a key of another type, too.
            with self.client.pipeline(transaction=True) as pipe:
                values, there = pipe.mget(places).exists(*(places[at] for at in guarded)).execute()
        if there != sum(values[at] is not None for at in guarded):
            named = ", ".join(keys[at].decode() for at in guarded if values[at] is None)
            raise Unreadable(f"a key in Redis holds something else than it should: one of {named}")
        return values

    def apply(self, mutations: Iterable[Mutation], client: Any = None) -> None:
        """All of the mutations, atomically; into `client`, a pipeline, when one is given."""
        with answering():
            self._apply(args=[ROOT, self.version, PREFIXES, packed(mutations)], client=client or self.client)


def version_in_force(client: redis.Redis) -> str:
    """`StoreDown` when there is none."""
    with answering():
        version = client.hget(POINTER, "current")
    if version is None:
        raise StoreDown("nothing is published yet: run `feedloop publish` first")
    return version.decode()


def stream_name(client: redis.Redis, stream: str) -> str:
    """What tells a stream from that of any other Redis: a name of this Redis' own, made once and kept with its data."""
    with answering():
        client.set(IDENTITY, uuid.uuid4().hex, nx=True)
        identity = client.get(IDENTITY)
    assert identity is not None
    return f"{identity.decode(errors='replace')}:{stream}"
