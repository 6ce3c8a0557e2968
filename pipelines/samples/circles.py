"""Friends as counts over time: how many somebody has, how many two people share, how many of them acted on a post.

No row ever carries a list of friends: one person with 100,000 of them would carry it into every row that names that
person. A friendship is a span of time; how many spans of a key hold a moment is a running sum of +1 and -1. What two
sets share is found once per pair, by going through the smaller set and looking its members up in the larger one.
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from contracts.lake import Lake
from contracts.tables import ACTIONS, FRIENDSHIPS
from contracts.tasks import ENGAGEMENTS
from pipelines.frames import frame
from pipelines.samples.impressions import KEY

CIRCLE, ENGAGED, SIZE = 0, 1, 2
"""Kinds of sets: the friends of a person, and the people who acted on a post; and of counts, that of one person's friends."""
_COUNTS = ("viewer_friends", "author_friends", "mutual_friends", "friends_engaged")
_NEVER = 2**62


def member_sets(spark: SparkSession, lake: Lake) -> DataFrame:
    """Columns kind, id (of a person or post), member, begins, ends: the member is in the set at t when begins <= t < ends.

    Spans of one member in one set do not overlap.
    """
    friendships = frame(spark, lake, FRIENDSHIPS, ("user_id", "friend_id", "known_at", "ended_at"))
    circles = _merged(
        friendships.select(
            F.col("user_id").alias("id"),
            F.col("friend_id").alias("member"),
            (F.col("known_at") + 1).alias("begins"),
            F.coalesce("ended_at", F.lit(_NEVER)).alias("ends"),
        )
    )
    engaged = (
        frame(spark, lake, ACTIONS, ("user_id", "post_id", "kind", "known_at"))
        .where(F.col("kind").isin(*ENGAGEMENTS))
        .groupBy(F.col("post_id").alias("id"), F.col("user_id").alias("member"))
        .agg((F.min("known_at") + 1).alias("begins"))
        .withColumn("ends", F.lit(_NEVER))
    )
    return _of_kind(circles, CIRCLE).unionByName(_of_kind(engaged, ENGAGED))


def with_circle_counts(rows: DataFrame, sets: DataFrame) -> DataFrame:
    """`rows` (request_id, post_id, user_id, author_id, requested_at, …) plus the facts that count friends.

    They are as of `requested_at`. `sets`: of `member_sets`; used several times, so keep it.
    """
    asked = rows.select(*KEY, F.col("requested_at").alias("_at"), F.inline(F.array(*_questions())))
    shared = _shared(asked.where(F.col("kind") != SIZE).select("user_id", "kind", "id").distinct(), sets)
    sizes = sets.where(F.col("kind") == CIRCLE).select(
        _id(0).alias("user_id"), F.lit(SIZE).alias("kind"), "id", "begins", "ends"
    )
    counted = _counted(asked, shared.unionByName(sizes))
    names = {name: F.max(F.when(F.col("_number") == number, F.col("_count"))) for number, name in enumerate(_COUNTS)}
    answers = counted.groupBy(*KEY).agg(*(column.alias(name) for name, column in names.items()))
    return rows.join(answers, list(KEY)).select(*rows.columns, *_COUNTS)


def _questions() -> list[Column]:
    """What a row asks, one for each of `_COUNTS`: how many spans of (user_id, kind, id) hold its moment."""
    nobody = _id(0)
    keys = (
        (nobody, SIZE, "user_id"), (nobody, SIZE, "author_id"), ("user_id", CIRCLE, "author_id"), ("user_id", ENGAGED, "post_id"),
    )  # fmt: skip
    return [
        F.struct(
            F.lit(number).alias("_number"),
            (F.col(user) if isinstance(user, str) else user).alias("user_id"),
            F.lit(kind).alias("kind"),
            F.col(other).alias("id"),
        )
        for number, (user, kind, other) in enumerate(keys)
    ]


def _id(value: int) -> Column:
    return F.lit(value).cast("bigint")


def _of_kind(spans: DataFrame, kind: int) -> DataFrame:
    return spans.select(F.lit(kind).alias("kind"), "id", "member", "begins", "ends")


def _merged(edges: DataFrame) -> DataFrame:
    """Spans that hold the same moments as `edges` together do, per id and member; those of no moment are left out."""
    pair = Window.partitionBy("id", "member").orderBy("begins", "ends")
    earlier = pair.rowsBetween(Window.unboundedPreceding, -1)
    apart = F.coalesce(F.col("begins") > F.max("ends").over(earlier), F.lit(True)).cast("int")
    spans = edges.where("begins < ends").withColumn("_apart", apart)
    spans = spans.withColumn("_span", F.sum("_apart").over(pair.rowsBetween(Window.unboundedPreceding, 0)))
    return (
        spans.groupBy("id", "member", "_span").agg(F.min("begins").alias("begins"), F.max("ends").alias("ends"))
    ).drop("_span")


def _shared(pairs: DataFrame, sets: DataFrame) -> DataFrame:
    """Columns of `pairs` (user_id, kind, id), begins, ends: when somebody is in the user's circle and in the other set."""
    sizes = sets.groupBy("kind", "id").agg(F.count("*").alias("_size"))
    own = sizes.where(F.col("kind") == CIRCLE).select(F.col("id").alias("user_id"), F.col("_size").alias("_own"))
    asked = pairs.join(own, "user_id").join(sizes, ["kind", "id"])
    own_is_small = F.col("_own") <= F.col("_size")
    asked = asked.select(
        "user_id", "kind", "id",
        F.when(own_is_small, F.lit(CIRCLE)).otherwise(F.col("kind")).alias("_small_kind"),
        F.when(own_is_small, F.col("user_id")).otherwise(F.col("id")).alias("_small"),
        F.when(own_is_small, F.col("kind")).otherwise(F.lit(CIRCLE)).alias("_large_kind"),
        F.when(own_is_small, F.col("id")).otherwise(F.col("user_id")).alias("_large"),
    )  # fmt: skip
    small, large = (
        sets.select(
            F.col("kind").alias(f"_{which}_kind"), F.col("id").alias(f"_{which}"), "member",
            F.col("begins").alias(f"_{which}_begins"), F.col("ends").alias(f"_{which}_ends"),
        )
        for which in ("small", "large")
    )  # fmt: skip
    both = asked.join(small, ["_small_kind", "_small"]).join(large, ["_large_kind", "_large", "member"])
    return both.select(
        "user_id", "kind", "id",
        F.greatest("_small_begins", "_large_begins").alias("begins"), F.least("_small_ends", "_large_ends").alias("ends"),
    ).where("begins < ends")  # fmt: skip


def _counted(asked: DataFrame, spans: DataFrame) -> DataFrame:
    """`asked` plus `_count`: how many of the `spans` (user_id, kind, id, begins, ends) of its key hold its `_at`."""
    key = ("user_id", "kind", "id")
    begun = spans.select(*key, F.col("begins").alias("_at"), F.lit(1).alias("_step"))
    ended = spans.where(F.col("ends") < _NEVER).select(*key, F.col("ends").alias("_at"), F.lit(-1).alias("_step"))
    steps = begun.unionByName(ended).withColumn("_asks", F.lit(False))
    asking = asked.withColumns({"_step": F.lit(0), "_asks": F.lit(True)})
    # false sorts before true: a step at the row's own microsecond is taken before the row asks.
    so_far = Window.partitionBy(*key).orderBy("_at", "_asks").rowsBetween(Window.unboundedPreceding, 0)
    all_rows = asking.unionByName(steps, allowMissingColumns=True).withColumn("_count", F.sum("_step").over(so_far))
    return all_rows.where("_asks")
