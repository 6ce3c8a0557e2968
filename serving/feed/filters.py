"""Who may see what: seen, own, blocked, hidden, deleted, too old, not visible; over the whole chain of a share or quote.

Everything here fails closed: what could not be looked up is not shown. Shapes: N candidates.
"""

import numpy as np

from contracts.served import Document
from contracts.tables import VISIBILITIES
from serving.changes import BLOCK_CODE, INCOMING
from serving.features.hydrate import active_friends
from serving.feed.candidates import Candidates, Run, Viewer
from serving.store.packing import FRIEND_CODE, latest_records

_PUBLIC, _FRIENDS, _LIST, _PRIVATE = (VISIBILITIES.index(name) for name in ("public", "friends", "list", "private"))
_HIDES_FROM_VIEWER = (
    BLOCK_CODE["block"], BLOCK_CODE["hide_their_posts"],
    BLOCK_CODE["block"] + INCOMING, BLOCK_CODE["deny_my_posts"] + INCOMING,
)  # fmt: skip


class Found:
    """Leaves out posts without a document, and shares of something that has none."""

    name = "found"
    reads = ("document", "chain")

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        return _each(candidates, lambda document, chain: document is not None and None not in chain)


class NotTooOld:
    """Leaves out posts older than a post's life, and posts from the future."""

    name = "too_old"
    reads = ("created_at",)

    def __init__(self, live_us: int):
        self.live_us = live_us

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        created_at_N, now = candidates["created_at"], run.query.now
        return (created_at_N > now - self.live_us) & (created_at_N <= now)


class NotOwn:
    """Leaves out the viewer's own posts."""

    name = "own"
    reads = ("author_id",)

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        return candidates["author_id"] != run.query.user_id


class NotSeen:
    """Leaves out posts that the viewer was shown before."""

    name = "seen"
    reads = ("post_id",)

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        return ~np.isin(candidates["post_id"], run.viewer.seen_M)


class NotHidden:
    """Leaves out posts that the viewer hid or reported, and all that passes them on."""

    name = "hidden"
    reads = ("document", "chain")

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        hidden = set(run.viewer.hidden_M.tolist())
        return _each(candidates, lambda document, chain: not any(one.post_id in hidden for one in (document, *chain)))


class Visible:
    """Leaves out what is deleted, blocked in either direction or not meant for the viewer, anywhere along the chain."""

    name = "visible"
    reads = ("document", "chain")

    def keep(self, run: Run, candidates: Candidates) -> np.ndarray:
        if run.viewer.blocks_RW is None:
            return np.zeros(len(candidates), bool)
        now, user_id = run.query.now, run.query.user_id
        blocked = blocked_authors(run.viewer.blocks_RW, now)
        circle = authors_who_befriended(run.viewer, now)
        return _each(
            candidates,
            lambda document, chain: all(may_see(one, user_id, now, blocked, circle) for one in (document, *chain)),
        )


def may_see(document: Document | None, user_id: int, now: int, blocked: set[int], circle: set[int]) -> bool:
    """Whether one post, without what it passes on, may be shown to `user_id` at `now` (UTC us).

    `blocked`: authors whose posts are out of the question; `circle`: authors who have the viewer as a friend.
    """
    if document is None or document.deleted_at <= now or document.known_at >= now:
        return False
    if document.author_id == user_id:
        return True
    if document.author_id in blocked:
        return False
    if document.visibility == _PUBLIC:
        return True
    if document.visibility == _FRIENDS:
        return document.author_id in circle
    return document.visibility == _LIST and user_id in document.audience


def blocked_authors(blocks_RW: np.ndarray, now: int) -> set[int]:
    """Authors whose posts the viewer may not see: blocked by either, their posts hidden, or denied by them."""
    blocks_RW = latest_records(blocks_RW, 0, 1, 2)
    active_R = (blocks_RW[:, 3] > now) & np.isin(blocks_RW[:, 1], _HIDES_FROM_VIEWER)
    return set(blocks_RW[active_R, 0].tolist())


def authors_who_befriended(viewer: Viewer, now: int) -> set[int]:
    """Users whose friend the viewer is. Following somebody opens nothing, being followed opens nothing."""
    rows_RW = active_friends(viewer.friends_of_RW, now)
    return set(rows_RW[rows_RW[:, 1] != FRIEND_CODE["follow"], 0].tolist())


def _each(candidates: Candidates, test) -> np.ndarray:
    """Mask (N,) of a test of each candidate's (document, documents of its chain); False where there is no document."""
    pairs = zip(candidates["document"], candidates["chain"])
    return np.fromiter(
        (document is not None and test(document, chain) for document, chain in pairs), bool, len(candidates)
    )
