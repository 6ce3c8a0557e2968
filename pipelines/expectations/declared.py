"""The declared expectations: for every column of every table what its values are, what they refer to, what is unique.

A condition is Spark SQL that is true for a row that breaks the expectation.
"""

from dataclasses import dataclass

import pyarrow as pa

from contracts.clock import DAY
from contracts.tables import ACTION_KINDS, BLOCK_KINDS, FRIENDSHIP_KINDS, POST_KINDS, TABLES, VISIBILITIES
from pipelines.keys import KEYS

FIRST_MOMENT, LAST_MOMENT = 631_152_000_000_000, 4_102_444_800_000_000
"""1990-01-01 and 2100-01-01 in UTC microseconds: no moment of a log lies outside."""
LONGEST_LOOK_MS = DAY // 1000


@dataclass(frozen=True)
class Rule:
    """What one column, or a row of it with others, is expected to be."""

    column: str
    words: str
    broken: str


@dataclass(frozen=True)
class Reference:
    """A column whose values stand in a column of another table, empty ones aside."""

    column: str
    table: str
    other: str

    @property
    def words(self) -> str:
        """In words, for reports."""
        return f"is a {self.other} of {self.table}"


@dataclass(frozen=True)
class Expectations:
    """All that is expected of one table."""

    rules: tuple[Rule, ...]
    references: tuple[Reference, ...]
    unique: tuple[str, ...]


def _between(column: str, least: float, most: float) -> Rule:
    return Rule(column, f"lies from {least} to {most}", f"{column} < {least} or {column} > {most}")


def _one_of(column: str, values: tuple[str, ...]) -> Rule:
    listed = ", ".join(f"'{value}'" for value in values)
    return Rule(column, f"is one of {', '.join(values)}", f"{column} not in ({listed})")


def _not_before(column: str, other: str) -> Rule:
    return Rule(column, f"is not before {other}", f"{column} < {other}")


def _filled(column: str) -> Rule:
    return Rule(column, "is not empty text", f"{column} = ''")


def _finite(column: str) -> Rule:
    return Rule(
        column, "holds finite numbers", f"exists({column}, x -> x is null or isnan(x) or abs(x) = double('infinity'))"
    )


_OWN: dict[str, tuple[Rule, ...]] = {
    "users": (_filled("age_band"), _filled("gender"), _filled("city"), _not_before("known_at", "registered_at"),
              Rule("attributes", "has no empty names", "exists(map_keys(attributes), x -> x = '')")),
    "friendships": (_one_of("kind", FRIENDSHIP_KINDS), _not_before("ended_at", "since"), _filled("source"),
                    Rule("friend_id", "is another one", "user_id = friend_id"), _not_before("known_at", "since")),
    "blocks": (_one_of("kind", BLOCK_KINDS), _not_before("ended_at", "since"),
               Rule("target_id", "is another one", "user_id = target_id"), _not_before("known_at", "since")),
    "posts": (_one_of("kind", POST_KINDS), _one_of("visibility", VISIBILITIES), _between("topic", 0, 2**31 - 1),
              Rule("origin_post_id", "is another post", "origin_post_id = post_id"), _finite("embedding"),
              _not_before("edited_at", "created_at"), _not_before("deleted_at", "created_at"), _not_before("known_at", "created_at"),
              Rule("audience", "has no empty entries", "exists(audience, x -> x is null or x < 0)"),
              Rule("text", "is under a million letters", "length(text) > 1000000")),
    "topics": (_between("topic", 0, 2**31 - 1), _filled("name")),
    "subjects": (_filled("name"), _filled("kind"), _filled("url")),
    "requests": (_filled("policy"), _filled("experiment"), _between("slate_size", 0, 10_000), _not_before("known_at", "requested_at"),
                 Rule("candidates", "has no empty entries", "exists(candidates, x -> x is null or x < 0)")),
    "impressions": (_between("position", 0, 1_000_000), _between("viewed_ms", 0, LONGEST_LOOK_MS), _filled("policy"),
                    Rule("propensity", "lies above 0 and not above 1", "isnan(propensity) or propensity <= 0 or propensity > 1"),
                    _filled("experiment"), _filled("feature_version"), _finite("features"), _not_before("known_at", "shown_at")),
    "actions": (_one_of("kind", ACTION_KINDS), _not_before("known_at", "occurred_at"),
                Rule("value", "is finite, and for dwell from 0 to 86,400 s",
                     "isnan(value) or abs(value) = double('infinity') or (kind = 'dwell' and (value < 0 or value > 86400))")),
    "sessions": (_not_before("ended_at", "started_at"), _between("requests", 0, 100_000)),
}  # fmt: skip

_REFERENCES: dict[str, tuple[Reference, ...]] = {
    "friendships": (Reference("user_id", "users", "user_id"), Reference("friend_id", "users", "user_id")),
    "blocks": (Reference("user_id", "users", "user_id"), Reference("target_id", "users", "user_id")),
    "posts": (Reference("author_id", "users", "user_id"), Reference("origin_post_id", "posts", "post_id"),
              Reference("topic", "topics", "topic")),
    "requests": (Reference("user_id", "users", "user_id"),),
    "impressions": (Reference("request_id", "requests", "request_id"), Reference("user_id", "users", "user_id"),
                    Reference("post_id", "posts", "post_id"), Reference("author_id", "users", "user_id")),
    "actions": (Reference("request_id", "requests", "request_id"), Reference("user_id", "users", "user_id"),
                Reference("post_id", "posts", "post_id"), Reference("author_id", "users", "user_id")),
    "sessions": (Reference("user_id", "users", "user_id"),),
}  # fmt: skip
"""Posts may name a subject that has no row: its number then stands for its name."""


def _of_schema(table: str) -> list[Rule]:
    """What the types say: no empty values where there may be none, ids from 0 on, moments of this age."""
    rules = []
    for one in TABLES[table].schema:
        if not one.nullable:
            rules.append(Rule(one.name, "is not empty", f"{one.name} is null"))
        if one.type != pa.int64():
            continue
        if one.name.endswith("_id"):
            rules.append(Rule(one.name, "is 0 or above", f"{one.name} < 0"))
        elif one.name.endswith("_at") or one.name == "since":
            rules.append(
                Rule(one.name, "lies in 1990 to 2099", f"{one.name} < {FIRST_MOMENT} or {one.name} >= {LAST_MOMENT}")
            )
    return rules


EXPECTATIONS = {
    name: Expectations((*_of_schema(name), *_OWN[name]), _REFERENCES.get(name, ()), KEYS[name]) for name in TABLES
}
"""Table -> what is expected of it."""
