"""The sample features by brute force: for each impression, look through the whole log, sentence by sentence."""

import math
from typing import Any

from contracts.clock import DAY, HOUR
from contracts.events import event_stream
from contracts.features import FAMILIES, FEATURES, Family
from contracts.tables import POST_KINDS
from contracts.tasks import ENGAGEMENTS
from tests.pipelines.small_log import Tables

Row = dict[str, Any]


class Reference:
    """Features of impressions of one log, in plain Python."""

    def __init__(self, tables: Tables, *, respects_arrival: bool = True):
        """`respects_arrival=False` is the classic leak: rows count by when they happened, not by when they were known."""
        self.rows = {name: table.to_pylist() for name, table in tables.items()}
        self.events = event_stream(tables["posts"], tables["impressions"], tables["actions"]).to_pylist()
        self.moment = "known_at" if respects_arrival else "occurred_at"

    def state(self, family: Family, key: tuple[int | None, ...], at: int) -> list[float]:
        """The family's state vector of `key` as of `at`."""
        known = [e for e in self.events if e[self.moment] < at and tuple(e[column] for column in family.key) == key]
        sums = [
            math.fsum(2.0 ** (-(at - e["occurred_at"]) / c.half_life_us) for e in known if e["kind"] in c.kinds)
            for c in family.counters
        ]
        return sums + [
            max((e["occurred_at"] for e in known if e["kind"] in part.kinds), default=0) for part in family.latests
        ]

    def features(self, impression: Row, at: int) -> dict[str, float]:
        """All raw features of one impression whose request was made at `at`."""
        facts = self.facts(impression, at)
        post = _latest([p for p in self.rows["posts"] if p["post_id"] == impression["post_id"]], at)
        columns = {**impression, "topic": post["topic"] if post else None}
        values = {}
        for feature in FEATURES:
            source = feature.counter or feature.latest
            if source is None:
                values[feature.name] = float(facts[feature.name])
                continue
            family = FAMILIES[source[0]]
            value = self.state(family, tuple(columns[column] for column in feature.key), at)[family.slot(source[1])]
            if feature.latest is not None:
                value = min(feature.default, (at - value) / DAY) if value > 0 else feature.default
            values[feature.name] = float(value)
        return values

    def facts(self, impression: Row, at: int) -> dict[str, float]:
        """The features that are read off the tables."""
        viewer, author, post_id = impression["user_id"], impression["author_id"], impression["post_id"]
        edges = [
            e for e in self.rows["friendships"] if e["known_at"] < at and (e["ended_at"] is None or e["ended_at"] > at)
        ]
        friends_of = {user: {e["friend_id"] for e in edges if e["user_id"] == user} for user in (viewer, author)}
        ties = [e for e in edges if (e["user_id"], e["friend_id"]) == (viewer, author)]
        people = {
            user: _latest([u for u in self.rows["users"] if u["user_id"] == user], at) for user in (viewer, author)
        }
        post = _latest([p for p in self.rows["posts"] if p["post_id"] == post_id], at) or {}
        engaged = {
            a["user_id"]
            for a in self.rows["actions"]
            if a["post_id"] == post_id and a["kind"] in ENGAGEMENTS and a["known_at"] < at
        }
        cities = [(people[user] or {}).get("city") for user in (viewer, author)]
        hours = at % DAY / HOUR
        return {
            "viewer_tenure_days": max(0, at - people[viewer]["registered_at"]) / DAY if people[viewer] else 0,
            "viewer_friends": len(friends_of[viewer]),
            "author_friends": len(friends_of[author]),
            "is_friend": bool(ties),
            "special_care": any(e["kind"] == "special_care" for e in ties),
            "friendship_days": (at - min(e["since"] for e in ties)) / DAY if ties else 0,
            "mutual_friends": len(friends_of[viewer] & friends_of[author]),
            "same_city": cities[0] is not None and cities[0] == cities[1],
            "post_age_hours": max(0, at - post["created_at"]) / HOUR if post else 0,
            "post_is_share": post.get("origin_post_id") is not None,
            "post_public": post.get("visibility") == "public",
            "post_kind": POST_KINDS.index(post["kind"]) if post else 0,
            "post_topic": post.get("topic", 0),
            "friends_engaged": len(friends_of[viewer] & engaged),
            "hour_sin": math.sin(2 * math.pi * hours / 24),
            "hour_cos": math.cos(2 * math.pi * hours / 24),
            "weekend": (at // DAY + 3) % 7 >= 5,
        }


def _latest(versions: list[Row], at: int) -> Row | None:
    known = [row for row in versions if row["known_at"] < at]
    return max(known, key=lambda row: row["known_at"]) if known else None
