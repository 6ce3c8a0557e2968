"""Learned tie strength: the probability that a person contacts a friend within the next week, as of set moments.

`build_strength` is the front door: rows by Spark, LightGBM on earlier closed weeks, judged on held-out weeks.
"""

from pipelines.strength.build import build_strength
from pipelines.strength.settings import StrengthSettings

__all__ = ["StrengthSettings", "build_strength"]
