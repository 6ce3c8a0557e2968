"""Raw feature columns of all candidates of one request, in one round trip, by exactly the rules of contracts.features.

Shapes: N candidates, A distinct authors, M members of a set, R records, S width of a state.
"""

from collections.abc import Sequence

import numpy as np

from contracts.clock import DAY, HOUR
from contracts.features import FAMILIES, FEATURES, Feature
from serving.store.families import ENGAGER, FRIEND, key
from serving.store.packing import (
    FRIEND_CODE,
    Profile,
    latest_records,
    unpack_many_records,
    unpack_profile,
    unpack_states,
)
from serving.store.protocol import Store

_DECLARED = [feature for feature in FEATURES if feature.counter or feature.latest]


class FeatureReader:
    """Reads features of one viewer's candidates from a store."""

    def __init__(self, store: Store):
        self.store = store

    def read(self, now: int, profile: Profile | None, user_id: int, friends_RW: np.ndarray, posts: "PostFacts",
             ) -> dict[str, np.ndarray]:  # fmt: skip
        """Every column of `contracts.features.FEATURES` (N,) by name, as known at `now` (UTC us).

        `friends_RW`: the viewer's FRIEND records; `profile` None for a viewer without one. One call of `get_many`.
        """
        authors_A, author_at_N = np.unique(posts.author_id_N, return_inverse=True)
        topics_T, topic_at_N = np.unique(posts.topic_N, return_inverse=True)
        authors, topics, post_ids = authors_A.tolist(), topics_T.tolist(), posts.post_id_N.tolist()
        keys, spans = _keys(user_id, authors, topics, post_ids)
        values = self.store.get_many(keys)
        got = {name: values[span] for name, span in spans.items()}
        at = {"viewer": np.zeros(len(post_ids), np.int64), "author": author_at_N, "tie": author_at_N,
              "back": author_at_N, "post": np.arange(len(post_ids)), "taste": topic_at_N}  # fmt: skip
        columns = _declared_columns(now, got, at)

        hour = now % DAY / HOUR
        angle = 2 * np.pi * hour / 24
        day = now // DAY  # 1970-01-01 was a Thursday
        everyone = np.ones(len(post_ids))
        active_RW = active_friends(friends_RW, now)
        friend_ids_M = np.unique(active_RW[:, 0])
        columns["viewer_tenure_days"] = everyone * (max(0, now - profile.registered_at) / DAY if profile else 0.0)
        columns["viewer_friends"] = everyone * len(friend_ids_M)
        columns["hour_sin"], columns["hour_cos"] = everyone * np.sin(angle), everyone * np.cos(angle)
        columns["weekend"] = everyone * float((day + 3) % 7 >= 5)
        for name, column_A in _author_facts(now, profile, active_RW, friend_ids_M, authors_A, got).items():
            columns[name] = column_A[author_at_N]
        columns["post_age_hours"] = np.maximum(0, now - posts.created_at_N) / HOUR
        columns["post_is_share"] = posts.is_share_N.astype(np.float64)
        columns["post_public"] = posts.is_public_N.astype(np.float64)
        columns["post_kind"] = posts.kind_N.astype(np.float64)
        columns["post_topic"] = posts.topic_N.astype(np.float64)
        engagers_RW, owner_R = unpack_many_records(got["engagers"], ENGAGER)
        columns["friends_engaged"] = members(owner_R, engagers_RW[:, 0], friend_ids_M, len(post_ids))
        return columns


class PostFacts:
    """What the documents of N candidates say; each (N,)."""

    def __init__(self, post_id_N: np.ndarray, author_id_N: np.ndarray, topic_N: np.ndarray, created_at_N: np.ndarray,
                 kind_N: np.ndarray, is_public_N: np.ndarray, is_share_N: np.ndarray):  # fmt: skip
        self.post_id_N, self.author_id_N, self.topic_N = post_id_N, author_id_N, topic_N
        self.created_at_N, self.kind_N = created_at_N, kind_N
        self.is_public_N, self.is_share_N = is_public_N, is_share_N


def active_friends(friends_RW: np.ndarray, now: int) -> np.ndarray:
    """The FRIEND records that are active at `now`: not ended, or ended later."""
    friends_RW = latest_records(friends_RW, 0, 1, 2)
    return friends_RW[friends_RW[:, 3] > now]


def decayed(states_NS: np.ndarray, family: str, now: int) -> np.ndarray:
    """Counters (N, counters) as of `now` of states (N, 1 + S)."""
    half_lives = np.array([counter.half_life_us for counter in FAMILIES[family].counters], np.float64)
    elapsed_N = now - states_NS[:, 0]
    return states_NS[:, 1 : 1 + len(half_lives)] * np.exp2(-elapsed_N[:, None] / half_lives)


def _keys(user_id: int, authors: list, topics: list, posts: list) -> tuple[list[bytes], dict[str, slice]]:
    parts = {
        "viewer": [key("viewer", user_id)],
        "author": [key("author", author) for author in authors],
        "tie": [key("tie", user_id, author) for author in authors],
        "back": [key("tie", author, user_id) for author in authors],
        "user": [key("user", author) for author in authors],
        "friends": [key("friends", author) for author in authors],
        "post": [key("post", post) for post in posts],
        "engagers": [key("engagers", post) for post in posts],
        "taste": [key("taste", user_id, topic) for topic in topics],
    }
    keys: list[bytes] = []
    spans = {}
    for name, some in parts.items():
        spans[name] = slice(len(keys), len(keys) + len(some))
        keys.extend(some)
    return keys, spans


def _part(feature: Feature) -> str:
    """Which states a declared feature reads: its family, `back` for the tie in the other direction."""
    family = (feature.counter or feature.latest or ("", ""))[0]
    return "back" if family == "tie" and feature.key == ("author_id", "user_id") else family


def _declared_columns(now: int, got: dict[str, list], at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    columns, states, counts = {}, {}, {}
    for feature in _DECLARED:
        part, family = _part(feature), FAMILIES[(feature.counter or feature.latest or ("", ""))[0]]
        if part not in states:
            states[part] = unpack_states(got[part], family.width)
            counts[part] = decayed(states[part], family.name, now)
        if feature.counter:
            column = counts[part][:, family.slot(feature.counter[1])]
        else:
            assert feature.latest is not None
            latest = states[part][:, 1 + family.slot(feature.latest[1])]
            column = np.where(latest > 0, np.minimum((now - latest) / DAY, feature.default), feature.default)
        columns[feature.name] = column[at[part]]
    return columns


def _author_facts(now: int, profile: Profile | None, active_RW: np.ndarray, friend_ids_M: np.ndarray,
                  authors_A: np.ndarray, got: dict[str, list]) -> dict[str, np.ndarray]:  # fmt: skip
    count = len(authors_A)
    records_RW, owner_R = unpack_many_records(got["friends"], FRIEND)
    active_R = records_RW[:, 3] > now
    if _has_ended(records_RW):
        active_R &= _is_latest(owner_R, records_RW)
    of_author_R, owner_R = records_RW[active_R, 0], owner_R[active_R]
    since_A = np.full(count, np.inf)
    is_friend_A, special_A = np.zeros(count), np.zeros(count)
    at_R = np.minimum(np.searchsorted(authors_A, active_RW[:, 0]), max(count - 1, 0))
    mine_R = authors_A[at_R] == active_RW[:, 0] if count else np.zeros(len(at_R), bool)
    is_friend_A[at_R[mine_R]] = 1.0
    special_A[at_R[mine_R & (active_RW[:, 1] == FRIEND_CODE["special_care"])]] = 1.0
    np.minimum.at(since_A, at_R[mine_R], active_RW[mine_R, 2].astype(np.float64))
    city = profile.city if profile else ""
    cities: Sequence[str] = [unpack_profile(value).city if value else "" for value in got["user"]] if city else []
    return {
        "author_friends": _distinct(owner_R, of_author_R, count),
        "mutual_friends": members(owner_R, of_author_R, friend_ids_M, count),
        "is_friend": is_friend_A,
        "special_care": special_A,
        "friendship_days": np.where(np.isfinite(since_A), (now - np.where(np.isfinite(since_A), since_A, 0)) / DAY, 0),
        "same_city": np.array([float(other == city) for other in cities]) if city else np.zeros(count),
    }


def _has_ended(records_RW: np.ndarray) -> bool:
    """Whether any row says when it ended: only then can a later row of the same edge matter."""
    return bool((records_RW[:, 3] < 2**61).any())


def _is_latest(owner_R: np.ndarray, records_RW: np.ndarray) -> np.ndarray:
    """Mask (R,): the last record of each (owner, other, kind, since)."""
    rows = np.concatenate([owner_R[:, None], records_RW[:, :3]], axis=1)[::-1]
    _, last = np.unique(rows, axis=0, return_index=True)
    mask = np.zeros(len(rows), bool)
    mask[len(rows) - 1 - last] = True
    return mask


def _distinct(owner_R: np.ndarray, id_R: np.ndarray, count: int) -> np.ndarray:
    """Distinct ids per owner (count,), float64."""
    order = np.lexsort((id_R, owner_R))
    owner_R, id_R = owner_R[order], id_R[order]
    first_R = np.r_[True, (owner_R[1:] != owner_R[:-1]) | (id_R[1:] != id_R[:-1])] if len(order) else order.astype(bool)
    return np.bincount(owner_R[first_R], minlength=count).astype(np.float64)


def members(owner_R: np.ndarray, id_R: np.ndarray, set_M: np.ndarray, count: int) -> np.ndarray:
    """Distinct ids per owner (count,) that are in the sorted `set_M`, float64."""
    if not len(set_M) or not len(id_R):
        return np.zeros(count)
    at_R = np.minimum(np.searchsorted(set_M, id_R), len(set_M) - 1)
    inside_R = set_M[at_R] == id_R
    met = np.zeros((count, len(set_M)), bool)
    met[owner_R[inside_R], at_R[inside_R]] = True
    return met.sum(axis=1).astype(np.float64)
