"""Samples: one row per impression, features as of its request, labels from closed attribution windows."""

from pipelines.samples.build import build_samples

__all__ = ["build_samples"]
