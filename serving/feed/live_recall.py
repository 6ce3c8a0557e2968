"""Recall that follows live events: one lock around the runtime, a new post found and a deleted one gone at once."""

import threading
from collections.abc import Mapping

import numpy as np

from contracts.served import NO_ID, Document, LiveEvent
from contracts.tables import POST_KINDS, VISIBILITIES
from recall.posts import Ranked
from recall.runtime import RecallRuntime
from recall.settings import RecallSettings
from recall.vector import NewPost
from serving.store.packing import unpack_document


class LiveRecall:
    """The methods of `RecallRuntime` that sources call, and `follow` for what happens; safe between threads."""

    def __init__(self, runtime: RecallRuntime):
        self._runtime, self._lock = runtime, threading.Lock()

    @property
    def settings(self) -> RecallSettings:
        """The recall settings of the artifact."""
        return self._runtime.settings

    def channels(self, user_id: int) -> tuple[np.ndarray, np.ndarray]:
        """As `RecallRuntime.channels`."""
        return self._runtime.channels(user_id)

    def search(self, user_id: int, now: int, n: int) -> Ranked:
        """As `RecallRuntime.search`."""
        with self._lock:
            return self._runtime.search(user_id, now, n)

    def popular(self, user_id: int, now: int, n: int, city: str | None = None,
                taste_share: Mapping[int, float] | None = None) -> Ranked:  # fmt: skip
        """As `RecallRuntime.popular`."""
        with self._lock:
            return self._runtime.popular(user_id, now, n, city, taste_share)

    def follow(self, event: LiveEvent, city: str | None) -> None:
        """Takes one live event in; `city` is that of who acted, None where unknown."""
        with self._lock:
            if event.kind == "post":
                self._runtime.add_posts([as_new_post(unpack_document(event.document))])
            elif event.kind == "delete_post":
                self._runtime.remove_post(event.post_id)
            else:
                self._runtime.record(event.post_id, event.kind, event.at, city)


def as_new_post(document: Document) -> NewPost:
    """What recall wants to know of a post."""
    return NewPost(
        post_id=document.post_id, author_id=document.author_id, subject_id=document.subject_id,
        root_post_id=document.chain[-1][0] if document.chain else NO_ID, created_at=document.created_at,
        topic=document.topic, kind=POST_KINDS[document.kind], visibility=VISIBILITIES[document.visibility],
        embedding=np.frombuffer(document.embedding, "<f4").tolist() if document.embedding else None,
    )  # fmt: skip
