"""A viewer's last actions as they were known when a feed was asked for: what they did, on which topic, whose post, when.

An action counts only when it both happened and was known before the request; later ones, and those that reached the lake
late, are not there. Legend: R requests, K places for actions (the newest last, empty places first).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from contracts.clock import MINUTE
from contracts.lake import Lake
from contracts.tables import ACTION_KINDS, ACTIONS, POSTS

MOST_TIES = 7
"""Earlier actions on one author are counted up to this number."""

AGES = 16
"""Steps of age, each twice as long as the one before: under a minute, under three, under seven …"""


@dataclass(frozen=True)
class Histories:
    """Of each request, (R, K): `there` is false at empty places, whose other entries mean nothing.

    `kinds` index ACTION_KINDS; `topics` is -1 where the post was not known yet; `ties` counts the viewer's earlier actions
    in this history on the same author, up to MOST_TIES; `ages` index steps of age.
    """

    there_RK: np.ndarray
    kinds_RK: np.ndarray
    topics_RK: np.ndarray
    authors_RK: np.ndarray
    ties_RK: np.ndarray
    ages_RK: np.ndarray

    def ties_with(self, requests_N: np.ndarray, authors_N: np.ndarray) -> np.ndarray:
        """Actions (N,) in the history of row `requests_N` on the author, up to MOST_TIES."""
        same_NK = self.there_RK[requests_N] & (self.authors_RK[requests_N] == authors_N[:, None])
        return np.minimum(same_NK.sum(axis=1), MOST_TIES)


def histories(lake: Lake, viewers_R: np.ndarray, requested_at_R: np.ndarray, length: int) -> Histories:
    """The last `length` actions of each viewer before each request (UTC microseconds)."""
    end = int(requested_at_R.max()) if len(requested_at_R) else None
    actions = _with_topics(lake, lake.read(ACTIONS, None, end=end).to_pandas())
    order = np.lexsort((actions["action_id"], actions["occurred_at"], actions["user_id"]))
    columns = {
        name: actions[name].to_numpy()[order] for name in ("user_id", "occurred_at", "known_at", "topic", "author_id")
    }
    kinds = pd.Index(ACTION_KINDS).get_indexer(actions["kind"])[order]
    picks_RK = _picks(columns, viewers_R, requested_at_R, length)
    there_RK = picks_RK >= 0
    if not len(kinds):
        empty_RK = np.zeros_like(picks_RK)
        return Histories(there_RK, empty_RK, empty_RK - 1, empty_RK, empty_RK, empty_RK)
    authors_RK = columns["author_id"][picks_RK]
    minutes_RK = np.maximum(requested_at_R[:, None] - columns["occurred_at"][picks_RK], 0) / MINUTE
    return Histories(
        there_RK, kinds[picks_RK], columns["topic"][picks_RK], authors_RK, _ties(there_RK, authors_RK),
        np.minimum(np.log2(1.0 + minutes_RK).astype(np.int64), AGES - 1),
    )  # fmt: skip


def _with_topics(lake: Lake, actions: pd.DataFrame) -> pd.DataFrame:
    """The topic that each action's post had when the action became known; -1 where the post was not known by then."""
    posts = lake.read(POSTS, ("post_id", "known_at", "topic")).to_pandas().sort_values("known_at", kind="stable")
    joined = pd.merge_asof(actions.sort_values("known_at", kind="stable"), posts, on="known_at", by="post_id")
    return joined.assign(topic=joined["topic"].fillna(-1).astype(np.int64))


def _picks(
    columns: dict[str, np.ndarray], viewers_R: np.ndarray, requested_at_R: np.ndarray, length: int
) -> np.ndarray:
    """Row numbers (R, K) among the actions, which are ordered by viewer and time; -1 at empty places."""
    picks_RK = np.full((len(viewers_R), length), -1)
    begins_R = np.searchsorted(columns["user_id"], viewers_R, "left")
    ends_R = np.searchsorted(columns["user_id"], viewers_R, "right")
    for row, (begin, end, at) in enumerate(zip(begins_R, ends_R, requested_at_R)):
        stop = begin + np.searchsorted(columns["occurred_at"][begin:end], at, "left")
        found = begin + np.flatnonzero(columns["known_at"][begin:stop] < at)[-length:]
        picks_RK[row, length - len(found) :] = found
    return picks_RK


def _ties(there_RK: np.ndarray, authors_RK: np.ndarray) -> np.ndarray:
    ties_RK = np.zeros(there_RK.shape, np.int64)
    for place in range(1, there_RK.shape[1]):
        same_RK = there_RK[:, :place] & (authors_RK[:, :place] == authors_RK[:, [place]])
        ties_RK[:, place] = same_RK.sum(axis=1)
    return np.minimum(ties_RK, MOST_TIES)
