"""The features that are facts of the tables as known at the request: people, friendships, the post, the hour.

Each column implements its sentence in `contracts.features.FACTS`.
"""

import math

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY, HOUR
from contracts.lake import Lake
from contracts.tables import ACTIONS, FRIENDSHIPS, POST_KINDS, USERS
from contracts.tasks import ENGAGEMENTS
from pipelines.frames import frame
from pipelines.samples.impressions import latest_known


def with_facts(spark: SparkSession, lake: Lake, rows: DataFrame) -> DataFrame:
    """`rows` of `sampled_impressions` plus one double column per fact; `post` stays.

    What is only about the viewer is worked out once per request. Friends are held as arrays beside each user, so the
    cost of a row grows with the two people's friends and not with the whole graph.
    """
    friendships = frame(spark, lake, FRIENDSHIPS)
    people = frame(spark, lake, USERS, ("user_id", "registered_at", "city", "known_at"))
    profiles = people.groupBy("user_id").agg(
        F.array_sort(F.collect_list(F.struct("known_at", "registered_at", "city"))).alias("profiles")
    )
    circles = friendships.groupBy("user_id").agg(
        F.collect_list(F.struct("friend_id", "known_at", "ended_at")).alias("circle")
    )
    ties = friendships.groupBy("user_id", F.col("friend_id").alias("author_id")).agg(
        F.collect_list(F.struct("since", "kind", "known_at", "ended_at")).alias("edges")
    )
    engaged = (
        frame(spark, lake, ACTIONS, ("user_id", "post_id", "kind", "known_at"))
        .where(F.col("kind").isin(*ENGAGEMENTS))
        .groupBy("post_id")
        .agg(F.collect_list(F.struct("user_id", "known_at")).alias("engaged"))
    )
    viewers = (
        rows.select("request_id", "user_id", "requested_at")
        .distinct()
        .join(profiles, "user_id", "left")
        .join(circles, "user_id", "left")
        .select(
            "request_id",
            latest_known("profiles").alias("viewer"),
            _active_friends("circle").alias("viewer_circle"),
        )
    )
    authors = profiles.join(circles, "user_id", "full").withColumnRenamed("user_id", "author_id")
    joined = (
        rows.join(viewers, "request_id")
        .join(authors, "author_id", "left")
        .join(ties, ["user_id", "author_id"], "left")
        .join(engaged, "post_id", "left")
        .withColumn("author", latest_known("profiles"))
        .withColumn("author_circle", _active_friends("circle"))
        .withColumn("active_edges", F.coalesce(F.filter("edges", _active), F.array()))
    )
    return joined.select(*rows.columns, *(column.cast("double").alias(name) for name, column in _columns().items()))


def _columns() -> dict[str, Column]:
    at, post, edges = F.col("requested_at"), F.col("post"), F.col("active_edges")
    hour_angle = F.pmod(at, F.lit(DAY)) / F.lit(float(HOUR)) * F.lit(2 * math.pi / 24)
    weekday = F.pmod(F.floor(at / F.lit(DAY)) + 3, F.lit(7))  # 1970-01-01 was a Thursday; Monday is 0
    engagers = F.transform(
        F.filter("engaged", lambda row: row["known_at"] < F.col("requested_at")), lambda row: row["user_id"]
    )
    cities = (F.col("viewer")["city"], F.col("author")["city"])
    kind = F.coalesce(F.array_position(F.array(*map(F.lit, POST_KINDS)), post["kind"]) - 1, F.lit(0))
    return {
        "viewer_tenure_days": F.coalesce(F.greatest(F.lit(0), at - F.col("viewer")["registered_at"]), F.lit(0)) / F.lit(float(DAY)),
        "viewer_friends": F.size("viewer_circle"),
        "author_friends": F.size("author_circle"),
        "is_friend": F.size(edges) > 0,
        "special_care": F.exists(edges, lambda edge: edge["kind"] == "special_care"),
        "friendship_days": F.coalesce(at - F.array_min(F.transform(edges, lambda edge: edge["since"])), F.lit(0)) / F.lit(float(DAY)),
        "mutual_friends": F.size(F.array_intersect("viewer_circle", "author_circle")),
        "same_city": F.coalesce(cities[0] == cities[1], F.lit(False)),
        "post_age_hours": F.coalesce(F.greatest(F.lit(0), at - post["created_at"]), F.lit(0)) / F.lit(float(HOUR)),
        "post_is_share": post["origin_post_id"].isNotNull(),
        "post_public": F.coalesce(post["visibility"] == "public", F.lit(False)),
        "post_kind": kind,
        "post_topic": F.coalesce(post["topic"], F.lit(0)),
        "friends_engaged": F.coalesce(F.size(F.array_intersect("viewer_circle", engagers)), F.lit(0)),
        "hour_sin": F.sin(hour_angle),
        "hour_cos": F.cos(hour_angle),
        "weekend": weekday >= 5,
    }  # fmt: skip


def _active(edge: Column) -> Column:
    at = F.col("requested_at")
    return (edge["known_at"] < at) & (edge["ended_at"].isNull() | (edge["ended_at"] > at))


def _active_friends(circle: str) -> Column:
    friends = F.transform(F.filter(circle, _active), lambda edge: edge["friend_id"])
    return F.coalesce(F.array_distinct(friends), F.array().cast("array<bigint>"))
