"""The planner: which parallel layout, how much memory, how many bytes, how fast, before an accelerator is rented.

A calculator over descriptions: it starts no process and needs no accelerator.
"""

from distributed.planner.descriptions import load_model
from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimate, Estimator
from distributed.planner.layout import Layout, parse_layout
from distributed.planner.machines import Cluster, load_cluster
from distributed.planner.models import Model

__all__ = [
    "Cluster", "Estimate", "Estimator", "Layout", "Model", "PlanError", "load_cluster", "load_model", "parse_layout",
]  # fmt: skip
