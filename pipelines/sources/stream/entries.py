"""The one shape in which entries of a stream come to Spark, whatever carries them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from contracts.served import NUMBERS_PER_MS

EVENTS, FEEDS = "events", "feeds"
"""The two streams: what people did (fields `log`, `known_at`, `event`), and what they were shown (field `feed`)."""
ENTRY_SCHEMA = "stream string, entry_id string, fields map<string, binary>"
"""`entry_id` is `<milliseconds>-<number within the millisecond, below 65536>`; its order is the order of the stream."""


def of_kafka(messages: DataFrame, topics: dict[str, str], partitions: int) -> DataFrame:
    """Entries of the frame that Spark's Kafka source gives, batch or streaming, read with `includeHeaders`.

    `topics`: stream (`events`, `feeds`) -> topic. The value of a message is its `event` or `feed`; its headers are the other
    fields. `partitions`: how many a topic has; ids stay apart while fewer than 65,536 messages share a millisecond.
    """
    stream_of = F.create_map(*(F.lit(one) for stream, topic in topics.items() for one in (topic, stream)))
    stream = stream_of[F.col("topic")]
    number = (F.col("offset") * partitions + F.col("partition")) % NUMBERS_PER_MS
    # The payload's field is the stream's name without its plural.
    payload = F.create_map(F.expr("rtrim('s', stream)"), F.col("value"))
    headers = F.map_from_entries(
        F.coalesce(F.col("headers"), F.expr("cast(array() as array<struct<key:string,value:binary>>)"))
    )
    known = messages.withColumn("stream", stream).where(F.col("stream").isNotNull())
    return known.select(
        "stream", F.concat(F.unix_millis("timestamp"), F.lit("-"), number).alias("entry_id"),
        F.map_concat(payload, headers).alias("fields"),
    )  # fmt: skip
