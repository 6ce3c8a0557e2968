"""The event stream of `contracts.events` as a Spark frame: the same rows by the same rule."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.events import EVENT_SCHEMA
from contracts.lake import Lake
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from pipelines.frames import frame

MOST_SENT_POSTS = 5_000_000
"""Posts up to which every task is sent all topics, some 60 bytes each, so that no event is shuffled and sorted to find its own."""


def event_frame(spark: SparkSession, lake: Lake) -> DataFrame:
    """Columns of `EVENT_SCHEMA`, unordered; rows about a post that the lake lacks are left out."""
    written = frame(spark, lake, POSTS, ("post_id", "author_id", "topic", "created_at", "known_at"))
    # An edit is a second row of the same post with a later known_at; the first one is the post that was written.
    first = F.min(F.struct("known_at", "created_at", "author_id", "topic")).alias("first")
    posts = written.groupBy("post_id").agg(first).select("post_id", "first.*")
    views = (
        frame(spark, lake, IMPRESSIONS, ("user_id", "author_id", "post_id", "shown_at", "viewed_ms", "known_at"))
        .where("viewed_ms > 0")
        .select(
            F.lit("view").alias("kind"),
            "user_id",
            "author_id",
            "post_id",
            F.col("shown_at").alias("occurred_at"),
            "known_at",
        )
    )
    actions = frame(spark, lake, ACTIONS, ("kind", "user_id", "author_id", "post_id", "occurred_at", "known_at"))
    topics = posts.select("post_id", "topic")
    if lake.manifest(POSTS).rows <= MOST_SENT_POSTS:
        topics = F.broadcast(topics)
    written_by_author = posts.select(
        F.lit("post").alias("kind"), F.col("author_id").alias("user_id"), "author_id", "post_id",
        F.col("created_at").alias("occurred_at"), "known_at", "topic",
    )  # fmt: skip
    return views.unionByName(actions).join(topics, "post_id").unionByName(written_by_author).select(*EVENT_SCHEMA.names)
