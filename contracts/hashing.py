"""A fixed hash of ids, for choices that must not depend on what else is in a log: folds, subsamples, moments in a day."""

import numpy as np


def splitmix64(ids_N: np.ndarray) -> np.ndarray:
    """Splitmix64 of int64 or uint64 ids, uint64 (N,) (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        x = ids_N.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
