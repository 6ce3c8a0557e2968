"""Rows that no log can hold: each check stops the fit with the table, how many rows there are and the first of them."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from contracts.clock import day_of
from contracts.dataset import Dataset
from contracts.errors import BadInput
from simulator.environment.settings import BETWEEN

VERSIONED = {"users": "user_id", "posts": "post_id"}
"""Tables of which a row that became known later is a further version: the last is what is fitted."""
MOST_POSITIONS = int(BETWEEN["pool_size"][1])


def last_versions(table: pa.Table, name: str) -> pa.Table:
    """The last known row of each id of a table of VERSIONED, by id; `BadInput` where one id has two of one `known_at`."""
    key = VERSIONED[name]
    table = table.sort_by([(key, "ascending"), ("known_at", "ascending")])
    ids_N, known_at_N = table[key].to_numpy(), table["known_at"].to_numpy()
    again_N = np.diff(ids_N, prepend=ids_N[:1] - 1) == 0
    _refuse(
        name, again_N & (np.diff(known_at_N, prepend=known_at_N[:1]) == 0), f"repeat a {key} and its known_at", ids_N
    )
    return table.filter(pa.array(np.r_[~again_N[1:], True][: len(ids_N)]))


def check_rows(tables: Mapping[str, pa.Table], dataset: Dataset, fewest_users: int) -> None:
    """`BadInput` for the first fault of users, friendships, sessions and impressions.

    `tables`: by name, users and posts as `last_versions` gives them. `fewest_users`: how
    many people must have registered before the log ends.
    """
    registered_at = tables["users"]["registered_at"].to_numpy()
    there = int((registered_at < dataset.end).sum())
    if there < fewest_users:
        raise BadInput(
            f"table users: {there} of {len(registered_at)} people registered before the log ends on "
            f"{day_of(dataset.end - 1)}; fitting takes at least {fewest_users}"
        )
    user_E, friend_E = (tables["friendships"][name].to_numpy() for name in ("user_id", "friend_id"))
    _refuse("friendships", user_E == friend_E, "join a user_id with itself", user_E)
    requests_S = tables["sessions"]["requests"].to_numpy()
    _refuse("sessions", requests_S < 1, "count no request", requests_S)
    _check_impressions(tables["impressions"], dataset)


def _check_impressions(table: pa.Table, dataset: Dataset) -> None:
    table = table.sort_by([("request_id", "ascending"), ("position", "ascending")])
    request_I, position_I, shown_at_I = (table[name].to_numpy() for name in ("request_id", "position", "shown_at"))
    what = f"have a position that is not between 0 and {MOST_POSITIONS - 1}"
    _refuse("impressions", (position_I < 0) | (position_I >= MOST_POSITIONS), what, position_I)
    again_I = (np.diff(request_I, prepend=request_I[:1] - 1) == 0) & (np.diff(position_I, prepend=-1) == 0)
    _refuse("impressions", again_I, "repeat a position of their request_id", request_I)
    propensity_I = table["propensity"].to_numpy(zero_copy_only=False).astype(np.float64)
    _refuse(
        "impressions", (propensity_I > 1 + 1e-9) | (propensity_I < 0), "have a propensity outside 0 to 1", propensity_I
    )
    outside_I = (shown_at_I < dataset.start) | (shown_at_I >= dataset.end)
    span = f"{day_of(dataset.start)} to {day_of(dataset.end - 1)}"
    _refuse(
        "impressions",
        outside_I,
        f"have a shown_at outside the log, which is {span}",
        shown_at_I.astype("datetime64[us]"),
    )


def _refuse(table: str, wrong_N: np.ndarray, what: str, value_N: np.ndarray) -> None:
    if wrong_N.any():
        raise BadInput(f"table {table}: {int(wrong_N.sum())} rows {what}, the first is {value_N[wrong_N][0]}")
