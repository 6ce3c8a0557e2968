"""This module's parallelism beside PyTorch's own on one model: the parts of `python -m benchmarks.distributed`."""
