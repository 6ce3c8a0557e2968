"""Walks the log in the order in which its rows became known, applying each to a store: replay's way through time."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.events import EVENT_SCHEMA, event_stream
from contracts.tables import ACTIONS, BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS
from contracts.workspace import Workspace
from serving.changes import block_mutations, friendship_mutations, post_mutations, seen_mutation, user_mutations
from serving.documents import read_documents, read_profiles
from serving.features.updater import Event, event_mutations
from serving.snapshot import ints, shown_posts
from serving.store.memory import MemoryStore
from serving.store.protocol import Mutation


@dataclass
class _Lane:
    """Rows of one kind, ordered by known_at (N,), and what a row changes."""

    known_at_N: np.ndarray
    mutations: Callable[[int], Iterable[Mutation]]
    next_row: int = 0


class LogChanges:
    """Everything of a workspace's log with start <= known_at < end (UTC us), ready to be applied in order.

    `live_us`: how long a post stays a candidate, where the log is still being written and does not say. `parts`: people
    and what they write ("given"), what happened in feeds and to posts ("happened"), or both.
    """

    def __init__(self, workspace: Workspace, start: int, end: int, *, live_us: int | None = None,
                 parts: Collection[str] = ("given", "happened")):  # fmt: skip
        self.workspace, self.start, self.end = workspace, start, end
        self.live_us = workspace.dataset().live_us if live_us is None else live_us
        self._lanes: list[_Lane] = []
        if "given" in parts:
            self._lanes += [self._users(), self._edges(FRIENDSHIPS, "friend_id", friendship_mutations), self._posts()]
            if workspace.lake.exists(BLOCKS):
                self._lanes.append(self._edges(BLOCKS, "target_id", block_mutations))
        if "happened" in parts:
            self._lanes += [self._events(), self._shown()]

    def advance(self, store: MemoryStore, until: int) -> int:
        """Applies every row with known_at < `until` that was not applied yet; returns how many rows."""
        applied = 0
        for lane in self._lanes:
            stop = int(np.searchsorted(lane.known_at_N, until, side="left"))
            for row in range(lane.next_row, stop):
                store.apply(lane.mutations(row))
            applied += max(0, stop - lane.next_row)
            lane.next_row = max(lane.next_row, stop)
        return applied

    def _within(self, table: pa.Table, *order: str) -> pa.Table:
        inside = pc.and_(pc.greater_equal(table["known_at"], self.start), pc.less(table["known_at"], self.end))
        return table.filter(inside).sort_by([(name, "ascending") for name in ("known_at", *order)])

    def _users(self) -> _Lane:
        rows = [(at, profile) for at, profile in read_profiles(self.workspace.lake) if self.start <= at < self.end]
        return _Lane(np.array([at for at, _ in rows], np.int64), lambda row: user_mutations(rows[row][1]))

    def _edges(self, spec, other: str, mutations: Callable[..., Iterator[Mutation]]) -> _Lane:
        table = self._within(self.workspace.lake.read(spec), "since", "user_id", other)
        rows = list(
            zip(
                *(table[name].to_pylist() for name in ("user_id", other, "kind", "since")),
                ints(table, "ended_at").tolist(),
            )
        )
        return _Lane(ints(table, "known_at"), lambda row: mutations(*rows[row]))

    def _posts(self) -> _Lane:
        documents = [one for one in read_documents(self.workspace.lake) if self.start <= one.known_at < self.end]
        known_at_N = np.array([one.known_at for one in documents], np.int64)
        return _Lane(known_at_N, lambda row: post_mutations(documents[row], self.live_us))

    def _events(self) -> _Lane:
        lake = self.workspace.lake
        impressions = ["user_id", "author_id", "post_id", "viewed_ms", "shown_at", "known_at"]
        actions = ["kind", "user_id", "author_id", "post_id", "occurred_at", "known_at"]
        posts = lake.read(POSTS, ["post_id", "author_id", "topic", "created_at", "known_at"])
        stream = event_stream(
            posts, self._within(lake.read(IMPRESSIONS, impressions)), self._within(lake.read(ACTIONS, actions))
        )
        stream = self._within(stream, "occurred_at", "user_id", "post_id", "kind")
        rows = list(zip(*(stream[name].to_pylist() for name in EVENT_SCHEMA.names)))
        return _Lane(ints(stream, "known_at"), lambda row: event_mutations(Event(*rows[row])))

    def _shown(self) -> _Lane:
        shown = shown_posts(self.workspace.lake, self.start - self.live_us, self.end)
        table = self._within(shown, "shown_at")
        rows = [
            seen_mutation(user_id, post_id, shown_at, self.live_us)
            for user_id, post_id, shown_at in zip(
                *(ints(table, name).tolist() for name in ("user_id", "post_id", "shown_at"))
            )
        ]
        return _Lane(ints(table, "known_at"), lambda row: rows[row : row + 1])
