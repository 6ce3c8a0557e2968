"""Redis' streams as a Spark data source, batch and streaming: `spark.read.format("feedloop_redis")`."""

import itertools
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from contracts.errors import BadInput
from pipelines.sources.stream.entries import ENTRY_SCHEMA, EVENTS, FEEDS

FIRST = "0-0"
ROOT = "{feedloop}:"
KEYS = {EVENTS: f"{ROOT}events", FEEDS: f"{ROOT}feedlog"}
IDENTITY = f"{ROOT}identity"
"""Keys of serving's streams, and of the name that tells one Redis from another."""
READ_AT_ONCE = 1000
PARTS = 4
TIMEOUT_S = 60.0


def _client(url: str) -> redis.Redis:
    try:
        client = redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        # Made and thrown away: only so the client looks at the options that the address names.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{url} is no address of a Redis, such as redis://127.0.0.1:6379/0: {error}") from None
    return client


def last_ids(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """(stream -> id of its last entry, stream -> its name among all Redis), of both streams at one moment.

    `BadInput` when nothing answers.
    """
    client = _client(url)
    try:
        client.set(IDENTITY, uuid.uuid4().hex, nx=True)
        with client.pipeline(transaction=True) as pipe:
            for key in KEYS.values():
                pipe.xrevrange(key, count=1)
            *entries, identity = pipe.get(IDENTITY).execute()
    except redis.RedisError as error:
        raise BadInput(f"the stream at Redis cannot be read: {error}") from None
    finally:
        client.close()
    ends = {stream: last[0][0].decode() if last else FIRST for stream, last in zip(KEYS, entries)}
    return ends, {stream: f"{identity.decode(errors='replace')}:{key}" for stream, key in KEYS.items()}


def entries_up_to(spark: SparkSession, url: str, ends: dict[str, str]) -> DataFrame:
    """The entries (`ENTRY_SCHEMA`) of both streams up to these ids."""
    spark.dataSource.register(RedisStream)
    return spark.read.format("feedloop_redis").option("url", url).option("ends", json.dumps(ends)).load()


def entries_as_they_come(spark: SparkSession, url: str) -> DataFrame:
    """The entries of both streams as a streaming frame, from the first one on."""
    spark.dataSource.register(RedisStream)
    return spark.readStream.format("feedloop_redis").option("url", url).load()


@dataclass
class Range(InputPartition):
    """Entries of one stream after one id and up to another."""

    stream: str
    after: str
    upto: str


class RedisStream(DataSource):
    """Options: `url`; for a batch `ends`, the ids up to which each stream is read (JSON)."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "feedloop_redis"

    def schema(self) -> str:
        """As all sources of entries."""
        return ENTRY_SCHEMA

    def reader(self, schema: object) -> "_Reader":
        """For a batch."""
        return _Reader(self.options["url"], json.loads(self.options["ends"]))

    def streamReader(self, schema: object) -> "_StreamReader":
        """For Structured Streaming."""
        return _StreamReader(self.options["url"])


def _ranges(stream: str, after: str, upto: str) -> list[Range]:
    """Up to `PARTS` ranges of equal time."""
    if place_of(upto) <= place_of(after):
        return []
    first, last = place_of(after)[0], place_of(upto)[0]
    # What lies before the first entry is nothing: the oldest id may be that of a stream that began yesterday.
    cuts = [first + (last - first) * part // PARTS for part in range(1, PARTS)] if first else []
    bounds = [after, *(f"{cut}-{2**64 - 1}" for cut in dict.fromkeys(cuts) if first < cut < last), upto]
    return [Range(stream, low, high) for low, high in itertools.pairwise(bounds)]


def place_of(entry_id: str) -> tuple[int, int]:
    """(milliseconds, number within them), which orders the entries of a stream."""
    milliseconds, number = entry_id.split("-")
    return int(milliseconds), int(number)


def _entries(url: str, part: Range) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    client, after = _client(url), part.after
    try:
        while found := client.xrange(KEYS[part.stream], min=f"({after}", max=part.upto, count=READ_AT_ONCE):
            for entry_id, fields in found:
                after = entry_id.decode()
                yield part.stream, after, {name.decode(errors="replace"): value for name, value in fields.items()}
    finally:
        client.close()


class _Reader(DataSourceReader):
    def __init__(self, url: str, ends: dict[str, str]):
        self.url, self.ends = url, ends

    def partitions(self) -> Sequence[InputPartition]:
        client = _client(self.url)
        begins = {}
        for stream, key in KEYS.items():
            first = client.xrange(key, count=1)
            # The id before the first entry's, as a range begins after its first id.
            begins[stream] = f"{place_of(first[0][0].decode())[0] - 1}-0" if first else FIRST
        client.close()
        return [one for stream, upto in self.ends.items() for one in _ranges(stream, begins[stream], upto)]

    def read(self, partition: InputPartition) -> Iterator[tuple]:
        assert isinstance(partition, Range)
        yield from _entries(self.url, partition)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, url: str):
        self.url = url

    def initialOffset(self) -> dict:
        return dict.fromkeys(KEYS, FIRST)

    def latestOffset(self, start: dict, limit: object) -> dict:
        return last_ids(self.url)[0]

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:
        return [one for stream in KEYS for one in _ranges(stream, start[stream], end[stream])]

    def read(self, partition: InputPartition) -> Iterator[tuple]:
        assert isinstance(partition, Range)
        yield from _entries(self.url, partition)
