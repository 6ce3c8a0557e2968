"""The rows that strengths are learned from and predicted for: a friendship at a moment, what was known of it then, and
when a contact in the week after it became known.

Everything but `contact_known_at` is from rows known before the moment. Shapes: T moments.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.clock import DAY
from contracts.features import FAMILIES, Counter, Family
from contracts.lake import Lake
from contracts.strength import AHEAD_US
from contracts.tables import USERS
from contracts.tasks import CONTACTS
from pipelines.counters import as_of_moments
from pipelines.frames import frame, kept
from pipelines.strength.circles import edges_at, with_circles

LONGEST_DAYS = 365.0
"""Days since a contact that never was, and the most that is told apart."""

_POSTING = Family("posting", ("author_id",), (Counter("posts_14d", ("post",), 14 * DAY),))
READ = (
    ("tie", FAMILIES["tie"], ("user_id", "friend_id")),
    ("back", FAMILIES["tie"], ("friend_id", "user_id")),
    *((f"{side}_{family.name}", family, (f"{side}_id",)) for side in ("user", "friend") for family in (FAMILIES["viewer"], _POSTING)),
)  # fmt: skip
"""(prefix, family, which columns of a row fill the family's key)."""


def _state_names(prefix: str, family: Family) -> list[str]:
    counters = [f"{prefix}_{counter.name}" for counter in family.counters]
    return counters + [f"{prefix}_days_since_{latest.name}" for latest in family.latests]


_FACTS = (
    "friendship_days", "special_care", "special_care_back", "returned", "mutual_friends", "user_friends", "friend_friends",
    "user_tenure_days", "friend_tenure_days", "same_city",
)  # fmt: skip
INPUT_NAMES = (*(name for prefix, family, _ in READ for name in _state_names(prefix, family)), *_FACTS)
"""What the model sees of a friendship, in this order."""


def filled(history_us: int, half_life_us: int) -> float:
    """Share of a steady rate's decayed count that `history_us` of log can hold: counts are divided by it.

    A log that began three weeks ago shows less of the same closeness than one of a year; undivided, what is learned as of
    an early moment promises too much as of a later one.
    """
    return 1.0 - 2.0 ** (-history_us / half_life_us)


@contextmanager
def friend_rows(spark: SparkSession, lake: Lake, events: DataFrame, start: int, moments: Sequence[int]
                ) -> Iterator[DataFrame]:  # fmt: skip
    """One row per moment and friendship active then, held while the block runs; `start`: of the log (all UTC us).

    Columns `as_of`, `user_id`, `friend_id`, `contact_known_at`, INPUT_NAMES. `contact_known_at` (us) is when the first
    contact of the week [as_of, as_of + AHEAD_US) to become known did so, null without one. Inputs are float; decayed
    counts are divided by `filled`. Pairs are joined once, with what holds at each moment beside them, and spread out last.
    """
    with ExitStack() as held:
        edges = held.enter_context(kept(edges_at(spark, lake, moments)))
        ties = held.enter_context(kept(_by_key(events, FAMILIES["tie"], moments)))
        people = held.enter_context(kept(_people(spark, lake, events, moments)))
        pairs = with_circles(edges, len(moments)).join(
            _contacts_after(events, moments), ["user_id", "friend_id"], "left"
        )
        for prefix, names in (("tie", ("user_id", "friend_id")), ("back", ("friend_id", "user_id"))):
            named = (F.col(own).alias(name) for own, name in zip(FAMILIES["tie"].key, names, strict=True))
            pairs = pairs.join(ties.select(*named, F.col("states").alias(prefix)), ["user_id", "friend_id"], "left")
        for side in ("user", "friend"):
            named = (F.col(name).alias(f"{side}_{name}") for name in ("id", "viewer", "posting", "profile"))
            pairs = pairs.join(people.select(*named), f"{side}_id", "left")
        at = [F.struct(F.lit(i).alias("i"), F.lit(t).cast("bigint").alias("as_of"),
                       *(F.lit(filled(t - start, hl)).alias(f"_{hl}") for hl in _half_lives()))
              for i, t in enumerate(moments)]  # fmt: skip
        rows = pairs.withColumn("at", F.explode(F.array(*at))).where(_at("active"))
        columns = _columns()
        inputs = (F.coalesce(columns[name].cast("float"), _absent(name)).alias(name) for name in INPUT_NAMES)
        yield held.enter_context(kept(rows.select(
            "at.as_of", "user_id", "friend_id", _at("contact_T").alias("contact_known_at"), *inputs
        )))  # fmt: skip


def _half_lives() -> list[int]:
    return sorted({counter.half_life_us for _, family, _ in READ for counter in family.counters})


def _at(name: str) -> Column:
    """What an array by moment, or a bit by moment, says of the row's moment; an absent bit is not set."""
    if name.endswith("_T"):
        return F.element_at(name, F.col("at.i") + 1)
    return F.coalesce(F.getbit(F.col(name), F.col("at.i")) == 1, F.lit(False))


def _columns() -> dict[str, Column]:
    """INPUT_NAMES of the row's moment, null where nothing is known."""
    as_of, day = F.col("at.as_of"), F.lit(float(DAY))
    found = {
        "friendship_days": (as_of - _at("since_T")) / day, "special_care": _at("special_T"),
        "special_care_back": _at("special_back_T"), "returned": _at("returned"),
        **{name: _at(f"{name}_T") for name in ("mutual_friends", "user_friends", "friend_friends")},
        "same_city": F.col("user_profile")[as_of]["city"] == F.col("friend_profile")[as_of]["city"],
    }  # fmt: skip
    for side in ("user", "friend"):
        tenure = as_of - F.col(f"{side}_profile")[as_of]["registered_at"]
        found[f"{side}_tenure_days"] = F.greatest(F.lit(0), tenure) / day
    for prefix, family, _ in READ:
        values = F.col(prefix)[as_of]
        for slot, (part, name) in enumerate(zip(family.parts, _state_names(prefix, family), strict=True)):
            if isinstance(part, Counter):
                found[name] = values[slot] / F.col(f"at._{part.half_life_us}")
            else:
                days = F.least((as_of - values[slot]) / day, F.lit(LONGEST_DAYS))
                found[name] = F.when(values[slot] > 0, days)
    return found


def _absent(name: str) -> Column:
    return F.lit(LONGEST_DAYS if "_days_since_" in name else 0.0).cast("float")


def _by_key(events: DataFrame, family: Family, moments: Sequence[int]) -> DataFrame:
    """One row per key of the family: `states`, a map of moment -> values as of it."""
    states = F.map_from_entries(F.collect_list(F.struct("as_of", "values")))
    return as_of_moments(events, family, moments).groupBy(*family.key).agg(states.alias("states"))


def _contacts_after(events: DataFrame, moments: Sequence[int]) -> DataFrame:
    """Per pair, `contact_T`: when the first contact of each moment's week to become known did so (us), else null."""
    occurred_at = F.col("occurred_at")
    weeks = [occurred_at.between(t, t + AHEAD_US - 1) for t in moments]
    contacts = events.where(F.col("kind").isin(*CONTACTS) & (occurred_at >= min(moments)))
    return contacts.groupBy("user_id", F.col("author_id").alias("friend_id")).agg(
        F.array(*(F.min(F.when(week, F.col("known_at"))) for week in weeks)).alias("contact_T")
    )


def _people(spark: SparkSession, lake: Lake, events: DataFrame, moments: Sequence[int]) -> DataFrame:
    """`id` of everybody, and by moment (maps) the states `viewer` and `posting` and the latest known `profile`."""
    profile = F.struct("known_at", "registered_at", "city")
    by_moment = (
        F.struct(F.lit(t).cast("bigint").alias("as_of"), F.max(F.when(F.col("known_at") < t, profile)).alias("profile"))
        for t in moments
    )
    profiles = frame(spark, lake, USERS, ("user_id", "registered_at", "city", "known_at"))
    people = profiles.groupBy("user_id").agg(F.map_from_entries(F.array(*by_moment)).alias("profile"))
    people = people.withColumnRenamed("user_id", "id")
    for family in (FAMILIES["viewer"], _POSTING):
        states = _by_key(events, family, moments).withColumnRenamed("states", family.name)
        people = people.join(states.withColumnRenamed(family.key[0], "id"), "id", "full")
    return people
