"""Intervals for off-policy estimates: requests of one viewer hang together, so whole viewers are resampled.

Shapes: R requests, K positions, V viewers, B resamples.
"""

import numpy as np
from scipy import special

from simulator.evaluation.estimators import Terms, column_sums, combine, value


def viewer_index(viewer_R: np.ndarray) -> tuple[np.ndarray | None, int]:
    """Index (R,) of each request's viewer in sorted order of id, None where that is 0, 1, 2, ..., and how many there are."""
    if np.all(viewer_R[1:] > viewer_R[:-1]):
        return None, len(viewer_R)
    ids, index_R = np.unique(viewer_R, return_inverse=True)
    return index_R, len(ids)


def viewer_sums(part_R: np.ndarray, index_R: np.ndarray | None, viewers: int) -> np.ndarray:
    """Sum of `part_R` over the requests of each viewer, float64 (V,)."""
    part_R = np.asarray(part_R, np.float64)
    return part_R if index_R is None else np.bincount(index_R, weights=part_R, minlength=viewers)


def viewer_counts(viewer_R: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """How often each viewer (in sorted order of id) comes in each resample, (B, V); the same draw serves all policies.

    One draw for all policies makes their differences paired.
    """
    _, viewers = viewer_index(viewer_R)
    return generator.multinomial(viewers, np.full(viewers, 1.0 / viewers), size=resamples).astype(np.float64)


def replicates(terms: Terms, viewer_R: np.ndarray, counts_BV: np.ndarray) -> np.ndarray:
    """The estimate in each resample (B,). Self-normalised estimators renormalise in each; NaN where a position lost
    all its weight."""
    index_R, viewers = viewer_index(viewer_R)
    requests_V = viewer_sums(np.ones(len(viewer_R)), index_R, viewers)
    plain_V = viewer_sums(terms.plain_RK.sum(axis=1), index_R, viewers)
    weighted_BK, weight_BK, shown_BK = (
        counts_BV @ np.stack([viewer_sums(part_R, index_R, viewers) for part_R in part_RK.T], axis=1)
        for part_RK in (terms.weighted_RK, terms.weight_RK, terms.shown_RK)
    )
    requests_B = np.maximum(counts_BV @ requests_V, 1.0)
    return combine((counts_BV @ plain_V)[:, None], weighted_BK, weight_BK, shown_BK, requests_B, terms.self_normalised)


def percentile_interval(replicates_B: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of the bootstrap distribution; resamples without an estimate are left out."""
    kept = replicates_B[np.isfinite(replicates_B)]
    if len(kept) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def viewer_influence(terms: Terms, viewer_R: np.ndarray) -> np.ndarray:
    """What each viewer (in sorted order of id) adds to the error of the estimate, linearised, (V,): they sum to 0."""
    influence_R = terms.plain_RK.sum(axis=1)
    if terms.self_normalised:
        shown_K, weight_K = column_sums(terms.shown_RK), column_sums(terms.weight_RK)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio_K = np.where(shown_K > 0, column_sums(terms.weighted_RK) / weight_K, 0.0)
            correction_RK = shown_K / weight_K * (terms.weighted_RK - ratio_K * terms.weight_RK)
        influence_R = influence_R + np.where(shown_K > 0, correction_RK + ratio_K * terms.shown_RK, 0.0).sum(axis=1)
    else:
        influence_R = influence_R + terms.weighted_RK.sum(axis=1)
    return viewer_sums(influence_R - value(terms), *viewer_index(viewer_R)) / len(viewer_R)


def standard_error(influence_V: np.ndarray) -> float:
    """Standard error of an estimate, or of the difference of two, from the influence of its viewers (Liang and Zeger 1986)."""
    viewers = len(influence_V)
    return float(np.sqrt(viewers / (viewers - 1) * np.sum(influence_V**2))) if viewers > 1 else float("nan")


def student_interval(terms: Terms, viewer_R: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student interval from the linearised influence of each viewer, V - 1 degrees of freedom."""
    influence_V, centre = viewer_influence(terms, viewer_R), value(terms)
    if len(influence_V) < 2:
        return float("nan"), float("nan")
    half = special.stdtrit(len(influence_V) - 1, (1 + level) / 2) * standard_error(influence_V)
    return float(centre - half), float(centre + half)


def bernstein_interval(
    terms: Terms, viewer_R: np.ndarray, level: float = 0.95, spread: float | None = None
) -> tuple[float, float]:
    """Empirical Bernstein interval over viewers (Maurer and Pontil 2009): holds at any number of viewers, and is wide.

    `spread`: the most by which what one viewer adds (times V) can differ from another's. Without it the observed spread is
    taken, and the promise is only as good as that.
    """
    scaled_V = viewer_influence(terms, viewer_R)
    scaled_V, centre, viewers = scaled_V * len(scaled_V), value(terms), len(scaled_V)
    if viewers < 2:
        return float("nan"), float("nan")
    spread = float(scaled_V.max() - scaled_V.min()) if spread is None else spread
    nats = np.log(4 / (1 - level))
    half = np.sqrt(2 * scaled_V.var(ddof=1) * nats / viewers) + 7 * spread * nats / (3 * (viewers - 1))
    return float(centre - half), float(centre + half)
