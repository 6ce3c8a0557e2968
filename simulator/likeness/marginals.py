"""A log's marginals, and how far those of a simulated log lie from them.

Two kinds: rates by class (looks by position, acts by tie strength) and distributions. Rates are compared by the mean
difference over the log's own classes; shares of classes by total variation; quantities by the Wasserstein distance.

Shapes: B bins or classes, N values, I impressions.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import wasserstein_distance

from contracts.clock import DAY, HOUR
from contracts.tables import POST_KINDS, VISIBILITIES
from contracts.tasks import TASK_NAMES
from simulator.likeness.log import LoggedLog
from simulator.likeness.populations import degrees
from simulator.likeness.ties import CONTACT_GROUPS, MUTUAL_GROUPS, contact_groups, mutual_groups

AGE_EDGES_HOURS = (2, 8, 24, 48, 96)
AGE_GROUPS = ("under 2 h", "2 to 8 h", "8 to 24 h", "1 to 2 days", "2 to 4 days", "4 days or more")
MOST_TOPICS = 24


@dataclass(frozen=True)
class Marginal:
    """`value_B`: rates or shares by label. `weight_B`: trials behind rates. `sample_N`: the quantity itself, if it is one."""

    unit: str
    labels: tuple[str, ...]
    value_B: np.ndarray
    weight_B: np.ndarray | None = None
    sample_N: np.ndarray | None = None


def _shares(labels: tuple[str, ...], code_N: np.ndarray, unit: str) -> Marginal:
    counts_B = np.bincount(code_N, minlength=len(labels))
    return Marginal(unit, labels, counts_B / max(counts_B.sum(), 1))


def _rates(labels: tuple[str, ...], class_I: np.ndarray, acted_I: np.ndarray, unit: str) -> Marginal:
    trials_B = np.bincount(class_I, minlength=len(labels))
    return Marginal(
        unit, labels, np.bincount(class_I, acted_I, minlength=len(labels)) / np.maximum(trials_B, 1), trials_B
    )


def _quantity(sample_N: np.ndarray, edges: tuple[float, ...], unit: str) -> Marginal:
    labels = (
        f"under {edges[0]:g}",
        *(f"{low:g} to {high:g}" for low, high in pairwise(edges)),
        f"{edges[-1]:g} or more",
    )
    counts_B = np.bincount(np.searchsorted(edges, sample_N, side="right"), minlength=len(labels))
    return Marginal(unit, labels, counts_B / max(len(sample_N), 1), sample_N=np.asarray(sample_N, np.float64))


def marginals(log: LoggedLog) -> dict[str, Marginal]:
    """Name -> marginal of whatever the log holds."""
    hours = tuple(f"{hour}:00" for hour in range(24))
    days_U = np.maximum((log.dataset.end - np.maximum(log.registered_at_U, log.dataset.start)) / DAY, 1.0)
    posts_U = np.bincount(log.author_P, minlength=log.users) / days_U
    topics = np.sort(np.unique(log.topic_P, return_counts=True)[1])[::-1]
    ranks = np.concatenate([topics[:MOST_TOPICS], [topics[MOST_TOPICS:].sum()]])
    ranks = np.pad(ranks, (0, MOST_TOPICS + 1 - len(ranks)))
    found = {
        "friends per person": _quantity(
            degrees(log.users, log.user_E, log.friend_E), (1, 2, 5, 10, 20, 40, 80, 160), "friends"
        ),
        "posts per author": _quantity(posts_U, (0.01, 0.1, 0.25, 0.5, 1, 2, 4), "posts per person and day"),
        "kinds of posts": _shares(POST_KINDS, log.kind_P, "share of posts"),
        "visibility of posts": _shares(VISIBILITIES, log.visibility_P, "share of posts"),
        "topics by rank": Marginal(
            "share of posts", (*(f"no. {rank + 1}" for rank in range(MOST_TOPICS)), "the rest"), ranks / ranks.sum()
        ),
    }  # fmt: skip
    if not log.hours_made_up:
        found["posts by hour"] = _shares(hours, log.created_at_P % DAY // HOUR, "share of posts")
    if len(log.session_user_S):
        found |= _sessions(log, hours, days_U)
    if log.impressions is not None:
        found |= _feeds(log)
    return found


def _sessions(log: LoggedLog, hours: tuple[str, ...], days_U: np.ndarray) -> dict[str, Marginal]:
    order_S = np.lexsort((log.session_at_S, log.session_user_S))
    at_S, user_S = log.session_at_S[order_S], log.session_user_S[order_S]
    gap_hours = (np.diff(at_S) / HOUR)[np.diff(user_S) == 0]
    visits_U = np.bincount(log.session_user_S, minlength=log.users) / days_U
    return {
        "sessions by hour": _shares(hours, at_S % DAY // HOUR, "share of sessions"),
        "time between sessions": _quantity(gap_hours, (1, 6, 12, 24, 48, 96, 168), "hours"),
        "sessions per person": _quantity(visits_U, (0.05, 0.1, 0.25, 0.5, 1, 2, 4), "sessions per person and day"),
        "requests per session": _quantity(log.session_requests_S, (2, 3, 4, 5), "requests"),
    }


def _feeds(log: LoggedLog) -> dict[str, Marginal]:
    shown = log.impressions
    assert shown is not None
    looked_I = shown.viewed_I
    age_I = (shown.shown_at_I - log.created_at_P[shown.post_I])[looked_I] / HOUR
    by = {
        "tie strength": (CONTACT_GROUPS, contact_groups(log, shown)[looked_I]),
        "mutual friends": (MUTUAL_GROUPS, mutual_groups(log, shown)[looked_I]),
        "age of the post": (AGE_GROUPS, np.searchsorted(AGE_EDGES_HOURS, age_I, side="right")),
    }
    positions = int(shown.position_I.max()) + 1
    found = {
        "slate size": _quantity(np.bincount(shown.request_I), (1, 2, 4, 8, 12, 20, 40), "posts"),
    }
    if "viewed_ms" not in log.absent:
        labels = tuple(f"position {k}" for k in range(positions))
        found["examination by position"] = _rates(labels, shown.position_I, looked_I, "share looked at")
    for a, task in enumerate(TASK_NAMES):
        for name, (labels, class_I) in by.items():
            found[f"{task} by {name}"] = _rates(labels, class_I, shown.acted_IA[looked_I, a], f"{task}s per look")
    return found


def compare(logged: dict[str, Marginal], simulated: dict[str, Marginal]) -> list[dict]:
    """One record per marginal that both logs have, the farthest first.

    `distance` has the unit `unit`; `relative` is it over the log's own mean (total variation as it is), which orders them.
    """
    records = []
    for name in logged.keys() & simulated.keys():
        ours, theirs = logged[name], simulated[name]
        labels = ours.labels if len(ours.labels) >= len(theirs.labels) else theirs.labels
        a_B, b_B = (np.pad(one.value_B, (0, len(labels) - len(one.value_B))) for one in (ours, theirs))
        measure, unit = "total variation", "share"
        distance = relative = float(np.abs(a_B - b_B).sum() / 2)
        if ours.weight_B is not None:
            weight_B = np.pad(ours.weight_B, (0, len(labels) - len(ours.weight_B))) / max(ours.weight_B.sum(), 1)
            measure, unit = "mean difference", ours.unit
            distance = float(weight_B @ np.abs(a_B - b_B))
            relative = distance / max(float(weight_B @ a_B), 1e-12) if distance else 0.0
        elif ours.sample_N is not None and theirs.sample_N is not None:
            if not len(ours.sample_N) or not len(theirs.sample_N):
                continue
            measure, unit = "Wasserstein", ours.unit
            distance = float(wasserstein_distance(ours.sample_N, theirs.sample_N))
            relative = distance / max(float(ours.sample_N.mean()), 1e-12) if distance else 0.0
        records.append({
            "name": name, "measure": measure, "distance": distance, "unit": unit, "relative": relative,
            "value_unit": ours.unit if ours.sample_N is None else f"share, by {ours.unit}",
            "labels": list(labels), "logged": a_B.tolist(), "simulated": b_B.tolist(),
        })  # fmt: skip
    return sorted(records, key=lambda one: (-one["relative"], one["name"]))
