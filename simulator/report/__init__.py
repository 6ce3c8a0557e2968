"""Reports: one replay as JSON for machines, as one self-contained page for people, and as a table in the terminal."""

from simulator.report.document import write_report
from simulator.report.terminal import print_policies

__all__ = ["print_policies", "write_report"]
