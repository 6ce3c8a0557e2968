"""Every feature, declared once: the Spark job and the online updater are both driven by these declarations.

Counters are exponentially decayed sums over the event stream (`contracts.events`): an event of weight w at time e counts
`w * 2 ** (-(t - e) / half_life)` at time t, from the moment it is known (`known_at < t`). Facts are read off the tables
as known at t; `FACTS` gives each rule in words, and both sides implement exactly that rule.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from contracts.clock import DAY
from contracts.tables import POST_KINDS
from contracts.tasks import CONTACTS, ENGAGEMENTS


@dataclass(frozen=True)
class Counter:
    """A decayed count of events of `kinds`; `half_life_us` in microseconds."""

    name: str
    kinds: tuple[str, ...]
    half_life_us: int


@dataclass(frozen=True)
class Latest:
    """The time (UTC microseconds) of the latest known event of `kinds`; 0 when there is none."""

    name: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """State kept per key: `key` names columns of the event stream; state vector = counters, then latests."""

    name: str
    key: tuple[str, ...]
    counters: tuple[Counter, ...]
    latests: tuple[Latest, ...] = ()

    @property
    def parts(self) -> tuple["Counter | Latest", ...]:
        """Counters, then latests: what the places of the state vector hold."""
        return (*self.counters, *self.latests)

    @property
    def width(self) -> int:
        """Length of the state vector."""
        return len(self.counters) + len(self.latests)

    def slot(self, name: str) -> int:
        """Position of a counter or latest in the state vector."""
        return [part.name for part in self.parts].index(name)


_KINDS = {
    "views": "view",
    "clicks": "click",
    "likes": "like",
    "comments": "comment",
    "shares": "share",
    "hides": "hide",
}


def _per_kind(days: int, *names: str) -> tuple[Counter, ...]:
    return tuple(Counter(f"{name}_{days}d", (_KINDS[name],), days * DAY) for name in names)


_ALL = tuple(_KINDS)
FAMILIES = {
    family.name: family
    for family in (
        Family("viewer", ("user_id",), _per_kind(7, *_ALL)),
        Family("author", ("author_id",), (*_per_kind(7, *_ALL), Counter("posts_14d", ("post",), 14 * DAY))),
        Family("post", ("post_id",), _per_kind(2, *_ALL)),
        Family(
            "tie", ("user_id", "author_id"),
            (*_per_kind(14, *_ALL), Counter("contacts_14d", CONTACTS, 14 * DAY), Counter("contacts_180d", CONTACTS, 180 * DAY)),
            (Latest("contact", CONTACTS),),
        ),
        Family("taste", ("user_id", "topic"), (*_per_kind(14, *_ALL), Counter("engaged_180d", ENGAGEMENTS, 180 * DAY))),
    )
}  # fmt: skip
"""`tie` is directed: what user_id did with author_id's posts; the reverse direction is the same family, key swapped."""


@dataclass(frozen=True)
class Feature:
    """One raw input of the models.

    Exactly one source: `counter` = (family, counter), `latest` = (family, latest: days since, capped at `default`), or
    a fact (both None). `key` says which columns of the sample fill the family's key. `log`: models take log1p of it.
    `category`: an integer code and not a quantity, of `cardinality` values (0: open).
    """

    name: str
    entity: str
    default: float
    counter: tuple[str, str] | None = None
    latest: tuple[str, str] | None = None
    key: tuple[str, ...] = ()
    log: bool = False
    category: bool = False
    cardinality: int = 0
    prerank: bool = True


def _counters(
    prefix: str, entity: str, family: str, key: tuple[str, ...], *, prerank: bool = True
) -> tuple[Feature, ...]:
    return tuple(
        Feature(
            f"{prefix}_{counter.name}", entity, 0.0, counter=(family, counter.name), key=key, log=True, prerank=prerank
        )
        for counter in FAMILIES[family].counters
    )


FEATURES = (
    *_counters("viewer", "viewer", "viewer", ("user_id",), prerank=False),
    Feature("viewer_tenure_days", "viewer", 0.0, log=True, prerank=False),
    Feature("viewer_friends", "viewer", 0.0, log=True, prerank=False),
    *_counters("author", "author", "author", ("author_id",)),
    Feature("author_friends", "author", 0.0, log=True),
    *_counters("tie", "viewer-author", "tie", ("user_id", "author_id")),
    *_counters("back", "viewer-author", "tie", ("author_id", "user_id"), prerank=False),
    Feature("tie_days_since_contact", "viewer-author", 365.0, latest=("tie", "contact"), key=("user_id", "author_id"), log=True),
    Feature("back_days_since_contact", "viewer-author", 365.0, latest=("tie", "contact"), key=("author_id", "user_id"), log=True),
    Feature("is_friend", "viewer-author", 0.0),
    Feature("special_care", "viewer-author", 0.0),
    Feature("friendship_days", "viewer-author", 0.0, log=True),
    Feature("mutual_friends", "viewer-author", 0.0, log=True),
    Feature("same_city", "viewer-author", 0.0, prerank=False),
    *_counters("post", "post", "post", ("post_id",)),
    Feature("post_age_hours", "post", 0.0, log=True),
    Feature("post_is_share", "post", 0.0),
    Feature("post_public", "post", 0.0, prerank=False),
    Feature("post_kind", "post", 0.0, category=True, cardinality=len(POST_KINDS), prerank=False),
    Feature("post_topic", "post", 0.0, category=True, prerank=False),
    Feature("friends_engaged", "viewer-post", 0.0, log=True),
    *_counters("taste", "viewer-topic", "taste", ("user_id", "topic"), prerank=False),
    Feature("hour_sin", "context", 0.0, prerank=False),
    Feature("hour_cos", "context", 0.0, prerank=False),
    Feature("weekend", "context", 0.0, prerank=False),
)  # fmt: skip

FACTS = {
    "viewer_tenure_days": "max(0, t - users.registered_at of the viewer) in days",
    "viewer_friends": "distinct friend_id of the viewer's active friendships",
    "author_friends": "distinct friend_id of the author's active friendships",
    "is_friend": "1 when an active friendship viewer -> author exists",
    "special_care": "1 when an active friendship viewer -> author has kind special_care",
    "friendship_days": "t - min(since) of the active friendships viewer -> author, in days; 0 without one",
    "mutual_friends": "distinct f with active friendships viewer -> f and author -> f",
    "same_city": "1 when both users' city is known and equal",
    "post_age_hours": "max(0, t - posts.created_at) in hours",
    "post_is_share": "1 when posts.origin_post_id is set",
    "post_public": "1 when posts.visibility is public",
    "post_kind": "index of posts.kind in contracts.tables.POST_KINDS",
    "post_topic": "posts.topic",
    "friends_engaged": "distinct f with an active friendship viewer -> f and a like, comment or share of the post known before t",
    "hour_sin": "sin(2 pi h / 24), h = hours since UTC midnight at t, with fraction",
    "hour_cos": "cos(2 pi h / 24)",
    "weekend": "1 on UTC Saturday and Sunday",
}
"""Active at t: known_at < t and (ended_at is null or ended_at > t). An edge's kind is part of the row, so an edge that
became special_care is a second row."""


@dataclass(frozen=True)
class Ratio:
    """A smoothed rate: (numerator + prior * strength) / (denominator + strength); derived from raw features."""

    name: str
    numerator: str
    denominator: str
    prior: float
    strength: float
    prerank: bool = True


_RATES = {
    "click": ("clicks", 0.15),
    "like": ("likes", 0.05),
    "comment": ("comments", 0.02),
    "share": ("shares", 0.01),
    "hide": ("hides", 0.01),
}
RATIOS = tuple(
    Ratio(f"{prefix}_{task}_rate", f"{prefix}_{counter}_{days}d", f"{prefix}_views_{days}d", prior, 5.0, prerank)
    for prefix, days, prerank in (("tie", 14, True), ("author", 7, True), ("post", 2, True), ("taste", 14, False), ("viewer", 7, False))
    for task, (counter, prior) in _RATES.items()
)  # fmt: skip

FEATURE_NAMES = tuple(feature.name for feature in FEATURES)
INPUT_NAMES = (*FEATURE_NAMES, *(ratio.name for ratio in RATIOS))
PRERANK_NAMES = (*(f.name for f in FEATURES if f.prerank), *(r.name for r in RATIOS if r.prerank))
LOG_NAMES = tuple(feature.name for feature in FEATURES if feature.log)
CATEGORY_NAMES = tuple(feature.name for feature in FEATURES if feature.category)


def _version() -> str:
    declared = {
        "families": [asdict(family) for family in FAMILIES.values()],
        "features": [asdict(feature) for feature in FEATURES],
        "ratios": [asdict(ratio) for ratio in RATIOS],
        "facts": FACTS,
    }
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()[:16]


FEATURE_VERSION = _version()
"""A model carries the version it was trained with, and serving refuses a model of another one."""


def assemble(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The model input (N, F) in the order of `INPUT_NAMES`, float64, from raw feature columns (N,) by name.

    Raises ValueError that names a missing column, or the first feature and row that is not finite.
    """
    missing = [name for name in FEATURE_NAMES if name not in columns]
    if missing:
        raise ValueError(f"feature columns missing: {', '.join(missing)}")
    raw_FN = [np.asarray(columns[name], dtype=np.float64) for name in FEATURE_NAMES]
    index = {name: i for i, name in enumerate(FEATURE_NAMES)}
    rates_RN = [
        (raw_FN[index[r.numerator]] + r.prior * r.strength) / (raw_FN[index[r.denominator]] + r.strength)
        for r in RATIOS
    ]
    inputs_NF = np.stack([*raw_FN, *rates_RN], axis=1)
    bad = ~np.isfinite(inputs_NF)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(f"feature {INPUT_NAMES[column]} is {inputs_NF[row, column]} in row {row}")
    return inputs_NF
