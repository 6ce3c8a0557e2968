"""What every column of the lake's tables is expected to hold, checked with Spark; a day that breaks it is kept out."""

from pipelines.expectations.check import ExpectationSettings, keep_out_broken_days

__all__ = ["ExpectationSettings", "keep_out_broken_days"]
