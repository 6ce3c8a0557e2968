"""Whether the clocks of a log agree with each other: nothing is known before it happened, nothing happens before its cause."""

import numpy as np
import pyarrow as pa

from contracts.clock import SECOND, to_datetime
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.lake import Lake
from contracts.tables import ACTIONS, BLOCKS, IMPRESSIONS, POSTS, REQUESTS, SESSIONS, TableSpec

_HAPPENED = {
    POSTS: "created_at",
    REQUESTS: "requested_at",
    IMPRESSIONS: "shown_at",
    ACTIONS: "occurred_at",
    BLOCKS: "since",
}
_NAMED = {POSTS: ("post_id",), REQUESTS: ("request_id",), IMPRESSIONS: ("request_id", "post_id"), ACTIONS: ("action_id", "post_id"),
          BLOCKS: ("user_id", "target_id")}  # fmt: skip


def check_lake_clocks(lake: Lake, dataset: Dataset) -> None:
    """`BadInput` for rows that were known before they happened, for actions dated before the request whose feed they
    answer, and for sessions that end before they start or start after the log ended; each with count and example."""
    for spec in _HAPPENED:
        if lake.exists(spec):
            _check_known(lake, spec)
    if lake.exists(ACTIONS) and lake.exists(REQUESTS):
        _check_causes(lake)
    if lake.exists(SESSIONS):
        _check_sessions(lake, dataset.end)


def _check_known(lake: Lake, spec: TableSpec) -> None:
    happened, names = _HAPPENED[spec], _NAMED[spec]
    table = lake.read(spec, [*names, happened, "known_at"])
    early_us = table[happened].to_numpy() - table["known_at"].to_numpy()
    _refuse(early_us, table, names, f"rows of {spec.name} were known (known_at) before they happened ({happened})")


def _check_causes(lake: Lake) -> None:
    actions = lake.read(ACTIONS, ["action_id", "request_id", "post_id", "kind", "occurred_at"]).drop_null()
    requests = lake.read(REQUESTS, ["request_id", "requested_at"])
    ids, requested_at = requests["request_id"].to_numpy(), requests["requested_at"].to_numpy()
    if not len(ids):
        return
    order = np.argsort(ids, kind="stable")
    wanted = actions["request_id"].to_numpy()
    at = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    early_us = np.where(ids[at] == wanted, requested_at[at] - actions["occurred_at"].to_numpy(), 0)
    _refuse(
        early_us,
        actions,
        ("action_id", "kind", "request_id", "post_id"),
        "actions are dated before the request that showed their post",
    )


def _check_sessions(lake: Lake, end: int) -> None:
    sessions = lake.read(SESSIONS, ["user_id", "started_at", "ended_at"])
    started, ended = sessions["started_at"].to_numpy(), sessions["ended_at"].to_numpy()
    _refuse(started - ended, sessions, ("user_id",), "sessions end before they start")
    after = f"sessions start after the log ended ({to_datetime(end):%Y-%m-%d %H:%M})"
    _refuse(started - end + 1, sessions, ("user_id",), after)


def _refuse(early_us: np.ndarray, table: pa.Table, names: tuple[str, ...], fault: str) -> None:
    skewed = early_us > 0
    if not skewed.any():
        return
    worst = int(np.argmax(early_us))
    row = table.slice(worst, 1).to_pylist()[0]
    example = ", ".join(f"{name} {row[name]}" for name in names)
    raise BadInput(
        f"{int(skewed.sum()):,} of {len(early_us):,} {fault}, by up to {early_us[worst] / SECOND:,.3f} s, such as {example}: "
        "a clock of the log is off"
    )
