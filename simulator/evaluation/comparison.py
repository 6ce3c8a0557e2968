"""Which of several policies beats the baseline, with the luck of having tried several taken out.

Shapes: V viewers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from scipy import special

from simulator.evaluation.estimators import Terms, value
from simulator.evaluation.intervals import standard_error, viewer_influence


@dataclass(frozen=True)
class Comparison:
    """One policy against the baseline on the same requests: paired difference with its interval, two-sided p value, and
    the p value after Holm's correction for the number of policies compared."""

    difference: float
    low: float
    high: float
    p: float
    p_holm: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def compare(
    policies: Mapping[str, Terms], baseline: Terms, viewer_R: np.ndarray, level: float = 0.95
) -> dict[str, Comparison]:
    """Each policy against `baseline`, paired by viewer: the same viewers' influence on both cancels.

    Student intervals at `level` for each difference alone; `p_holm` holds for all of them together (Holm 1979). A policy
    whose every viewer gains as under the baseline has p = 1.
    """
    base_V, base = viewer_influence(baseline, viewer_R), value(baseline)
    names, freedom = list(policies), len(base_V) - 1
    difference_N = np.array([value(policies[name]) - base for name in names])
    error_N = np.array([standard_error(viewer_influence(policies[name], viewer_R) - base_V) for name in names])
    with np.errstate(divide="ignore", invalid="ignore"):
        p_N = np.where(error_N > 0, 2 * special.stdtr(freedom, -np.abs(difference_N) / error_N), difference_N == 0)
    half_N = special.stdtrit(freedom, (1 + level) / 2) * error_N
    adjusted_N = holm(p_N)
    return {
        name: Comparison(*(float(x) for x in row))
        for name, *row in zip(names, difference_N, difference_N - half_N, difference_N + half_N, p_N, adjusted_N)
    }


def holm(p_N: np.ndarray) -> np.ndarray:
    """p values (N,) such that rejecting those below alpha errs anywhere with chance alpha at most. Holm 1979."""
    order = np.argsort(p_N, kind="stable")
    stepped_N = np.maximum.accumulate(p_N[order] * (len(p_N) - np.arange(len(p_N))))
    adjusted_N = np.empty(len(p_N))
    adjusted_N[order] = np.minimum(stepped_N, 1.0)
    return adjusted_N
