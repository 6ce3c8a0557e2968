"""Evaluation: off-policy estimators with honest intervals, overlap diagnostics, ranking metrics. Numpy arrays in, numbers out."""

from simulator.evaluation.comparison import Comparison, compare, holm
from simulator.evaluation.diagnostics import Overlap, overlap, propensity_check
from simulator.evaluation.estimators import ESTIMATORS, Terms, value
from simulator.evaluation.intervals import (
    bernstein_interval,
    percentile_interval,
    replicates,
    student_interval,
    viewer_counts,
)
from simulator.evaluation.logged_data import LoggedData, Target
from simulator.evaluation.shrinkage import FAMILIES, Family, Tuned, slope
from simulator.evaluation.slates import SLATE_ESTIMATORS
from simulator.evaluation.streaming import bootstrap

__all__ = [
    "ESTIMATORS", "FAMILIES", "SLATE_ESTIMATORS", "Comparison", "Family", "LoggedData", "Overlap", "Target", "Terms",
    "Tuned", "bernstein_interval", "bootstrap", "compare", "holm", "overlap", "percentile_interval", "propensity_check",
    "replicates", "slope", "student_interval", "value", "viewer_counts",
]  # fmt: skip
