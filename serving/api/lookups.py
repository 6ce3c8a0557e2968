"""All that a batch of events speaks of, read in few round trips and kept current with what its own events change."""

from collections.abc import Iterable, Sequence

from contracts.served import Document, LiveEvent
from serving.api.deployment import Deployment
from serving.api.errors import ApiError
from serving.api.models import BlockEvent, Event, PostEvent
from serving.changes import BLOCK_CODE
from serving.feed.candidates import Viewer
from serving.feed.filters import authors_who_befriended, blocked_authors, may_see
from serving.feed.hydrators import read_documents
from serving.live_events import mutations_of
from serving.store.families import BLOCK, FRIEND, key
from serving.store.packing import latest_records, unpack_document, unpack_records
from serving.store.protocol import Append


class Lookups:
    """Documents, people, block lists and friendships as of the last event that was taken. `begun`: the batch's moment (UTC us)."""

    def __init__(self, deployment: Deployment, events: Sequence[Event], made_ids: Iterable[int]):
        """`made_ids`: ids of the posts that the batch makes, which are there already when it is sent again."""
        self.begun, self._live_us = deployment.now, deployment.meta.live_us
        named = {getattr(event, name, None) for event in events for name in ("post_id", "origin_post_id")}
        wanted = {one for one in named if one is not None} | set(made_ids)
        self.documents = read_documents(deployment.store, sorted(wanted))
        actors = {event.user_id for event in events}
        people = actors | {event.target_id for event in events if isinstance(event, BlockEvent)}
        keys = [
            *(key("user", one) for one in people),
            *(key(family, one) for family in ("blocks", "friends_of") for one in actors),
        ]
        self._values = dict(zip(keys, deployment.store.get_many(keys)))

    def take(self, event: LiveEvent) -> None:
        """Brings an event of the batch into force for those after it."""
        if event.document:
            self.documents[event.post_id] = unpack_document(event.document)
        if event.kind in ("block", "unblock"):
            for change in mutations_of(event, self._live_us):
                assert isinstance(change, Append)
                before = self._values.get(change.key)
                if before is not None:
                    self._values[change.key] = before + change.record

    def person(self, event: Event, user_id: int) -> int:
        """`user_id`, which is somebody's."""
        if self._values[key("user", user_id)] is None:
            raise ApiError(404, f"event {event.event_id}: there is no user {user_id}")
        return user_id

    def document(self, event: Event, post_id: int, at: int) -> Document:
        """The post, if the one who acts may see it at `at` (UTC us); if not, the answer is as if it were not there.

        Passing on wants the whole chain visible; acting on one's own post does not, and deleting it is always allowed.
        """
        document = self.documents.get(post_id)
        if document is not None and not isinstance(event, PostEvent) and document.author_id == event.user_id:
            visible = event.kind == "delete_post" or document.deleted_at > at
        else:
            visible = self._sees(event.user_id, document, at)
        if document is None or not visible:
            raise ApiError(404, f"event {event.event_id}: there is no post {post_id}")
        return document

    def _sees(self, user_id: int, document: Document | None, at: int) -> bool:
        blocks = self._values[key("blocks", user_id)]
        if document is None or blocks is None:
            return False
        blocked = blocked_authors(unpack_records(blocks, BLOCK), at)
        befriended = unpack_records(self._values[key("friends_of", user_id)], FRIEND)
        circle = authors_who_befriended(Viewer(friends_of_RW=befriended), at)
        chain = [document, *(self.documents.get(post_id) for post_id, _ in document.chain)]
        return all(may_see(one, user_id, at, blocked, circle) for one in chain)

    def open_blocks(self, user_id: int, target_id: int, kind: str, at: int) -> tuple[int, ...]:
        """When the user's blocks of that kind began that are still in force at `at` (UTC us)."""
        rows = latest_records(unpack_records(self._values[key("blocks", user_id)], BLOCK), 0, 1, 2)
        mine = (rows[:, 0] == target_id) & (rows[:, 1] == BLOCK_CODE[kind]) & (rows[:, 3] > at)
        return tuple(rows[mine, 2].tolist())
