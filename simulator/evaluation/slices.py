"""Ranking metrics overall and slice by slice, so that an average does not hide whom a model serves badly.

Shapes: N viewed impressions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simulator.evaluation.ranking_metrics import task_metrics

MIN_POSITIVES = 5
POSITIONS = 10
SLICES: dict[str, tuple[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]]] = {
    "new viewers": ("the viewer registered less than 14 days ago", lambda x: x["viewer_tenure_days"] < 14),
    "new friends": ("the author became a friend less than 14 days ago",
                    lambda x: (x["is_friend"] > 0) & (x["friendship_days"] < 14)),
    "new posts": ("the post is less than 6 hours old", lambda x: x["post_age_hours"] < 6),
    "old friends": ("a friend for more than 180 days with whom there was no contact for 14 days",
                    lambda x: (x["is_friend"] > 0) & (x["friendship_days"] > 180) & (x["tie_days_since_contact"] > 14)),
    "weak ties": ("a friend with less than one contact, recent ones counting most",
                  lambda x: (x["is_friend"] > 0) & (x["contacts_both_ways"] < 1)),
    "not friends": ("the author is no friend", lambda x: x["is_friend"] == 0),
}  # fmt: skip
"""Slice -> what it means, and the mask (N,) from features as of the request."""
FEATURES = ("viewer_tenure_days", "is_friend", "friendship_days", "post_age_hours", "tie_days_since_contact",
            "tie_contacts_14d", "back_contacts_14d")  # fmt: skip


def slice_masks(features: Mapping[str, np.ndarray], position_N: np.ndarray) -> dict[str, np.ndarray]:
    """Slice -> mask (N,): those of `SLICES`, then each of the first `POSITIONS` positions (called by its number from 1) and
    all below them together."""
    columns = dict(features) | {"contacts_both_ways": features["tie_contacts_14d"] + features["back_contacts_14d"]}
    masks = {name: rule(columns) for name, (_, rule) in SLICES.items()}
    last = int(position_N.max()) if len(position_N) else -1
    masks |= {f"position {k + 1}": position_N == k for k in range(min(last + 1, POSITIONS))}
    return masks | ({f"position {POSITIONS + 1} and below": position_N >= POSITIONS} if last >= POSITIONS else {})


def sliced_metrics(masks: Mapping[str, np.ndarray], label_N: np.ndarray, probability_N: np.ndarray, viewer_N: np.ndarray,
                   request_N: np.ndarray, post_id_N: np.ndarray, *, k: int = 8, few: int = 3) -> dict[str, dict[str, Any]]:  # fmt: skip
    """`task_metrics` of every slice. With fewer than `MIN_POSITIVES` positives there is only the count: one of them would
    decide the figure. A slice with one post a request has no order, so it has no metrics of order."""
    found = {}
    for name, mask_N in masks.items():
        label, positives = label_N[mask_N], int(np.sum(label_N[mask_N] > 0))
        if positives < MIN_POSITIVES:
            found[name] = {"impressions": len(label), "positives": positives}
            continue
        columns = (column[mask_N] for column in (viewer_N, request_N, post_id_N))
        found[name] = task_metrics(label, probability_N[mask_N], *columns, k=k, few=few)
        one_a_request = len(np.unique(request_N[mask_N])) == len(label)
        for metric in ("reliability", *((f"ndcg@{k}", "mrr", f"recall@{few}") if one_a_request else ())):
            del found[name][metric]
    return found
