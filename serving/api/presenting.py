"""A feed as people read it: names, originals, topics, reasons and counts around the ranked post ids."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from contracts.clock import SECOND, to_datetime
from contracts.served import NO_ID, Document
from contracts.tables import POST_KINDS, VISIBILITIES
from contracts.tasks import TASK_NAMES
from serving.api.deployment import Deployment
from serving.features.hydrate import active_friends
from serving.features.updater import ENGAGEMENT_CODE
from serving.feed.candidates import PATHS, Feed
from serving.feed.filters import blocked_authors
from serving.feed.reasons import reasons, ties
from serving.store.families import ENGAGER, FRIEND, key
from serving.store.packing import Named, Profile, unpack_named, unpack_profile, unpack_records

FACES = 3
"""How many friends who acted on a post are shown."""


def feed_response(deployment: Deployment, feed: Feed, took_ms: float) -> dict[str, Any]:
    """`FeedResponse` as a dict, in two round trips."""
    names = _Names(deployment, feed)
    probability_KT = feed.probability_KT
    tie_K = ties(feed)
    items = []
    for row in range(len(feed)):
        document, chain = feed.shown["document"][row], feed.shown["chain"][row]
        friends = names.engaged_friends[row]
        item = _post(document, chain, feed.query.now, names)
        people = [person(names.profile(user_id), user_id) for user_id in friends]
        why = reasons(feed, row, tie_K[row], [one["name"] for one in people], item["author"]["name"],
                      (item["subject"] or {}).get("name", ""), item["topic"]["name"])  # fmt: skip
        items.append({
            **item,
            "position": row,
            "score": float(feed.score_K[row]),
            "probabilities": {} if probability_KT is None else dict(zip(TASK_NAMES, probability_KT[row].tolist())),
            "paths": [path for path, there in zip(PATHS, feed.shown["brought_NP"][row]) if there],
            "reasons": [{"code": code, "text": text} for code, text in why],
            "tie": tie_K[row],
            "engagement": names.engagement[row],
            "friends_engaged": people[:FACES],
            "explored": bool(feed.shown["explored"][row]),
        })  # fmt: skip
    return {
        "request_id": feed.query.request_id,
        "viewer": person(feed.viewer.profile, feed.query.user_id),
        "served_at": iso(feed.query.now),
        "policy": feed.policy,
        "versions": deployment.versions,
        "degraded": list(feed.degraded),
        "items": items,
        "exhausted": len(feed) < feed.query.size,
        "took_ms": took_ms,
    }


def person(profile: Profile | None, user_id: int, friends: int | None = None) -> dict[str, Any]:
    """`Person` as a dict; somebody without a name is called by their number."""
    name = profile.name if profile is not None and profile.name else f"User {user_id}"
    return {"user_id": user_id, "name": name, "avatar_seed": f"{user_id}:{name}",
            "city": (profile.city or None) if profile is not None else None, "friends": friends}  # fmt: skip


def friend_counts(deployment: Deployment, user_ids: list[int]) -> list[int]:
    """How many friends each of `user_ids` has now."""
    values = deployment.store.get_many([key("friends", user_id) for user_id in user_ids]) if user_ids else []
    now = deployment.now
    return [len(np.unique(active_friends(unpack_records(value, FRIEND), now)[:, 0])) for value in values]


def iso(at: int) -> str:
    """ISO 8601 of UTC microseconds."""
    return to_datetime(at).isoformat().replace("+00:00", "Z")


class _Names:
    """What people, topics and subjects of a feed are called, and who engaged with its posts."""

    def __init__(self, deployment: Deployment, feed: Feed):
        self.topics = deployment.topics
        documents = [
            one for row in range(len(feed)) for one in (feed.shown["document"][row], *feed.shown["chain"][row])
        ]
        values = (
            deployment.store.get_many([key("engagers", post_id) for post_id in feed.post_id_K.tolist()])
            if len(feed)
            else []
        )
        circle = _nameable_friends(feed)
        engaged = [unpack_records(value, ENGAGER) for value in values]
        self.engagement = [_counts(rows) for rows in engaged]
        self.engaged_friends = [
            [one for one in dict.fromkeys(rows[:, 0].tolist()) if one in circle] for rows in engaged
        ]
        people = {one.author_id for one in documents} | {one for some in self.engaged_friends for one in some}
        subjects = {one.subject_id for one in documents if one.subject_id != NO_ID}
        keys = [*(key("user", one) for one in people), *(key("subject", one) for one in subjects)]
        found = deployment.store.get_many(keys) if keys else []
        self._people = dict(zip(people, found))
        self._subjects = dict(zip(subjects, found[len(people) :]))

    def profile(self, user_id: int) -> Profile | None:
        value = self._people.get(user_id)
        return unpack_profile(value) if value is not None else None

    def subject(self, subject_id: int) -> dict[str, Any] | None:
        value = self._subjects.get(subject_id)
        if value is None:
            return None
        named: Named = unpack_named(value)
        url = named.url if named.url.startswith(("http://", "https://")) else None
        return {"subject_id": named.subject_id, "name": named.name, "kind": named.kind, "url": url}


def _nameable_friends(feed: Feed) -> set[int]:
    """Friends whose doings the viewer may be told of: nobody whose posts a block, of either's, takes away."""
    viewer, now = feed.viewer, feed.query.now
    if viewer.blocks_RW is None:
        return set()
    return set(active_friends(viewer.friends_RW, now)[:, 0].tolist()) - blocked_authors(viewer.blocks_RW, now)


def _post(document: Document, chain: Sequence[Document], now: int, names: _Names) -> dict[str, Any]:
    original, further = (chain[0], chain[1:]) if chain else (None, ())
    return {
        "post_id": document.post_id,
        "author": person(names.profile(document.author_id), document.author_id),
        "kind": POST_KINDS[document.kind],
        "text": document.text,
        "topic": {"topic": document.topic, "name": names.topics.get(document.topic, f"topic {document.topic}")},
        "subject": names.subject(document.subject_id),
        "visibility": VISIBILITIES[document.visibility],
        "created_at": iso(document.created_at),
        "age_s": max(0, now - document.created_at) / SECOND,
        "original": _post(original, further, now, names) if original is not None else None,
    }


def _counts(rows_RW: np.ndarray) -> dict[str, int]:
    """Distinct people per kind of engagement."""
    distinct = set(zip(rows_RW[:, 0].tolist(), rows_RW[:, 1].tolist()))
    return {f"{kind}s": sum(1 for _, code in distinct if code == wanted) for kind, wanted in ENGAGEMENT_CODE.items()}
