"""Events of clients into live events: looks up what they speak of, and refuses what cannot be, before anything is stored."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from contracts.served import FOREVER, NO_ID, Document, LiveEvent
from contracts.tables import POST_KINDS
from serving.api.deployment import Deployment
from serving.api.errors import ApiError
from serving.api.lookups import Lookups
from serving.api.models import ActionEvent, BlockEvent, DeletePostEvent, Event, PostEvent
from serving.live_events import ended
from serving.store.packing import KIND_CODE, VISIBILITY_CODE, pack

VIEW = "view:"
"""Begins the stream's event ids of views."""


@dataclass
class Batch:
    """A batch that may be committed. `live`: the stream's event id -> live event, in order; `claims`: per event of the
    client the stream's id that it counts under, None where an earlier event has its id; `posts`: client's event id ->
    id of the post that it makes or made."""

    live: dict[str, LiveEvent] = field(default_factory=dict)
    claims: list[str | None] = field(default_factory=list)
    posts: dict[str, int] = field(default_factory=dict)


def live_events(deployment: Deployment, events: Sequence[Event]) -> Batch:
    """The batch as live events, each a microsecond after the one before and judged with all before it in force.

    What was counted before is not judged again, so that a batch whose answer was lost can be sent again. `ApiError` 404
    for a user or post that is not there, or a post that the one who acts may not see; 403 for deleting somebody else's
    post, 422 for what cannot be; the sentence names the event.
    """
    names = [_name(event) for event in events]
    made_ids = [post_id_of(event.user_id, event.event_id) for event in events if isinstance(event, PostEvent)]
    found = Lookups(deployment, events, made_ids)
    counted = deployment.events.counted(names)
    batch = Batch()
    ids: set[tuple[int, str]] = set()
    for place, (event, name) in enumerate(zip(events, names)):
        repeated = name in counted or (event.user_id, event.event_id) in ids or name in batch.claims
        ids.add((event.user_id, event.event_id))
        batch.claims.append(None if repeated else name)
        if not repeated:
            live = _live(event, found, deployment, found.begun + place)
            found.take(live)
            if isinstance(event, ActionEvent) and live.request_id != NO_ID:
                # Whoever acts on a post has looked at it: a view, once per place in a feed however many acts follow.
                batch.live.setdefault(_view(event), msgspec.structs.replace(live, kind="view", value=0.0))
            batch.live[name] = live
        if isinstance(event, PostEvent) and (post_id := post_id_of(event.user_id, event.event_id)) in found.documents:
            batch.posts[event.event_id] = post_id
    return batch


def _name(event: Event) -> str:
    """The stream's id of an event: its own, or that of the one look at a post's place in a feed."""
    if isinstance(event, ActionEvent) and event.kind == "view" and event.request_id is not None:
        return _view(event)
    return f"{event.user_id}:{event.event_id}"


def _view(event: ActionEvent) -> str:
    return f"{VIEW}{event.user_id}:{event.request_id}:{event.post_id}"


def _live(event: Event, found: Lookups, deployment: Deployment, at: int) -> LiveEvent:
    user_id = found.person(event, event.user_id)
    if isinstance(event, ActionEvent):
        document = found.document(event, event.post_id, at)
        return LiveEvent(event.kind, user_id, at, document.post_id, document.author_id, document.topic,
                         NO_ID if event.request_id is None else event.request_id, event.value or 0.0)  # fmt: skip
    if isinstance(event, BlockEvent):
        target_id = found.person(event, event.target_id)
        if target_id == user_id:
            raise ApiError(422, f"event {event.event_id}: user {user_id} cannot {event.kind} themselves")
        since = found.open_blocks(user_id, target_id, event.block_kind, at) if event.kind == "unblock" else ()
        return LiveEvent(event.kind, user_id, at, target_id=target_id, block_kind=event.block_kind, since=since)
    if isinstance(event, DeletePostEvent):
        document = found.document(event, event.post_id, at)
        if document.author_id != user_id:
            raise ApiError(403, f"event {event.event_id}: post {event.post_id} is not user {user_id}'s")
        return LiveEvent(
            event.kind, user_id, at, document.post_id, user_id, document.topic, document=ended(document, at)
        )
    document = _new_document(event, found, deployment, at)
    return LiveEvent("post", user_id, at, document.post_id, user_id, document.topic, document=pack(document))


def _new_document(event: PostEvent, found: Lookups, deployment: Deployment, at: int) -> Document:
    origin = found.document(event, event.origin_post_id, at) if event.origin_post_id is not None else None
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
        created_at=at, known_at=at, deleted_at=FOREVER, kind=KIND_CODE[kind], topic=topic,
        visibility=VISIBILITY_CODE[event.visibility], subject_id=origin.subject_id if origin is not None else NO_ID,
        audience=tuple(event.audience), text=event.text, embedding=origin.embedding if origin is not None else b"",
    )  # fmt: skip


def post_id_of(user_id: int, event_id: str) -> int:
    """The id of the post that an event makes: the same for the same event, so that sending it twice makes one post.

    52 bits of a hash above 2 ** 52: below 2 ** 53, which every client's numbers can hold, and above ids that count up.
    """
    digest = hashlib.sha256(f"{user_id}:{event_id}".encode()).digest()
    return 2**52 | (int.from_bytes(digest[:8], "big") & (2**52 - 1))
