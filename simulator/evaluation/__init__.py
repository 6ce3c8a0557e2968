"""Evaluation: off-policy estimators with honest intervals, overlap diagnostics, ranking metrics. Numpy arrays in, numbers out."""

from simulator.evaluation.diagnostics import Overlap, overlap, propensity_check
from simulator.evaluation.estimators import ESTIMATORS, Terms, value
from simulator.evaluation.intervals import percentile_interval, replicates, student_interval, viewer_counts
from simulator.evaluation.logged_data import LoggedData, Target

__all__ = [
    "ESTIMATORS", "LoggedData", "Overlap", "Target", "Terms", "overlap", "percentile_interval", "propensity_check",
    "replicates", "student_interval", "value", "viewer_counts",
]  # fmt: skip
