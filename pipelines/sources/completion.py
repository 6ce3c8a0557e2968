"""What a log does not say and the lake needs: authors, first moments, positions, requests, people; each rule in words.

Rows (N,) of a table; ids are the lake's numbers already. Nothing here looks at what a person did afterwards.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import DAY, SECOND
from contracts.errors import BadInput
from contracts.tables import TABLES
from pipelines.sources.identities import Identities
from pipelines.sources.mapping import Log

VIEWED_MS = 1000
_EVENTS = {"impressions": "shown_at", "requests": "requested_at", "actions": "occurred_at"}


@dataclass
class Completion:
    """Tables while they are completed, and the rules that were used: table or column -> rule."""

    log: Log
    tables: dict[str, pa.Table]
    ids: Identities
    derived: dict[str, str] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def fill(self, table: str, column: str, values: pa.Array | pa.ChunkedArray | str | int, rule: str) -> None:
        """Puts `values` (N,), or one value, where `column` is empty, and notes the rule if that was anywhere."""
        rows = self.tables[table]
        dtype = rows.schema.field(column).type
        if not rows[column].null_count:
            return
        made = pa.scalar(values) if isinstance(values, (str, int)) else values
        filled = pc.fill_null(rows[column], made.cast(dtype))
        self.tables[table] = rows.set_column(rows.column_names.index(column), column, filled)
        self.derived.setdefault(f"{table}.{column}", rule)

    def numbers(self, table: str, column: str) -> np.ndarray:
        """An integer column that has no empty values."""
        return self.tables[table][column].to_numpy()

    def add(self, table: str, **columns: object) -> None:
        """Adds rows; columns not given are empty."""
        schema = self.tables[table].schema
        count = len(next(iter(columns.values())))  # type: ignore[arg-type]
        arrays = [
            pa.array(columns[one.name], one.type) if one.name in columns else pa.nulls(count, one.type)
            for one in schema
        ]
        more = pa.Table.from_arrays(arrays, schema=schema)
        self.tables[table] = pa.concat_tables([self.tables[table], more])


def completed(log: Log, tables: dict[str, pa.Table], ids: Identities) -> Completion:
    """All tables of the lake without empty values where there may be none; `BadInput` when the log holds no event."""
    whole = Completion(log, tables, ids)
    moments = [tables[name][column].drop_null() for name, column in _EVENTS.items()]
    if not sum(map(len, moments)):
        raise BadInput("the log holds no impression, no request and no action")
    whole.start = min(pc.min(one).as_py() for one in moments if len(one)) // DAY * DAY
    # What came after the last event nobody knows, so no window that reaches beyond it is closed.
    whole.end = max(pc.max(one).as_py() for one in moments if len(one)) + 1
    _requests_of_impressions(whole)
    _posts(whole)
    _authors_of_events(whole)
    _impressions(whole)
    _requests(whole)
    _actions(whole)
    _people(whole)
    _names(whole)
    for name in ("friendships", "blocks", "topics", "subjects"):
        day_column = TABLES[name].day_column
        if day_column != "known_at":
            whole.fill(name, day_column, whole.start, "not in the files: taken to be so from the log's start")
        whole.fill(name, "known_at", _start_or(whole, name), "when it began, or the log's start")
    return whole


def _start_or(whole: Completion, table: str) -> pa.Array:
    day_column = TABLES[table].day_column
    rows = whole.tables[table]
    return (
        rows[day_column] if day_column != "known_at" else pa.repeat(pa.scalar(whole.start), len(rows)).cast(pa.int64())
    )


def _requests_of_impressions(whole: Completion) -> None:
    """Impressions that name no request: those of one user at one moment are one request."""
    rows = whole.tables["impressions"]
    lacking = rows["request_id"].is_null().to_numpy()
    if not lacking.any():
        return
    pairs_MK = np.stack([rows["user_id"].to_numpy()[lacking], rows["shown_at"].to_numpy()[lacking]], axis=1)
    unique, at_M = np.unique(pairs_MK, axis=0, return_inverse=True)
    user_of = dict(zip(whole.ids.numbers["user"].tolist(), whole.ids.foreign["user"].to_pylist()))
    made = whole.ids.add("request", [f"{user_of[user]}/{moment}" for user, moment in unique.tolist()])
    request_N = np.zeros(len(rows), np.int64)
    request_N[lacking] = made[at_M.reshape(-1)]
    whole.fill("impressions", "request_id", pa.array(request_N),
               "the files name none: what one user was shown at one moment is one request")  # fmt: skip


def _posts(whole: Completion) -> None:
    """Posts that only events name, and what is not said of posts."""
    seen, first_seen = _first_seen(whole)
    posts = whole.numbers("posts", "post_id")
    unlisted = ~np.isin(seen, posts)
    if unlisted.any():
        whole.derived["posts"] = f"{unlisted.sum()} posts are known from events alone"
        whole.add("posts", post_id=seen[unlisted])
    posts = whole.numbers("posts", "post_id")
    at = np.minimum(np.searchsorted(seen, posts), max(len(seen) - 1, 0))
    was_seen = seen[at] == posts if len(seen) else np.zeros(len(posts), bool)
    created = np.where(was_seen, (first_seen[at] if len(seen) else 0) - SECOND, whole.start)
    whole.fill(
        "posts",
        "created_at",
        pa.array(created),
        "one second before it is first seen in the log, or the log's start",
    )
    whole.fill("posts", "known_at", whole.tables["posts"]["created_at"], "when it was made")
    _authors_of_posts(whole)
    whole.fill("posts", "kind", whole.log.post_kind, f"not in the files: {whole.log.post_kind}")
    whole.fill("posts", "topic", 0, "0 for posts that name none")
    whole.fill("posts", "visibility", "public", "the files say nothing: public")


def _first_seen(whole: Completion) -> tuple[np.ndarray, np.ndarray]:
    """(posts (P,) that events name, in order, the first moment of each)."""
    posts = [whole.numbers(name, "post_id") for name in ("impressions", "actions")]
    moments = [whole.numbers("impressions", "shown_at"), whole.numbers("actions", "occurred_at")]
    requests = whole.tables["requests"]
    pools = requests["candidates"].combine_chunks()
    posts.append(pc.list_flatten(pools).to_numpy(zero_copy_only=False).astype(np.int64))
    parents = pc.list_parent_indices(pools).to_numpy(zero_copy_only=False).astype(np.int64)
    moments.append(requests["requested_at"].to_numpy()[parents] if len(parents) else np.zeros(0, np.int64))
    post_E, moment_E = np.concatenate(posts), np.concatenate(moments)
    order = np.lexsort((moment_E, post_E))
    unique, first = np.unique(post_E[order], return_index=True)
    return unique, moment_E[order][first]


def _authors_of_posts(whole: Completion) -> None:
    """The author that the post's row names, else the one that an event names, else the publisher."""
    rows = whole.tables["posts"]
    if not rows["author_id"].null_count:
        return
    named = [whole.tables[name].select(["post_id", "author_id"]) for name in ("posts", "impressions", "actions")]
    pairs = pa.concat_tables(named).drop_null()
    unique, first = np.unique(pairs["post_id"].to_numpy(), return_index=True)
    author_U = pairs["author_id"].to_numpy()[first]
    found_N, author_N = _looked_up(unique, author_U, rows["post_id"].to_numpy())
    if not found_N.all():
        author_N[~found_N] = whole.ids.add("user", [whole.log.publisher])[0]
        whole.derived["posts without an author"] = f"they have one in common, {whole.log.publisher}"
    whole.fill("posts", "author_id", pa.array(author_N), "the author that an event names")


def _authors_of_events(whole: Completion) -> None:
    posts = whole.tables["posts"]
    unique, first = np.unique(posts["post_id"].to_numpy(), return_index=True)
    author_U = posts["author_id"].to_numpy()[first]
    for name in ("impressions", "actions"):
        _, author_N = _looked_up(unique, author_U, whole.numbers(name, "post_id"))
        whole.fill(name, "author_id", pa.array(author_N), "the author of the post")


def _looked_up(key_U: np.ndarray, value_U: np.ndarray, wanted_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(whether `key_U` (U,), ordered, has each wanted key (N,), its value or 0)."""
    if not len(key_U):
        return np.zeros(len(wanted_N), bool), np.zeros(len(wanted_N), np.int64)
    at_N = np.minimum(np.searchsorted(key_U, wanted_N), len(key_U) - 1)
    found_N = key_U[at_N] == wanted_N
    return found_N, np.where(found_N, value_U[at_N], 0)


def _impressions(whole: Completion) -> None:
    rows = whole.tables["impressions"]
    if rows["position"].null_count:
        request_N = rows["request_id"].to_numpy()
        order = np.argsort(request_N, kind="stable")
        first = np.r_[True, np.diff(request_N[order]) != 0][: len(order)]
        starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        position_N = np.empty(len(order), np.int64)
        position_N[order] = np.arange(len(order)) - starts
        whole.fill("impressions", "position", pa.array(position_N), "the order of the lines in the files")
    whole.fill("impressions", "viewed_ms", VIEWED_MS, f"{VIEWED_MS} for all: the files do not say what was looked at")
    whole.fill("impressions", "policy", "unknown", "the files do not say what chose the posts")
    whole.fill("impressions", "known_at", whole.tables["impressions"]["shown_at"], "when it was shown")


def _requests(whole: Completion) -> None:
    """Requests that are not in the files: what was shown is all that is known of what could have been."""
    shown = whole.tables["impressions"]
    if not whole.tables["requests"].num_rows and shown.num_rows:
        ordered = shown.sort_by([("request_id", "ascending"), ("position", "ascending")])
        grouped = ordered.group_by("request_id", use_threads=False).aggregate(
            [("user_id", "first"), ("shown_at", "min"), ("policy", "first"), ("post_id", "list")]
        )
        at = grouped["shown_at_min"].combine_chunks()
        whole.add(
            "requests", request_id=grouped["request_id"].combine_chunks(), user_id=grouped["user_id_first"].combine_chunks(),
            requested_at=at, policy=grouped["policy_first"].combine_chunks(), candidates=grouped["post_id_list"].combine_chunks(),
            known_at=at,
        )  # fmt: skip
        whole.derived["requests"] = "one per request of an impression, at its first showing"
        whole.derived["requests.candidates"] = (
            "the posts that were shown: the pool that was chosen from is not in the files"
        )
    requests = whole.tables["requests"]
    empty = pa.array([[]], pa.list_(pa.int64()))[0]
    whole.fill("requests", "candidates", pa.array([empty.as_py()] * len(requests), pa.list_(pa.int64())),
               "not in the files: empty")  # fmt: skip
    lengths = pc.list_value_length(whole.tables["requests"]["candidates"])
    whole.fill("requests", "slate_size", lengths, "the posts that were shown")
    whole.fill("requests", "policy", "unknown", "the files do not say what chose the posts")
    whole.fill("requests", "known_at", whole.tables["requests"]["requested_at"], "when it was made")


def _actions(whole: Completion) -> None:
    rows = whole.tables["actions"]
    if rows["action_id"].null_count:
        moment_N = rows["occurred_at"].to_numpy()
        number_N = np.empty(len(rows), np.int64)
        number_N[np.argsort(moment_N, kind="stable")] = np.arange(1, len(rows) + 1)
        taken = pc.max(rows["action_id"]).as_py() or 0
        whole.fill("actions", "action_id", pa.array(number_N + taken), "numbered in the order of time")
    whole.fill("actions", "known_at", whole.tables["actions"]["occurred_at"], "when it happened")


def _people(whole: Completion) -> None:
    """Users that only events, posts and friendships name."""
    columns = {"friendships": ("user_id", "friend_id"), "blocks": ("user_id", "target_id"), "posts": ("author_id",),
               "requests": ("user_id",), "impressions": ("user_id", "author_id"), "actions": ("user_id", "author_id"),
               "sessions": ("user_id",)}  # fmt: skip
    named = [whole.numbers(table, one) for table, names in columns.items() for one in names]
    unlisted = np.setdiff1d(np.unique(np.concatenate(named)), whole.numbers("users", "user_id"))
    if len(unlisted):
        whole.add("users", user_id=unlisted)
        whole.derived["users"] = f"{len(unlisted)} users are known from other tables alone"
    whole.fill("users", "registered_at", whole.start, "not in the files: the log's start")
    whole.fill("users", "known_at", whole.tables["users"]["registered_at"], "when they registered")


def _names(whole: Completion) -> None:
    """Topics and subjects that posts name and no file lists."""
    for table, column, kind in (("topics", "topic", "topic"), ("subjects", "subject_id", "subject")):
        used = pc.unique(whole.tables["posts"][column]).drop_null().to_numpy()
        unlisted = np.setdiff1d(used, whole.tables[table][column].to_numpy())
        if not len(unlisted):
            continue
        name_of = dict(zip(whole.ids.numbers[kind].tolist(), whole.ids.foreign[kind].to_pylist()))
        names = [name_of.get(number, "(none)") for number in unlisted.tolist()]
        whole.add(table, **{column: unlisted, "name": names})
    whole.fill("subjects", "kind", "thing", "not in the files")
