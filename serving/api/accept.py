"""Events of clients into live events: looks up what they speak of, and refuses what cannot be, before anything is stored."""

import hashlib
from collections.abc import Sequence

import msgspec

from contracts.tables import POST_KINDS
from serving.api.deployment import Deployment
from serving.api.errors import ApiError
from serving.api.models import ActionEvent, BlockEvent, DeletePostEvent, Event, PostEvent
from serving.changes import BLOCK_CODE
from serving.feed.hydrators import read_documents
from serving.live_events import LiveEvent, ended
from serving.store.families import BLOCK, FOREVER, key
from serving.store.packing import KIND_CODE, NO_ID, VISIBILITY_CODE, Document, latest_records, pack, unpack_records

VIEW = "view:"
"""Begins the stream's event ids of views."""


def live_events(deployment: Deployment, events: Sequence[Event]) -> tuple[dict[str, LiveEvent], dict[str, int]]:
    """(stream's event id -> live event, client's event id -> id of the post it makes).

    `ApiError` 404 for a user or post that is not there, 403 for deleting somebody else's post, 422 for what cannot be;
    the sentence names the event.
    """
    found = _Lookups(deployment, events)
    made: dict[str, LiveEvent] = {}
    posts: dict[str, int] = {}
    for event in events:
        live = _live(event, found, deployment)
        if live.kind == "post":
            posts[event.event_id] = live.post_id
        name = f"{event.user_id}:{event.event_id}"
        if isinstance(event, ActionEvent) and live.request_id != NO_ID:
            # Whoever acts on a post has looked at it: a view, once per place in a feed however many acts follow.
            view = f"{VIEW}{event.user_id}:{live.request_id}:{live.post_id}"
            made[view] = msgspec.structs.replace(live, kind="view", value=0.0)
            name = view if event.kind == "view" else name
        made[name] = live
    return made, posts


class _Lookups:
    """All documents, people and block lists that a batch speaks of, in few round trips."""

    def __init__(self, deployment: Deployment, events: Sequence[Event]):
        self.now = deployment.now
        wanted = {getattr(event, name, None) for event in events for name in ("post_id", "origin_post_id")}
        self.documents = read_documents(deployment.store, sorted(one for one in wanted if one is not None))
        people = {event.user_id for event in events} | {e.target_id for e in events if isinstance(e, BlockEvent)}
        blockers = {event.user_id for event in events if event.kind == "unblock"}
        keys = {
            **{(one, "user"): key("user", one) for one in people},
            **{(one, "blocks"): key("blocks", one) for one in blockers},
        }
        self._values = dict(zip(keys, deployment.store.get_many(list(keys.values()))))

    def person(self, event: Event, user_id: int) -> int:
        if self._values[(user_id, "user")] is None:
            raise ApiError(404, f"event {event.event_id}: there is no user {user_id}")
        return user_id

    def document(self, event: Event, post_id: int) -> Document:
        document = self.documents.get(post_id)
        if document is None or (document.deleted_at <= self.now and event.kind != "delete_post"):
            raise ApiError(404, f"event {event.event_id}: there is no post {post_id}")
        return document

    def open_blocks(self, user_id: int, target_id: int, kind: str) -> tuple[int, ...]:
        rows = latest_records(unpack_records(self._values[(user_id, "blocks")], BLOCK), 0, 1, 2)
        mine = (rows[:, 0] == target_id) & (rows[:, 1] == BLOCK_CODE[kind]) & (rows[:, 3] > self.now)
        return tuple(rows[mine, 2].tolist())


def _live(event: Event, found: _Lookups, deployment: Deployment) -> LiveEvent:
    user_id, at = found.person(event, event.user_id), found.now
    if isinstance(event, ActionEvent):
        document = found.document(event, event.post_id)
        return LiveEvent(event.kind, user_id, at, document.post_id, document.author_id, document.topic,
                         NO_ID if event.request_id is None else event.request_id, event.value or 0.0)  # fmt: skip
    if isinstance(event, BlockEvent):
        target_id = found.person(event, event.target_id)
        if target_id == user_id:
            raise ApiError(422, f"event {event.event_id}: user {user_id} cannot {event.kind} themselves")
        since = found.open_blocks(user_id, target_id, event.block_kind) if event.kind == "unblock" else ()
        return LiveEvent(event.kind, user_id, at, target_id=target_id, block_kind=event.block_kind, since=since)
    if isinstance(event, DeletePostEvent):
        document = found.document(event, event.post_id)
        if document.author_id != user_id:
            raise ApiError(403, f"event {event.event_id}: post {event.post_id} is not user {user_id}'s")
        return LiveEvent(
            event.kind, user_id, at, document.post_id, user_id, document.topic, document=ended(document, at)
        )
    document = _new_document(event, found, deployment)
    return LiveEvent("post", user_id, at, document.post_id, user_id, document.topic, document=pack(document))


def _new_document(event: PostEvent, found: _Lookups, deployment: Deployment) -> Document:
    origin = found.document(event, event.origin_post_id) if event.origin_post_id is not None else None
    topic = event.topic if event.topic is not None else origin.topic if origin is not None else None
    if topic is None or (deployment.topics and topic not in deployment.topics):
        raise ApiError(422, f"event {event.event_id}: a post wants a known topic, which {topic} is not")
    if origin is None and not event.text.strip():
        raise ApiError(422, f"event {event.event_id}: a post without text shares nothing and says nothing")
    if event.visibility == "list" and not event.audience:
        raise ApiError(422, f"event {event.event_id}: a post for a list wants an audience")
    kind = "text" if origin is None else "quote" if event.text.strip() else "share"
    assert kind in POST_KINDS
    return Document(
        post_id=post_id_of(event.user_id, event.event_id), author_id=event.user_id,
        chain=((origin.post_id, origin.author_id), *origin.chain) if origin is not None else (),
        created_at=found.now, known_at=found.now, deleted_at=FOREVER, kind=KIND_CODE[kind], topic=topic,
        visibility=VISIBILITY_CODE[event.visibility], subject_id=origin.subject_id if origin is not None else NO_ID,
        audience=tuple(event.audience), text=event.text, embedding=origin.embedding if origin is not None else b"",
    )  # fmt: skip


def post_id_of(user_id: int, event_id: str) -> int:
    """The id of the post that an event makes: the same for the same event, so that sending it twice makes one post.

    52 bits of a hash above 2 ** 52: below 2 ** 53, which every client's numbers can hold, and above ids that count up.
    """
    digest = hashlib.sha256(f"{user_id}:{event_id}".encode()).digest()
    return 2**52 | (int.from_bytes(digest[:8], "big") & (2**52 - 1))
