"""A log as arrays: what of it can be fitted, by index of users and posts, and what its tables do not hold.

Shapes: U users, E directed friendships, P posts, I impressions, S sessions, C contacts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.clock import DAY
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.lake import Lake, content_hashes
from contracts.swap import settle
from contracts.tables import (
    ACTIONS,
    FRIENDSHIPS,
    IMPRESSIONS,
    POST_KINDS,
    POSTS,
    REQUESTS,
    SESSIONS,
    TABLES,
    USERS,
    VISIBILITIES,
    TableSpec,
)
from contracts.tasks import CONTACTS, TASK_NAMES
from simulator.likeness.faults import VERSIONED, check_rows, last_versions

READ = (USERS, FRIENDSHIPS, POSTS, REQUESTS, IMPRESSIONS, ACTIONS, SESSIONS)
COLUMNS = {
    "users": ("user_id", "registered_at", "known_at"), "friendships": ("user_id", "friend_id"),
    "posts": ("post_id", "author_id", "origin_post_id", "created_at", "known_at", "kind", "topic", "visibility"),
    "requests": ("request_id", "candidates"),
    "impressions": ("request_id", "user_id", "post_id", "position", "shown_at", "viewed_ms", "policy", "propensity"),
}  # fmt: skip
"""Table -> the columns that a fit needs; all of the other tables'."""
FEWEST = {"users": 10, "friendships": 20, "posts": 50, "impressions": 500, "sessions": 50}
"""Fewer rows than that are no log to fit anything to."""


@dataclass(frozen=True)
class Impressions:
    """What was shown, in order of request and position. `acted_IA`: an action of the task followed inside the
    attribution window. `propensity_I`: NaN where the log has none. `pool_I`: how many posts the policy chose from."""

    request_I: np.ndarray
    viewer_I: np.ndarray
    post_I: np.ndarray
    position_I: np.ndarray
    shown_at_I: np.ndarray
    viewed_I: np.ndarray
    propensity_I: np.ndarray
    pool_I: np.ndarray
    acted_IA: np.ndarray


@dataclass(frozen=True)
class LoggedLog:
    """One log. `impressions` is None, or the session arrays are empty, where the lake has none; `absent` says why.

    `root_author_P`: author at the origin of the chain of shares. `contact_*_C`: acts of one person towards another.
    """

    dataset: Dataset
    parents: dict[str, str]
    registered_at_U: np.ndarray
    user_E: np.ndarray
    friend_E: np.ndarray
    author_P: np.ndarray
    root_author_P: np.ndarray
    created_at_P: np.ndarray
    kind_P: np.ndarray
    topic_P: np.ndarray
    visibility_P: np.ndarray
    impressions: Impressions | None
    contact_user_C: np.ndarray
    contact_author_C: np.ndarray
    contact_known_at_C: np.ndarray
    session_user_S: np.ndarray
    session_at_S: np.ndarray
    session_requests_S: np.ndarray
    absent: dict[str, str]

    @property
    def users(self) -> int:
        """How many people the log has."""
        return len(self.registered_at_U)

    @property
    def days(self) -> int:
        """Whole days that the log spans."""
        return round((self.dataset.end - self.dataset.start) / DAY)

    @property
    def hours_made_up(self) -> bool:
        """Whether the hours of posts are a rule's and no record."""
        return "posts.created_at" in self.dataset.derived


def lake_at(path: Path) -> Lake:
    """The lake that `path` is, or that the workspace `path` holds; `BadInput` when it is neither."""
    for workspace in (path, path.parent):
        settle(workspace)
    for root in (path / "lake", path):
        if (root / "dataset.json").is_file():
            return Lake(root)
    raise BadInput(f"{path} is neither a workspace nor a lake with a log: it holds no dataset.json")


def read_log(lake: Lake) -> LoggedLog:
    """Reads the tables; `BadInput` names the first that a fit cannot do without or that has too few rows.

    Users, friendships and posts are needed; without impressions, actions or sessions what they show is not fitted.
    """
    dataset = Dataset.load(lake.root / "dataset.json")
    tables = {spec.name: lake.read(spec, COLUMNS.get(spec.name)) for spec in READ if lake.exists(spec)}
    return log_of(tables, dataset, content_hashes(lake, TABLES.values()), str(lake.root))


def log_of(tables: Mapping[str, pa.Table], dataset: Dataset, parents: dict[str, str], where: str) -> LoggedLog:
    """The log that the tables of `READ` hold, by name; as `read_log`, which says `where` they lie."""
    tables = dict(tables)
    for spec in (USERS, FRIENDSHIPS, POSTS):
        if spec.name not in tables:
            raise BadInput(f"{where} has no table {spec.name}: a log without it cannot be fitted")
        if spec.name in VERSIONED:
            tables[spec.name] = last_versions(tables[spec.name], spec.name)
        _check_enough(tables[spec.name], spec, where)
    absent: dict[str, str] = {}
    for spec in (ACTIONS, SESSIONS, IMPRESSIONS):
        table = tables.setdefault(spec.name, spec.schema.empty_table())
        if not table.num_rows:
            absent[spec.name] = f"the log has no {spec.name}"
        else:
            # A table that was begun and is too short to fit is refused: it is more likely cut off than meant.
            _check_enough(table, spec, where)
    if _all_derived(tables["impressions"]):
        absent["impressions"] = "the log has no impressions: all of them were derived by a rule when it was read in"
        tables["impressions"] = IMPRESSIONS.schema.empty_table()
    check_rows(tables, dataset, FEWEST["users"])
    users, posts, edges = tables["users"], tables["posts"], tables["friendships"]
    user_ids, post_ids = users["user_id"].to_numpy(), posts["post_id"].to_numpy()
    author_P = _index(user_ids, posts["author_id"].to_numpy(), "posts", "author_id")
    origin_P = _index(post_ids, posts["origin_post_id"].fill_null(-1).to_numpy(), "posts", "origin_post_id", none=-1)
    user_E, friend_E = (
        _index(user_ids, edges[name].to_numpy(), "friendships", name) for name in ("user_id", "friend_id")
    )
    pair_E = np.unique(user_E * len(user_ids) + friend_E)
    actions, sessions = tables["actions"], tables["sessions"]
    contacts = actions.filter(pc.is_in(actions["kind"], value_set=pa.array(CONTACTS)))
    return LoggedLog(
        dataset=dataset, parents=parents,
        registered_at_U=users["registered_at"].to_numpy(), user_E=pair_E // len(user_ids), friend_E=pair_E % len(user_ids),
        author_P=author_P, root_author_P=author_P[_roots(origin_P)], created_at_P=posts["created_at"].to_numpy(),
        kind_P=_codes(posts["kind"], POST_KINDS, "posts", "kind"), topic_P=posts["topic"].to_numpy(),
        visibility_P=_codes(posts["visibility"], VISIBILITIES, "posts", "visibility"),
        impressions=_impressions(tables, dataset, user_ids, post_ids, absent),
        contact_user_C=_index(user_ids, contacts["user_id"].to_numpy(), "actions", "user_id"),
        contact_author_C=_index(user_ids, contacts["author_id"].to_numpy(), "actions", "author_id"),
        contact_known_at_C=contacts["known_at"].to_numpy(),
        session_user_S=_index(user_ids, sessions["user_id"].to_numpy(), "sessions", "user_id"),
        session_at_S=sessions["started_at"].to_numpy(), session_requests_S=sessions["requests"].to_numpy(),
        absent=absent,
    )  # fmt: skip


def _check_enough(table: pa.Table, spec: TableSpec, where: str) -> None:
    fewest = FEWEST.get(spec.name, 0)
    if table.num_rows < fewest:
        raise BadInput(f"table {spec.name} of {where} has {table.num_rows} rows; fitting takes at least {fewest}")


def _index(
    sorted_ids: np.ndarray, wanted_N: np.ndarray, table: str, column: str, none: int | None = None
) -> np.ndarray:
    """Places (N,) of ids; `none` stands for no id and stays."""
    at_N = np.minimum(np.searchsorted(sorted_ids, wanted_N), len(sorted_ids) - 1)
    lost_N = sorted_ids[at_N] != wanted_N
    if none is not None:
        lost_N &= wanted_N != none
        at_N = np.where(wanted_N == none, -1, at_N)
    if lost_N.any():
        raise BadInput(
            f"table {table}: {int(lost_N.sum())} rows name a {column} that the lake does not have, "
            f"the first is {wanted_N[lost_N][0]}"
        )
    return at_N


def _codes(column: pa.ChunkedArray, words: tuple[str, ...], table: str, name: str) -> np.ndarray:
    codes = pc.index_in(column, value_set=pa.array(words))
    if codes.null_count:
        unknown = column.filter(pc.is_null(codes))[0].as_py()
        raise BadInput(f"table {table}: {codes.null_count} rows have a {name} such as {unknown!r}, not one of {words}")
    return codes.to_numpy().astype(np.int64)


def _roots(origin_P: np.ndarray) -> np.ndarray:
    """The post (P,) at the origin of each chain; a chain that leads back to itself ends after as many steps as posts."""
    root_P = np.arange(len(origin_P))
    for _ in range(len(origin_P)):
        above_P = origin_P[root_P]
        if not (above_P >= 0).any():
            break
        root_P = np.where(above_P >= 0, above_P, root_P)
    return root_P


def _all_derived(impressions: pa.Table) -> bool:
    return impressions.num_rows > 0 and pc.all(pc.starts_with(impressions["policy"], "derived")).as_py()


def _impressions(tables: Mapping[str, pa.Table], dataset: Dataset, user_ids: np.ndarray, post_ids: np.ndarray,
                 absent: dict[str, str]) -> Impressions | None:  # fmt: skip
    table = tables["impressions"].sort_by([("request_id", "ascending"), ("position", "ascending")])
    if not table.num_rows:
        return None
    post_I = _index(post_ids, table["post_id"].to_numpy(), "impressions", "post_id")
    request_id_I, shown_at_I = table["request_id"].to_numpy(), table["shown_at"].to_numpy()
    viewer_I = _index(user_ids, table["user_id"].to_numpy(), "impressions", "user_id")
    request_I = np.unique(request_id_I, return_inverse=True)[1]
    viewed_I = table["viewed_ms"].to_numpy() > 0
    if viewed_I.all() or not viewed_I.any():
        viewed_I = np.ones(len(viewed_I), bool)
        absent["viewed_ms"] = "the log does not say what was looked at: every impression counts as viewed"
    propensity_I = table["propensity"].to_numpy(zero_copy_only=False).astype(np.float64)
    if not (propensity_I > 0).all():
        lacking = int((~(propensity_I > 0)).sum())
        absent["propensities"] = f"{lacking} of {len(propensity_I)} impressions have no propensity"
    return Impressions(
        request_I=request_I, viewer_I=viewer_I, post_I=post_I, position_I=table["position"].to_numpy().astype(np.int64),
        shown_at_I=shown_at_I, viewed_I=viewed_I, propensity_I=propensity_I, pool_I=_pools(tables.get("requests"), request_id_I),
        acted_IA=_labels(tables["actions"], dataset.attribution_us, request_id_I, user_ids[viewer_I], post_ids[post_I], shown_at_I),
    )  # fmt: skip


def _pools(table: pa.Table | None, request_id_I: np.ndarray) -> np.ndarray:
    """Size of each impression's pool (I,), 0 where the log has no request of it."""
    if table is None:
        return np.zeros(len(request_id_I), np.int64)
    table = table.sort_by("request_id")
    ids, sizes = table["request_id"].to_numpy(), pc.list_value_length(table["candidates"]).to_numpy()
    if not len(ids):
        return np.zeros(len(request_id_I), np.int64)
    at_I = np.minimum(np.searchsorted(ids, request_id_I), len(ids) - 1)
    return np.where(ids[at_I] == request_id_I, sizes[at_I], 0)


def _labels(actions: pa.Table, window_us: int, request_id_I: np.ndarray, user_id_I: np.ndarray, post_id_I: np.ndarray,
            shown_at_I: np.ndarray) -> np.ndarray:  # fmt: skip
    """Whether each task's action followed each impression (I, A): of the same request, or where the action names none,
    of the last impression of the post to the person before it."""
    acted_IA = np.zeros((len(request_id_I), len(TASK_NAMES)), bool)
    task_J = pc.index_in(actions["kind"], value_set=pa.array(TASK_NAMES))
    actions, task_J = actions.filter(pc.is_valid(task_J)), task_J.drop_null().to_numpy()
    named_J = pc.is_valid(actions["request_id"]).to_numpy(zero_copy_only=False)
    column = {name: actions[name].to_numpy() for name in ("user_id", "post_id", "occurred_at")}
    request_J = actions["request_id"].fill_null(-1).to_numpy()
    for mine_J, first_I, first_J in ((named_J, request_id_I, request_J), (~named_J, user_id_I, column["user_id"])):
        order_I = np.lexsort((shown_at_I, post_id_I, first_I))
        at_J = _last_before(
            (first_I[order_I], post_id_I[order_I], shown_at_I[order_I]),
            (first_J[mine_J], column["post_id"][mine_J], column["occurred_at"][mine_J]),
        )
        found_J = at_J >= 0
        row_J = order_I[np.maximum(at_J, 0)]
        found_J &= column["occurred_at"][mine_J] - shown_at_I[row_J] <= window_us
        acted_IA[row_J[found_J], task_J[mine_J][found_J]] = True
    return acted_IA


def _last_before(sorted_keys: tuple[np.ndarray, ...], wanted: tuple[np.ndarray, ...]) -> np.ndarray:
    """Place of the last row with the same first two keys whose third is at most that wanted; -1 without one."""
    if not len(wanted[0]) or not len(sorted_keys[0]):
        return np.full(len(wanted[0]), -1)
    both = tuple(np.concatenate([known, asked]) for known, asked in zip(sorted_keys, wanted))
    known_N = np.arange(len(both[0])) < len(sorted_keys[0])
    order_N = np.lexsort((~known_N, both[2], both[1], both[0]))
    place_N = np.where(known_N[order_N], order_N, -1)
    last_N = np.maximum.accumulate(place_N)  # rows are sorted, so later known rows have larger places
    at = np.empty(len(order_N), np.int64)
    at[order_N] = last_N
    at = at[len(sorted_keys[0]) :]
    safe = np.maximum(at, 0)
    same = (sorted_keys[0][safe] == wanted[0]) & (sorted_keys[1][safe] == wanted[1])
    return np.where((at >= 0) & same, at, -1)
