"""Serving state as of a moment, built from the lake and the feature states: for Redis and for memory by the same code."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import to_datetime
from contracts.errors import BadInput
from contracts.features import FAMILIES
from contracts.lake import Lake, check_made_of
from contracts.served import FOREVER, Document
from contracts.states import STATES
from contracts.tables import ACTIONS, BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS, SUBJECTS, TABLES, TOPICS
from contracts.tasks import ENGAGEMENTS
from contracts.workspace import Workspace
from serving.changes import BLOCK_CODE, INCOMING
from serving.documents import read_documents, read_profiles
from serving.features.updater import ENGAGEMENT_CODE, HIDING
from serving.store.families import key
from serving.store.memory import MemoryStore
from serving.store.packing import FRIEND_CODE, Named, group_records, pack, pack_states

Items = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Build:
    """What to build from: `as_of` in UTC microseconds; `live_us`, how long a post stays a candidate."""

    workspace: Workspace
    as_of: int
    live_us: int


def snapshot(workspace: Workspace, as_of: int) -> MemoryStore:
    """The state in memory as known at `as_of` (UTC us), a moment that `feedloop features` has built states for.

    Rows known at `as_of` or later are absent; `serving.log_changes.LogChanges` applies them as they become known.
    """
    store = MemoryStore(version=f"memory-{as_of}")
    for _, items in state_items(Build(workspace, as_of, workspace.dataset().live_us)):
        store.set_many(items)
    return store


def state_items(build: Build) -> Iterator[tuple[str, Items]]:
    """(key family, its keys and values), family by family."""
    yield from _people(build)
    yield from _posts(build)
    yield from _history(build)
    for name in FAMILIES:
        yield name, _states(build, name)
    yield from _names(build)


def _people(build: Build) -> Iterator[tuple[str, Items]]:
    lake = build.workspace.lake
    profiles = {profile.user_id: profile for known_at, profile in read_profiles(lake) if known_at < build.as_of}
    yield "user", [(key("user", user_id), pack(profile)) for user_id, profile in profiles.items()]
    yield "list", [(key("list", "users"), np.array(sorted(profiles), "<i8").tobytes())]
    edges = known(lake.read(FRIENDSHIPS), build.as_of)
    rows = edge_rows(edges, "friend_id", FRIEND_CODE)
    yield "friends", _grouped("friends", rows[:, 0], rows[:, 1:])
    yield "friends_of", _grouped("friends_of", rows[:, 1], rows[:, [0, 2, 3, 4]])
    blocks: dict[bytes, bytes] = {key("blocks", user_id): b"" for user_id in profiles}
    if lake.exists(BLOCKS):
        rows = edge_rows(known(lake.read(BLOCKS), build.as_of), "target_id", BLOCK_CODE)
        other = rows[:, [1, 0, 2, 3, 4]] + np.array([0, 0, INCOMING, 0, 0])
        rows = np.concatenate([rows, other])
        blocks.update(_grouped("blocks", rows[:, 0], rows[:, 1:]))
    yield "blocks", list(blocks.items())


def _posts(build: Build) -> Iterator[tuple[str, Items]]:
    documents = [document for document in read_documents(build.workspace.lake) if document.known_at < build.as_of]
    yield "doc", [(key("doc", document.post_id), pack(document)) for document in documents]
    live = [document for document in documents if document.created_at > build.as_of - build.live_us]
    rows = _post_rows(live)
    yield "by_author", _grouped("by_author", rows[:, 1], rows)
    rows = _post_rows([document for document in live if document.channel_id != document.author_id])
    yield "by_channel", _grouped("by_channel", rows[:, 2], rows)


def _history(build: Build) -> Iterator[tuple[str, Items]]:
    lake = build.workspace.lake
    columns = ["user_id", "post_id", "kind", "occurred_at", "known_at"]
    actions = known(lake.read(ACTIONS, columns), build.as_of).sort_by([("known_at", "ascending")])
    engaged = actions.filter(pc.is_in(actions["kind"], pa.array(ENGAGEMENTS)))
    code_M = np.array([ENGAGEMENT_CODE[kind] for kind in engaged["kind"].to_pylist()], np.int64)
    rows = np.stack([ints(engaged, "user_id"), code_M, ints(engaged, "occurred_at")], axis=1)
    yield "engagers", _grouped("engagers", ints(engaged, "post_id"), rows)
    hidden = actions.filter(pc.is_in(actions["kind"], pa.array(HIDING)))
    rows = np.stack([ints(hidden, "post_id"), ints(hidden, "occurred_at")], axis=1)
    yield "hidden", _grouped("hidden", ints(hidden, "user_id"), rows)
    shown = shown_posts(build.workspace.lake, build.as_of - build.live_us, build.as_of)
    shown = known(shown, build.as_of)
    shown = shown.sort_by([("known_at", "ascending"), ("shown_at", "ascending")])
    rows = np.stack([ints(shown, "post_id"), ints(shown, "shown_at")], axis=1)
    yield "seen", _grouped("seen", ints(shown, "user_id"), rows)


def _states(build: Build, name: str) -> Items:
    family, spec = FAMILIES[name], STATES[name]
    if build.workspace.features.exists(spec):
        check_made_of(build.workspace.features.manifest(spec), build.workspace.lake, TABLES.values(), "features")
    states = build.workspace.features.read(spec, start=build.as_of, end=build.as_of + 1)
    # An author's posts count, so no author state although there are posts means that nothing was built for this moment.
    if (
        name == "author"
        and not states.num_rows
        and known(build.workspace.lake.read(POSTS, ["known_at"]), build.as_of).num_rows
    ):
        raise BadInput(
            f"no feature state as of {to_datetime(build.as_of)} in {build.workspace.features.root}: "
            "run `feedloop features` after the log last changed"
        )
    values_NS = np.asarray(states["values"].combine_chunks().values, np.float64).reshape(-1, family.width)
    ids = zip(*(states[column].to_pylist() for column in family.key))
    return [(key(name, *one), value) for one, value in zip(ids, pack_states(build.as_of, values_NS))]


def _names(build: Build) -> Iterator[tuple[str, Items]]:
    lake = build.workspace.lake
    topics = known(lake.read(TOPICS), build.as_of) if lake.exists(TOPICS) else TOPICS.schema.empty_table()
    names = dict(zip(topics["topic"].to_pylist(), topics["name"].to_pylist()))
    yield "list", [(key("list", "topics"), pack(names))]
    subjects = known(lake.read(SUBJECTS), build.as_of) if lake.exists(SUBJECTS) else SUBJECTS.schema.empty_table()
    yield (
        "subject",
        [
            (
                key("subject", row["subject_id"]),
                pack(Named(row["subject_id"], row["name"], row["kind"], row["url"] or "")),
            )
            for row in subjects.to_pylist()
        ],
    )


def known(table: pa.Table, as_of: int) -> pa.Table:
    """The rows that had reached the lake before `as_of`."""
    return table.filter(pc.less(table["known_at"], as_of))


def shown_posts(lake: Lake, start: int, end: int) -> pa.Table:
    """Impressions shown in [start, end) (UTC us). Derived ones are left out: they prove not that anybody saw anything."""
    table = lake.read(IMPRESSIONS, ["user_id", "post_id", "policy", "shown_at", "known_at"], start=start, end=end)
    return table.filter(pc.invert(pc.starts_with(table["policy"], "derived")))


def ints(table: pa.Table, column: str) -> np.ndarray:
    """An int64 column (N,); FOREVER where it is null."""
    return np.asarray(pc.fill_null(table[column], FOREVER).to_numpy(), np.int64)


def edge_rows(table: pa.Table, other: str, codes: dict[str, int]) -> np.ndarray:
    """Rows (N, 5): user, other, code of the kind, since, ended_at; ordered by known_at."""
    table = table.sort_by(
        [("known_at", "ascending"), ("since", "ascending"), ("user_id", "ascending"), (other, "ascending")]
    )
    code_N = np.array([codes[kind] for kind in table["kind"].to_pylist()], np.int64)
    return np.stack(
        [ints(table, "user_id"), ints(table, other), code_N, ints(table, "since"), ints(table, "ended_at")], axis=1
    )


def _post_rows(documents: list[Document]) -> np.ndarray:
    rows = [(one.post_id, one.author_id, one.channel_id, one.group_id, one.created_at) for one in documents]
    return np.array(rows, np.int64).reshape(-1, 5)


def _grouped(family: str, ids_R: np.ndarray, rows_RW: np.ndarray) -> Items:
    return [(key(family, one), value) for one, value in group_records(ids_R, rows_RW)]
