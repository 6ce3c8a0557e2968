"""The log as recall reads it: posts, positives, ties and what was seen, each as columns with the moment it was known.

Shapes: N posts (ordered by created_at, post_id), L links of a share chain, M positives (ordered by known_at).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import BadInput
from contracts.lake import Lake
from contracts.tables import ACTIONS, BLOCKS, FRIENDSHIPS, IMPRESSIONS, POSTS, REQUESTS, USERS, VISIBILITIES
from contracts.tasks import CONTACTS
from recall.popular import ENGAGEMENT_WEIGHTS, POSTING_WEIGHT
from recall.posts import NO_ID, PostColumns, channel_ids, group_ids
from recall.vector import content_matrix, kind_codes

NEVER = np.iinfo(np.int64).max
PUBLIC, FRIENDS, LIST, PRIVATE = range(4)
assert VISIBILITIES == ("public", "friends", "list", "private")


@dataclass(frozen=True)
class Positives:
    """What people liked: acts on posts, and their own posts about a subject. All (M,), ordered by known_at.

    `kind_M`: the action's kind, "post" for an own post. `post_M`: row of the post. `weight_M`: the act's worth.
    """

    user_id_M: np.ndarray
    post_M: np.ndarray
    kind_M: np.ndarray
    weight_M: np.ndarray
    occurred_at_M: np.ndarray
    known_at_M: np.ndarray

    def take(self, index: np.ndarray | slice) -> "Positives":
        """Those rows, in that order."""
        return Positives(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def before(self, as_of: int) -> "Positives":
        """Those known before `as_of`."""
        return self.take(slice(0, int(np.searchsorted(self.known_at_M, as_of))))


@dataclass(frozen=True)
class Contacts:
    """Acts of one person on another's posts (`contracts.tasks.CONTACTS`), all (C,), ordered by `user_id_C`."""

    user_id_C: np.ndarray
    other_id_C: np.ndarray
    occurred_at_C: np.ndarray
    known_at_C: np.ndarray

    def of(self, user_id: int, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Others and moments of the contacts of `user_id` known before `at`."""
        rows = slice(*np.searchsorted(self.user_id_C, [user_id, user_id + 1]))
        known = self.known_at_C[rows] < at
        return self.other_id_C[rows][known], self.occurred_at_C[rows][known]


@dataclass(frozen=True)
class Edges:
    """Directed dated relations (user -> other), ordered by user: friendships or blocks; `kind` as in the table."""

    user_id_E: np.ndarray
    other_id_E: np.ndarray
    kind_E: np.ndarray
    known_at_E: np.ndarray
    ended_at_E: np.ndarray

    def of(self, user_id: int, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Others (F,) and kinds (F,) of the relations of `user_id` active at `at`; an other may come twice."""
        rows = slice(*np.searchsorted(self.user_id_E, [user_id, user_id + 1]))
        active = (self.known_at_E[rows] < at) & (self.ended_at_E[rows] > at)
        return self.other_id_E[rows][active], self.kind_E[rows][active]

    def reversed(self) -> "Edges":
        """The same relations seen from the other side."""
        order_E = np.argsort(self.other_id_E, kind="stable")
        return Edges(self.other_id_E[order_E], self.user_id_E[order_E], self.kind_E[order_E],
                     self.known_at_E[order_E], self.ended_at_E[order_E])  # fmt: skip


@dataclass(frozen=True)
class RecallLog:
    """One log. `chain_NL` holds the rows of a post's origins, nearest first, -1 past the first post of the chain."""

    posts: PostColumns
    known_at_N: np.ndarray
    deleted_at_N: np.ndarray
    subject_id_N: np.ndarray
    root_post_id_N: np.ndarray
    topic_N: np.ndarray
    kind_N: np.ndarray
    visibility_N: np.ndarray
    content_NE: np.ndarray
    chain_NL: np.ndarray
    audience: tuple[np.ndarray, np.ndarray]
    positives: Positives
    contacts: Contacts
    contacts_back: Contacts
    friends: Edges
    friends_back: Edges
    blocks: Edges
    blocks_back: Edges
    seen: tuple[np.ndarray, np.ndarray, np.ndarray]
    request: tuple[np.ndarray, np.ndarray]
    user_id_U: np.ndarray
    registered_known_at_U: np.ndarray
    city_U: np.ndarray
    cities: tuple[str, ...]
    discoveries: bool

    def city_code(self, user_id_M: np.ndarray) -> np.ndarray:
        """Column (M,) of each person's city in `cities`, -1 where unknown."""
        at_M = np.minimum(np.searchsorted(self.user_id_U, user_id_M), len(self.user_id_U) - 1)
        return np.where(self.user_id_U[at_M] == user_id_M, self.city_U[at_M], -1)


def read_log(lake: Lake) -> RecallLog:
    """Everything recall needs of the lake; `BadInput` when there are no posts or nothing anybody liked."""
    table = lake.read(POSTS).sort_by([("created_at", "ascending"), ("post_id", "ascending")])
    if not table.num_rows:
        raise BadInput("the log has no posts, so there is nothing to recall")
    post_id_N, author_id_N = _ints(table["post_id"]), _ints(table["author_id"])
    subject_id_N, origin_id_N = _ints(table["subject_id"], NO_ID), _ints(table["origin_post_id"], NO_ID)
    chain_NL = _chains(post_id_N, origin_id_N)
    root_N = _roots(post_id_N, origin_id_N, chain_NL)
    posts = PostColumns(post_id_N, author_id_N, channel_ids(author_id_N, subject_id_N),
                        group_ids(post_id_N, root_N, subject_id_N), _ints(table["created_at"]))  # fmt: skip
    lengths = pc.list_value_length(table["embedding"]).fill_null(0).to_numpy()
    width = int(lengths.max(initial=0))
    content_NE = (
        content_matrix(table["embedding"].to_pylist(), width) if width else np.zeros((len(posts), 0), np.float32)
    )
    known_at_N = _ints(table["known_at"])
    positives = _positives(lake, posts, known_at_N, subject_id_N)
    if not len(positives.post_M):
        raise BadInput(
            "the log has no click, like, comment or share on a known post, so recall has nothing to learn from"
        )
    friends, blocks = _edges(lake, FRIENDSHIPS, "friend_id"), _edges(lake, BLOCKS, "target_id")
    users = lake.read(USERS, ["user_id", "city", "known_at"]).sort_by("user_id")
    cities = tuple(sorted(set(users["city"].drop_null().to_pylist())))
    city_U = pc.index_in(users["city"], value_set=pa.array(cities, pa.string())).fill_null(-1)
    return RecallLog(
        posts, known_at_N, _ints(table["deleted_at"], NEVER), subject_id_N, root_N,
        _ints(table["topic"]), kind_codes(table["kind"].to_pylist()),
        _ints(pc.index_in(table["visibility"], value_set=pa.array(VISIBILITIES))), content_NE, chain_NL,
        _audience(table), positives, _contacts(lake, "user_id", "author_id"), _contacts(lake, "author_id", "user_id"),
        friends, friends.reversed(), blocks, blocks.reversed(),
        _seen(lake, post_id_N), _requests(lake), _ints(users["user_id"]), _ints(users["known_at"]), _ints(city_U), cities,
        bool((subject_id_N != NO_ID).mean() > 0.5),
    )  # fmt: skip


def rows_of(sorted_or_not_N: np.ndarray, wanted_M: np.ndarray) -> np.ndarray:
    """Row (M,) of each wanted id in a column of unique ids, -1 where absent."""
    order_N = np.argsort(sorted_or_not_N, kind="stable")
    if not len(order_N):
        return np.full(len(wanted_M), -1)
    at_M = np.minimum(np.searchsorted(sorted_or_not_N, wanted_M, sorter=order_N), len(order_N) - 1)
    row_M = order_N[at_M]
    return np.where(sorted_or_not_N[row_M] == wanted_M, row_M, -1)


def _ints(column: pa.ChunkedArray | pa.Array, absent: int | None = None) -> np.ndarray:
    if absent is not None:
        column = column.fill_null(absent)
    return np.asarray(column.to_numpy(), np.int64)


def _chains(post_id_N: np.ndarray, origin_id_N: np.ndarray) -> np.ndarray:
    parent_N = rows_of(post_id_N, origin_id_N)
    parent_N[origin_id_N == NO_ID] = -1
    links: list[np.ndarray] = []
    link_N = parent_N
    while (link_N >= 0).any():
        if len(links) > 64:
            raise BadInput("the log has a chain of shares longer than 64 links, or one that comes back to itself")
        links.append(link_N)
        link_N = np.where(link_N >= 0, parent_N[np.maximum(link_N, 0)], -1)
    return np.stack(links, axis=1) if links else np.full((len(post_id_N), 0), -1)


def _roots(post_id_N: np.ndarray, origin_id_N: np.ndarray, chain_NL: np.ndarray) -> np.ndarray:
    root_row_N = np.arange(len(post_id_N))
    for level in range(chain_NL.shape[1]):
        root_row_N = np.where(chain_NL[:, level] >= 0, chain_NL[:, level], root_row_N)
    beyond_N = origin_id_N[root_row_N]
    root_N = np.where(beyond_N == NO_ID, post_id_N[root_row_N], beyond_N)
    return np.where(root_N == post_id_N, NO_ID, root_N)


def _positives(lake: Lake, posts: PostColumns, known_at_N: np.ndarray, subject_id_N: np.ndarray) -> Positives:
    table = lake.read(ACTIONS, ["user_id", "post_id", "kind", "occurred_at", "known_at"])
    table = table.filter(pc.is_in(table["kind"], value_set=pa.array(sorted(ENGAGEMENT_WEIGHTS))))
    row_M = rows_of(posts.post_id_N, _ints(table["post_id"]))
    table, row_M = table.filter(pa.array(row_M >= 0)), row_M[row_M >= 0]
    kind_M = table["kind"].to_numpy(zero_copy_only=False).astype("U8")
    weight_M = np.zeros(len(kind_M))
    for kind, worth in ENGAGEMENT_WEIGHTS.items():
        weight_M[kind_M == kind] = worth
    own_N = np.flatnonzero(subject_id_N != NO_ID)
    user_id = np.r_[_ints(table["user_id"]), posts.author_id_N[own_N]]
    occurred_at = np.r_[_ints(table["occurred_at"]), posts.created_at_N[own_N]]
    known_at = np.r_[_ints(table["known_at"]), known_at_N[own_N]]
    found = Positives(user_id, np.r_[row_M, own_N], np.r_[kind_M, np.full(len(own_N), "post", "U8")],
                      np.r_[weight_M, np.full(len(own_N), POSTING_WEIGHT)], occurred_at, known_at)  # fmt: skip
    return found.take(np.lexsort((found.kind_M, found.post_M, found.user_id_M, occurred_at, known_at)))


def _contacts(lake: Lake, user: str, other: str) -> Contacts:
    table = lake.read(ACTIONS, ["user_id", "author_id", "kind", "occurred_at", "known_at"])
    table = table.filter(pc.is_in(table["kind"], value_set=pa.array(CONTACTS)))
    order_C = np.argsort(_ints(table[user]), kind="stable")
    return Contacts(*(_ints(table[name])[order_C] for name in (user, other, "occurred_at", "known_at")))


def _edges(lake: Lake, spec, other: str) -> Edges:
    if not lake.exists(spec):
        none = np.zeros(0, np.int64)
        return Edges(none, none, np.zeros(0, "U16"), none, none)
    table = lake.read(spec, ["user_id", other, "kind", "known_at", "ended_at"]).sort_by(
        [("user_id", "ascending"), (other, "ascending"), ("known_at", "ascending"), ("kind", "ascending")]
    )
    kind_E = table["kind"].to_numpy(zero_copy_only=False).astype("U16")
    return Edges(
        _ints(table["user_id"]), _ints(table[other]), kind_E, _ints(table["known_at"]), _ints(table["ended_at"], NEVER)
    )


def _audience(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    row_A = pc.list_parent_indices(table["audience"].combine_chunks())
    member_A = pc.list_flatten(table["audience"].combine_chunks())
    return _ints(row_A), _ints(member_A)


def _seen(lake: Lake, post_id_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(user_id, post row, known_at), ordered by user. Derived impressions are no proof that anybody saw anything."""
    table = lake.read(IMPRESSIONS, ["user_id", "post_id", "policy", "known_at"])
    table = table.filter(pc.invert(pc.starts_with(table["policy"], "derived")))
    row_M = rows_of(post_id_N, _ints(table["post_id"]))
    user_id_M, known_at_M = _ints(table["user_id"]), _ints(table["known_at"])
    order_M = np.argsort(user_id_M, kind="stable")
    order_M = order_M[row_M[order_M] >= 0]
    return user_id_M[order_M], row_M[order_M], known_at_M[order_M]


def _requests(lake: Lake) -> tuple[np.ndarray, np.ndarray]:
    """(user_id, requested_at) of every feed opened, in the order of time."""
    table = lake.read(REQUESTS, ["request_id", "user_id", "requested_at"])
    table = table.sort_by([("requested_at", "ascending"), ("request_id", "ascending")])
    return _ints(table["user_id"]), _ints(table["requested_at"])
