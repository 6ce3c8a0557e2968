"""What stands in the same slate as a post: how many like it above, how many like it at all.

Shapes: I impressions in order of request and position.
"""

import numpy as np

from simulator.environment.lookups import rank_within
from simulator.likeness.log import Impressions, LoggedLog


def _counts(request_I: np.ndarray, key_I: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posts above with the same key (I,), and other posts of the slate with the same key (I,)."""
    order_I = np.lexsort((np.arange(len(key_I)), key_I, request_I))
    group_I = request_I[order_I] * (int(key_I.max()) + 1) + key_I[order_I]
    above_I, all_I = np.empty(len(key_I), np.int64), np.empty(len(key_I), np.int64)
    above_I[order_I] = rank_within(group_I)
    _, at, size = np.unique(group_I, return_inverse=True, return_counts=True)
    all_I[order_I] = size[at] - 1
    return above_I, all_I


def neighbours(log: LoggedLog, shown: Impressions) -> np.ndarray:
    """(I, 4): posts above by the same author at the root, above of the same topic, and each anywhere in the slate."""
    authors = _counts(shown.request_I, log.root_author_P[shown.post_I])
    topics = _counts(shown.request_I, log.topic_P[shown.post_I].astype(np.int64) - int(log.topic_P.min()))
    return np.stack([authors[0], topics[0], authors[1], topics[1]], axis=1)
