"""Likeness: the environment's parameters fitted to a given log, and a simulated log held against it."""

from simulator.likeness.fit import fit_log
from simulator.likeness.imitate import imitate, open_log
from simulator.likeness.log import lake_at, read_log
from simulator.likeness.report import print_marginals, write_report

__all__ = ["fit_log", "imitate", "lake_at", "open_log", "print_marginals", "read_log", "write_report"]
