"""The rows that strengths are learned from and predicted for: a friendship at a moment, what was known of it then, and
when a contact in the week after it became known.

Everything but `contact_known_at` is from rows known before the moment. Shapes: T moments.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.features import FAMILIES, Counter
from contracts.lake import Lake
from contracts.strength import AHEAD_US
from contracts.tables import USERS
from contracts.tasks import CONTACTS
from pipelines.counters import as_of_moments
from pipelines.frames import frame, kept
from pipelines.strength.circles import edges_at, is_set, with_circles

LONGEST_DAYS = 365.0
"""Days since a contact that never was, and the most that is told apart."""

READ = (
    ("tie", "tie", ("user_id", "friend_id")),
    ("back", "tie", ("friend_id", "user_id")),
    ("user", "viewer", ("user_id",)),
    ("friend", "viewer", ("friend_id",)),
    ("user_as_author", "author", ("user_id",)),
    ("friend_as_author", "author", ("friend_id",)),
)
"""(prefix, family, which columns of a row fill the family's key)."""


def _state_names(prefix: str, family: str) -> list[str]:
    counters = [f"{prefix}_{counter.name}" for counter in FAMILIES[family].counters]
    return counters + [f"{prefix}_days_since_{latest.name}" for latest in FAMILIES[family].latests]


_FACTS = (
    "friendship_days", "special_care", "special_care_back", "returned", "mutual_friends", "user_friends", "friend_friends",
    "user_tenure_days", "friend_tenure_days", "same_city",
)  # fmt: skip
INPUT_NAMES = (*(name for prefix, family, _ in READ for name in _state_names(prefix, family)), *_FACTS)
"""What the model sees of a friendship, in this order."""


@contextmanager
def friend_rows(spark: SparkSession, lake: Lake, events: DataFrame, moments: Sequence[int]) -> Iterator[DataFrame]:
    """One row per moment (UTC us) and friendship active then, held while the block runs.

    Columns `as_of`, `user_id`, `friend_id`, `contact_known_at`, INPUT_NAMES. `contact_known_at` (us) is when the first
    contact of the week [as_of, as_of + AHEAD_US) to become known did so, null without one; inputs are float.
    """
    with ExitStack() as held:
        states = {
            name: held.enter_context(kept(as_of_moments(events, FAMILIES[name], moments)))
            for name in dict.fromkeys(family for _, family, _ in READ)
        }
        edges = held.enter_context(kept(edges_at(spark, lake, moments)))
        pairs = with_circles(edges, len(moments)).join(
            _contacts_after(events, moments), ["user_id", "friend_id"], "left"
        )
        rows = _by_moment(pairs, moments)
        for prefix, family, key in READ:
            rows = rows.join(_state_columns(states[family], prefix, family, key), ["as_of", *key], "left")
        rows = _with_people(rows, _people_at(spark, lake, moments))
        inputs = (F.coalesce(F.col(name).cast("float"), _absent(name)).alias(name) for name in INPUT_NAMES)
        yield held.enter_context(kept(rows.select("as_of", "user_id", "friend_id", "contact_known_at", *inputs)))


def _by_moment(pairs: DataFrame, moments: Sequence[int]) -> DataFrame:
    """One row per moment at which a pair's friendship is active, from arrays by moment."""
    counted = ("mutual_friends", "user_friends", "friend_friends")
    at_moments = [
        F.struct(
            F.lit(t).cast("bigint").alias("as_of"), is_set("active", i).alias("active"),
            F.col("contact_T")[i].alias("contact_known_at"),
            ((F.lit(t) - F.col("since_T")[i]) / F.lit(float(DAY))).alias("friendship_days"),
            F.col("special_T")[i].alias("special_care"),
            F.coalesce(F.col("special_back_T")[i], F.lit(False)).alias("special_care_back"),
            is_set("returned", i).alias("returned"),
            *(F.coalesce(F.col(f"{name}_T")[i], F.lit(0)).alias(name) for name in counted),
        )
        for i, t in enumerate(moments)
    ]  # fmt: skip
    rows = pairs.select("user_id", "friend_id", F.explode(F.array(*at_moments)).alias("at"))
    return rows.where("at.active").select("user_id", "friend_id", "at.*").drop("active")


def _with_people(rows: DataFrame, people: DataFrame) -> DataFrame:
    for side in ("user", "friend"):
        renamed = people.select(
            "as_of", F.col("user_id").alias(f"{side}_id"), F.col("tenure_days").alias(f"{side}_tenure_days"),
            F.col("city").alias(f"{side}_city"),
        )  # fmt: skip
        rows = rows.join(renamed, ["as_of", f"{side}_id"], "left")
    return rows.withColumn("same_city", F.col("user_city") == F.col("friend_city"))


def _absent(name: str) -> Column:
    return F.lit(LONGEST_DAYS if "_days_since_" in name else 0.0).cast("float")


def _state_columns(states: DataFrame, prefix: str, family: str, key: Sequence[str]) -> DataFrame:
    """A family's states as columns named `prefix_*`, under the row's columns `key`."""
    values, columns = F.col("values"), []
    for slot, (part, name) in enumerate(zip(FAMILIES[family].parts, _state_names(prefix, family), strict=True)):
        if isinstance(part, Counter):
            columns.append(values[slot].alias(name))
        else:
            days = (F.col("as_of") - values[slot]) / F.lit(float(DAY))
            columns.append(F.when(values[slot] > 0, F.least(days, F.lit(LONGEST_DAYS))).alias(name))
    keys = (F.col(own).alias(asked) for own, asked in zip(FAMILIES[family].key, key, strict=True))
    return states.select("as_of", *keys, *columns)


def _contacts_after(events: DataFrame, moments: Sequence[int]) -> DataFrame:
    """Per pair, `contact_T`: when the first contact of each moment's week to become known did so (us), else null."""
    occurred_at = F.col("occurred_at")
    weeks = [occurred_at.between(t, t + AHEAD_US - 1) for t in moments]
    contacts = events.where(F.col("kind").isin(*CONTACTS) & (occurred_at >= min(moments)))
    return contacts.groupBy("user_id", F.col("author_id").alias("friend_id")).agg(
        F.array(*(F.min(F.when(week, F.col("known_at"))) for week in weeks)).alias("contact_T")
    )


def _people_at(spark: SparkSession, lake: Lake, moments: Sequence[int]) -> DataFrame:
    """`as_of`, `user_id`, `tenure_days`, `city` of everybody known at each moment, by the latest known profile."""
    profile = F.struct("known_at", "registered_at", "city")
    found = frame(spark, lake, USERS, ("user_id", "registered_at", "city", "known_at")).groupBy("user_id").agg(
        F.array(*(
            F.struct(F.lit(t).cast("bigint").alias("as_of"), F.max(F.when(F.col("known_at") < t, profile)).alias("profile"))
            for t in moments
        )).alias("profiles")
    )  # fmt: skip
    rows = found.select("user_id", F.explode("profiles").alias("at")).where("at.profile is not null")
    tenure = F.greatest(F.lit(0), F.col("at.as_of") - F.col("at.profile.registered_at")) / F.lit(float(DAY))
    return rows.select("at.as_of", "user_id", tenure.alias("tenure_days"), F.col("at.profile.city").alias("city"))
