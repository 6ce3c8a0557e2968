"""What stands for tie strength in a log, where the tie itself is hidden: contacts that fade, mutual friends, friendship.

Shapes: N pairs (viewer, author) at a moment, I impressions, C contacts.
"""

from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix

from contracts.features import FAMILIES
from simulator.environment.lookups import rank_within
from simulator.likeness.log import Impressions, LoggedLog

HALF_LIFE_US = next(counter.half_life_us for counter in FAMILIES["tie"].counters if counter.name == "contacts_14d")
"""Half-life of a contact, the one that the models' features have."""
CONTACT_EDGES = (0.25, 1.0, 3.0)
MUTUAL_EDGES = (1, 5, 10)
CONTACT_GROUPS = (
    "no friendship",
    "friends, contacts < 0.25",
    "friends, 0.25 to 1",
    "friends, 1 to 3",
    "friends, 3 or more",
)
MUTUAL_GROUPS = ("0 mutual", "1 to 4 mutual", "5 to 9 mutual", "10 or more mutual")


def befriended(log: LoggedLog, user_N: np.ndarray, author_N: np.ndarray) -> np.ndarray:
    """Whether the log ever has a friendship of the user with the author (N,)."""
    key_E = np.sort(log.user_E * log.users + log.friend_E)
    key_N = user_N * log.users + author_N
    return key_E[np.minimum(np.searchsorted(key_E, key_N), len(key_E) - 1)] == key_N


def mutual_friends(log: LoggedLog, user_N: np.ndarray, author_N: np.ndarray) -> np.ndarray:
    """People (N,) to whom both are joined by a friendship in any direction."""
    ones = np.ones(len(log.user_E), np.int32)
    graph = csr_matrix((ones, (log.user_E, log.friend_E)), shape=(log.users, log.users))
    graph = ((graph + graph.T) > 0).astype(np.int32)
    pairs, of_N = np.unique(user_N * log.users + author_N, return_inverse=True)
    common = graph[pairs // log.users].multiply(graph[pairs % log.users])
    return np.asarray(common.sum(axis=1)).ravel()[of_N]


def contacts(log: LoggedLog, user_N: np.ndarray, author_N: np.ndarray, at_N: np.ndarray) -> np.ndarray:
    """Two-way contacts of each pair known before `at_N`, each worth 2 ** -(time since / half-life), (N,)."""
    key_C = _pair(log, log.contact_user_C, log.contact_author_C)
    order_C = np.lexsort((log.contact_known_at_C, key_C))
    key_C, at_C = key_C[order_C], log.contact_known_at_C[order_C]
    if not len(key_C):
        return np.zeros(len(user_N))
    strength_C = _running(key_C, at_C)
    key_N = _pair(log, user_N, author_N)
    begin, span = min(int(at_C.min()), int(at_N.min())), max(int(at_C.max()), int(at_N.max())) + 1
    last_N = _place(key_C, at_C - begin, key_N, at_N - begin, span - begin) - 1
    has_N = (last_N >= 0) & (key_C[last_N] == key_N)
    return np.where(has_N, strength_C[last_N] * np.exp2(-np.maximum(at_N - at_C[last_N], 0) / HALF_LIFE_US), 0.0)


def _running(key_C: np.ndarray, at_C: np.ndarray) -> np.ndarray:
    """Faded sum (C,) just after each contact; contacts are sorted by pair and moment."""
    strength_C = np.ones(len(key_C))
    fade_C = np.exp2(-np.diff(at_C, prepend=at_C[:1]) / HALF_LIFE_US)
    rank_C = rank_within(key_C)
    order_C = np.argsort(rank_C, kind="stable")
    bounds = np.cumsum(np.bincount(rank_C))
    # The k-th contacts of all pairs together: each needs only the one before it.
    for start, end in pairwise(bounds):
        at = order_C[start:end]
        strength_C[at] += strength_C[at - 1] * fade_C[at]
    return strength_C


def _pair(log: LoggedLog, user_N: np.ndarray, author_N: np.ndarray) -> np.ndarray:
    return np.minimum(user_N, author_N) * log.users + np.maximum(user_N, author_N)


def _place(key_C: np.ndarray, at_C: np.ndarray, key_N: np.ndarray, at_N: np.ndarray, span: int) -> np.ndarray:
    """How many contacts, in order of pair and moment, come before the moment of the pair (N,)."""
    # Pairs are numbered densely first: pair number times span would not fit 64 bits otherwise.
    keys, dense_C = np.unique(key_C, return_inverse=True)
    dense_N = np.minimum(np.searchsorted(keys, key_N), len(keys) - 1)
    return np.searchsorted(dense_C * np.int64(span) + at_C, dense_N * np.int64(span) + at_N, side="left")


def contact_groups(log: LoggedLog, shown: Impressions) -> np.ndarray:
    """Group (I,) of each impression's pair in `CONTACT_GROUPS`, as of the impression."""
    author_I = log.author_P[shown.post_I]
    strength_I = contacts(log, shown.viewer_I, author_I, shown.shown_at_I)
    friends_I = befriended(log, shown.viewer_I, author_I)
    return np.where(friends_I, 1 + np.searchsorted(CONTACT_EDGES, strength_I, side="right"), 0)


def mutual_groups(log: LoggedLog, shown: Impressions) -> np.ndarray:
    """Group (I,) of each impression's pair in `MUTUAL_GROUPS`."""
    return np.searchsorted(MUTUAL_EDGES, mutual_friends(log, shown.viewer_I, log.author_P[shown.post_I]), side="right")
