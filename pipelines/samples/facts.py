"""The features that are facts of the tables as known at the request: people, friendships, the post, the hour.

Each column implements its sentence in `contracts.features.FACTS`.
"""

import math

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY, HOUR
from contracts.lake import Lake
from contracts.tables import FRIENDSHIPS, POST_KINDS, USERS
from pipelines.frames import frame
from pipelines.samples.circles import with_circle_counts
from pipelines.samples.impressions import latest_known


def with_facts(spark: SparkSession, lake: Lake, rows: DataFrame, sets: DataFrame) -> DataFrame:
    """`rows` of `sampled_impressions` plus one double column per fact; `post` stays. `sets`: of `member_sets`."""
    friendships = frame(spark, lake, FRIENDSHIPS)
    people = frame(spark, lake, USERS, ("user_id", "registered_at", "city", "known_at"))
    profiles = people.groupBy("user_id").agg(
        F.array_sort(F.collect_list(F.struct("known_at", "registered_at", "city"))).alias("profiles")
    )
    ties = friendships.groupBy("user_id", F.col("friend_id").alias("author_id")).agg(
        F.collect_list(F.struct("since", "kind", "known_at", "ended_at")).alias("edges")
    )
    authors = profiles.select(F.col("user_id").alias("author_id"), F.col("profiles").alias("author_profiles"))
    joined = (
        with_circle_counts(rows, sets)
        .join(profiles, "user_id", "left")
        .join(authors, "author_id", "left")
        .join(ties, ["user_id", "author_id"], "left")
        .withColumn("viewer", latest_known("profiles"))
        .withColumn("author", latest_known("author_profiles"))
        .withColumn("active_edges", F.coalesce(F.filter("edges", _active), F.array()))
    )
    return joined.select(*rows.columns, *(column.cast("double").alias(name) for name, column in _columns().items()))


def _columns() -> dict[str, Column]:
    at, post, edges = F.col("requested_at"), F.col("post"), F.col("active_edges")
    hour_angle = F.pmod(at, F.lit(DAY)) / F.lit(float(HOUR)) * F.lit(2 * math.pi / 24)
    weekday = F.pmod(F.floor(at / F.lit(DAY)) + 3, F.lit(7))  # 1970-01-01 was a Thursday; Monday is 0
    cities = (F.col("viewer")["city"], F.col("author")["city"])
    kind = F.coalesce(F.array_position(F.array(*map(F.lit, POST_KINDS)), post["kind"]) - 1, F.lit(0))
    return {
        "viewer_tenure_days": F.coalesce(F.greatest(F.lit(0), at - F.col("viewer")["registered_at"]), F.lit(0)) / F.lit(float(DAY)),
        "viewer_friends": F.col("viewer_friends"),
        "author_friends": F.col("author_friends"),
        "is_friend": F.size(edges) > 0,
        "special_care": F.exists(edges, lambda edge: edge["kind"] == "special_care"),
        "friendship_days": F.coalesce(at - F.array_min(F.transform(edges, lambda edge: edge["since"])), F.lit(0)) / F.lit(float(DAY)),
        "mutual_friends": F.col("mutual_friends"),
        "same_city": F.coalesce(cities[0] == cities[1], F.lit(False)),
        "post_age_hours": F.coalesce(F.greatest(F.lit(0), at - post["created_at"]), F.lit(0)) / F.lit(float(HOUR)),
        "post_is_share": post["origin_post_id"].isNotNull(),
        "post_public": F.coalesce(post["visibility"] == "public", F.lit(False)),
        "post_kind": kind,
        "post_topic": F.coalesce(post["topic"], F.lit(0)),
        "friends_engaged": F.col("friends_engaged"),
        "hour_sin": F.sin(hour_angle),
        "hour_cos": F.cos(hour_angle),
        "weekend": weekday >= 5,
    }  # fmt: skip


def _active(edge: Column) -> Column:
    at = F.col("requested_at")
    return (edge["known_at"] < at) & (edge["ended_at"].isNull() | (edge["ended_at"] > at))
