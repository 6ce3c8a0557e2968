"""Friendships as of several moments at once: who is whose friend, since when, and how many friends two people share.

What holds at which moment is kept as one bit per moment beside each pair, so the graph is joined once and not once a
moment. Shapes: T moments.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.errors import BadInput
from contracts.lake import Lake
from contracts.tables import FRIENDSHIPS
from pipelines.frames import frame

_MOST_MOMENTS = 62
"""Bits of a bigint that are free."""


def edges_at(spark: SparkSession, lake: Lake, moments: Sequence[int]) -> DataFrame:
    """One row per directed pair with a friendship active at one of `moments` (UTC us, T of them).

    Columns `user_id`, `friend_id`, `active` (bit i: at moment i), `since_T` (us) and `special_T`, arrays by moment, null
    where it is not active. Active is what `contracts.features.FACTS` says.
    """
    if len(moments) > _MOST_MOMENTS:
        raise BadInput(f"{len(moments)} moments at once are more than {_MOST_MOMENTS}: ask for fewer")
    rows = frame(spark, lake, FRIENDSHIPS).where(F.col("known_at") < max(moments))

    def active(moment: int) -> Column:
        return (F.col("known_at") < moment) & (F.col("ended_at").isNull() | (F.col("ended_at") > moment))

    special = F.col("kind") == "special_care"
    bits = sum((F.when(active(t), F.lit(1 << i)).otherwise(F.lit(0)) for i, t in enumerate(moments)), F.lit(0))
    edges = rows.groupBy("user_id", "friend_id").agg(
        F.bit_or(bits.cast("bigint")).alias("active"),
        F.array(*(F.min(F.when(active(t), F.col("since"))) for t in moments)).alias("since_T"),
        F.array(*(F.max(F.when(active(t), special)) for t in moments)).alias("special_T"),
    )
    return edges.where("active != 0")


def with_circles(edges: DataFrame, moments: int) -> DataFrame:
    """`edges` of `edges_at` plus, as arrays by moment: `user_friends_T`, `friend_friends_T`, `mutual_friends_T` (distinct
    people, as FACTS counts them), and of the edge back `returned` (its `active`) and `special_back_T`, null without one.

    Shared friends are counted once per two people: the friends of the one who has fewer are looked up among the other's.
    """
    friends = edges.groupBy("user_id").agg(
        _counted([_bit("active", i) for i in range(moments)]).alias("friends_T"), F.count("*").alias("degree")
    )
    returned = edges.select(
        F.col("friend_id").alias("user_id"), F.col("user_id").alias("friend_id"), F.col("active").alias("returned"),
        F.col("special_T").alias("special_back_T"),
    )  # fmt: skip
    couples = (
        edges.select(F.least("user_id", "friend_id").alias("one"), F.greatest("user_id", "friend_id").alias("other"))
        .distinct()
        .join(_of(friends, "one"), "one", "left")
        .join(_of(friends, "other"), "other", "left")
    )
    fewer = F.coalesce("one_degree", F.lit(0)) <= F.coalesce("other_degree", F.lit(0))
    couples = couples.select(
        "one", "other",
        F.when(fewer, F.col("one")).otherwise(F.col("other")).alias("asked"),
        F.when(fewer, F.col("other")).otherwise(F.col("one")).alias("held"),
    )  # fmt: skip
    asked, held = (
        edges.select(F.col("user_id").alias(side), F.col("friend_id").alias("shared"), F.col("active").alias(bits))
        for side, bits in (("asked", "asked_active"), ("held", "held_active"))
    )
    met = couples.join(asked, "asked").join(held, ["held", "shared"])
    both = F.col("asked_active").bitwiseAND(F.col("held_active"))
    mutual = (
        met.withColumn("both", both)
        .groupBy("one", "other")
        .agg(_counted([_bit("both", i) for i in range(moments)]).alias("mutual_friends_T"))
    )
    return (
        edges.withColumn("one", F.least("user_id", "friend_id"))
        .withColumn("other", F.greatest("user_id", "friend_id"))
        .join(mutual, ["one", "other"], "left")
        .join(returned, ["user_id", "friend_id"], "left")
        .join(friends.select("user_id", F.col("friends_T").alias("user_friends_T")), "user_id")
        .join(
            friends.select(F.col("user_id").alias("friend_id"), F.col("friends_T").alias("friend_friends_T")),
            "friend_id",
            "left",
        )
        .drop("one", "other")
    )


def _bit(bits: str, moment: int) -> Column:
    return F.col(bits).bitwiseAND(F.lit(1 << moment).cast("bigint")) != 0


def _counted(conditions: list[Column]) -> Column:
    return F.array(*(F.count_if(condition) for condition in conditions))


def _of(friends: DataFrame, side: str) -> DataFrame:
    return friends.select(F.col("user_id").alias(side), F.col("degree").alias(f"{side}_degree"))
