"""Whether the experts and heads of an MMoE each do something of their own: shares, entropy, correlation, warnings."""

from typing import Any

import numpy as np

from contracts.tasks import TASK_NAMES

_COLLAPSED = 0.95
_IDLE = 0.02
_SAME = 0.999


def gate_report(shares_NTE: np.ndarray, logits_NT: np.ndarray, tasks_T: np.ndarray) -> tuple[dict[str, Any], list[str]]:
    """Per learnt task the mean share of each expert and the gates' mean entropy (1: all experts alike, 0: one expert),
    and the largest correlation between two tasks' logits; with a warning for each collapse.

    shares (N, T, E) sum to 1 over E; logits (N, T).
    """
    learnt = np.flatnonzero(tasks_T)
    experts = shares_NTE.shape[2]
    entropy_NT = -(shares_NTE * np.log(np.maximum(shares_NTE, 1e-30))).sum(axis=2) / max(np.log(experts), 1e-30)
    share_TE = shares_NTE.mean(axis=0)
    report: dict[str, Any] = {
        "expert_share": {TASK_NAMES[t]: [round(float(share), 4) for share in share_TE[t]] for t in learnt},
        "gate_entropy": {TASK_NAMES[t]: round(float(entropy_NT[:, t].mean()), 4) for t in learnt},
    }
    warnings = []
    if experts > 1:
        for task in learnt:
            if share_TE[task].max() > _COLLAPSED:
                warnings.append(
                    f"the gate of {TASK_NAMES[task]} collapsed: {share_TE[task].max():.0%} of it goes to expert {share_TE[task].argmax()}"
                )
        for expert in np.flatnonzero(share_TE[learnt].max(axis=0) < _IDLE):
            warnings.append(f"expert {expert} is idle: no task gives it {_IDLE:.0%}")
    if len(learnt) > 1:
        correlation_TT = np.corrcoef(logits_NT[:, learnt].T)
        np.fill_diagonal(correlation_TT, -1.0)
        one, other = np.unravel_index(correlation_TT.argmax(), correlation_TT.shape)
        report["largest_task_correlation"] = round(float(correlation_TT[one, other]), 4)
        if correlation_TT[one, other] > _SAME:
            warnings.append(
                f"tasks {TASK_NAMES[learnt[one]]} and {TASK_NAMES[learnt[other]]} score alike: they share a head"
            )
    return report, warnings
