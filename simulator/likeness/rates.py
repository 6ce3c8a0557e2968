"""Action rates as the log has them, by tie strength and by age of the post, and the usual time between two sessions.

These are the log's own figures, with intervals that allow for people who act more than others; `levels` and `ages` turn
them into parameters.

Shapes: I impressions, C classes, A tasks, G groups of viewers.
"""

import numpy as np

from contracts.clock import HOUR
from contracts.tasks import TASK_NAMES
from simulator.likeness.estimates import Estimate, Fit, groups_of, jackknife, jackknife_of_sums, sums_by_group
from simulator.likeness.log import LoggedLog
from simulator.likeness.marginals import AGE_EDGES_HOURS, AGE_GROUPS
from simulator.likeness.ties import CONTACT_GROUPS, contact_groups

FEWEST_LOOKS = 50


def fit_rates(log: LoggedLog, fit: Fit) -> None:
    """Adds acts per look of every task, by class of the pair and by class of age; classes of few looks are left out."""
    shown = log.impressions
    if shown is None:
        fit.not_fitted["rates by tie strength and age"] = log.absent["impressions"]
        return
    looked_I = shown.viewed_I
    age_I = (shown.shown_at_I - log.created_at_P[shown.post_I]) / HOUR
    classes_I = {
        CONTACT_GROUPS: contact_groups(log, shown)[looked_I],
        AGE_GROUPS: np.searchsorted(AGE_EDGES_HOURS, age_I, side="right")[looked_I],
    }
    group_I, acted_IA = groups_of(shown.viewer_I[looked_I]), shown.acted_IA[looked_I]
    per = "look" if "viewed_ms" not in log.absent else "impression"
    for labels, class_I in classes_I.items():
        looks_GC = sums_by_group(group_I, class_I, len(labels))
        acts_GAC = [sums_by_group(group_I, class_I, len(labels), acted_I) for acted_I in acted_IA.T]

        def rates(sums_X: np.ndarray, size: int = len(labels)) -> np.ndarray:
            looks_C, acts_AC = sums_X[:size], sums_X[size:].reshape(-1, size)
            return (acts_AC / np.maximum(looks_C, 1)).ravel()

        value_X, reach_X = jackknife_of_sums(np.concatenate([looks_GC, *acts_GAC], axis=1), rates)
        looks_C = looks_GC.sum(axis=0)
        for a, task in enumerate(TASK_NAMES):
            for c, label in enumerate(labels):
                if looks_C[c] >= FEWEST_LOOKS:
                    at = a * len(labels) + c
                    low = max(value_X[at] - reach_X[at], 0.0)
                    fit.estimates[f"{task} rate: {label}"] = Estimate(
                        float(value_X[at]), float(low), float(value_X[at] + reach_X[at]), f"{task}s per {per}"
                    )


def fit_gaps(log: LoggedLog, fit: Fit) -> None:
    """Adds the median time from the beginning of a session to that of the next."""
    order_S = np.lexsort((log.session_at_S, log.session_user_S))
    user_S = log.session_user_S[order_S]
    same_S = np.diff(user_S) == 0
    gap_hours = np.diff(log.session_at_S[order_S])[same_S] / HOUR
    if not len(gap_hours):
        fit.not_fitted["time between sessions"] = log.absent.get("sessions", "nobody has two sessions")
        return
    value, reach = jackknife(user_S[1:][same_S], lambda kept_N: np.array([np.median(gap_hours[kept_N])]))
    fit.estimates["median time between sessions"] = Estimate.around(value[0], reach[0], "hours")
