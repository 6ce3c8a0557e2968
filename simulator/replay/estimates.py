"""One policy by every estimator that the log has the means for, each with intervals and its own diagnostics, or a sentence.

Shapes: R requests, K positions, V viewers, B resamples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from simulator.evaluation import (
    ESTIMATORS,
    FAMILIES,
    SLATE_ESTIMATORS,
    LoggedData,
    Overlap,
    Target,
    Terms,
    bernstein_interval,
    percentile_interval,
    replicates,
    slope,
    student_interval,
    value,
)
from simulator.evaluation.estimators import ips

GROUPS = {
    "by position": ("ips", "clipped_ips", "snips", "dm", "dr", "sndr", "clipped_dr", "switch_dr", "dros", "sg_ips", "sg_dr"),
    "by exposure": ("pbm", "pbm_dr"),
    "by slate": ("replay", "sips", "snsips", "rips", "snrips", "cascade_dr", "sncascade_dr"),
}  # fmt: skip
"""What an estimator weighs: a post at its position, a post wherever it may be seen, or posts together."""
NAMES = tuple(name for names in GROUPS.values() for name in names)
WITHOUT_WEIGHTS = ("dm",)
MIN_EFFECTIVE = 5.0


@dataclass(frozen=True)
class Estimated:
    """`found`: name -> figures for JSON; `refused`: name -> why there is none; `terms`, `resampled` (B,) of those found."""

    found: dict[str, dict[str, float]]
    refused: dict[str, str]
    terms: dict[str, Terms]
    resampled: dict[str, np.ndarray]


def estimate_all(log: LoggedData, target: Target, seen: Overlap, counts_BV: np.ndarray, level: float) -> Estimated:
    """Every estimator of `NAMES`; one whose weights leave fewer than `MIN_EFFECTIVE` effective samples is refused."""
    every: dict[str, dict] = {"found": {}, "refused": {}, "terms": {}, "resampled": {}}
    for name in NAMES:
        why = missing_means(name, log) or (
            seen.support_refusal if name not in SLATE_ESTIMATORS else seen.outside_refusal
        )
        if why is None:
            try:
                terms, knob = _terms(name, log, target)
            except ValueError as error:
                why = f"no estimate: {error}"
            else:
                # A shrunk weight says nothing of overlap: what SLOPE shrinks is judged by the weights before.
                why = (
                    None if name in WITHOUT_WEIGHTS else too_few(ips(log, target) if name in FAMILIES else terms, name)
                )
        if why is not None:
            every["refused"][name] = why
            continue
        resampled_B = replicates(terms, log.viewer_R, counts_BV)
        every["terms"][name], every["resampled"][name] = terms, resampled_B
        every["found"][name] = figures(terms, resampled_B, log, level, name) | (
            {} if knob is None else {"hyperparameter": knob}
        )
    return Estimated(**every)


def missing_means(name: str, log: LoggedData) -> str | None:
    """Why this log can never feed the estimator, whatever the policy; None when it can."""
    if name in GROUPS["by exposure"] and log.exposure_RK is None:
        return "no estimate: it needs the chance of each post at every position, and these propensities give away only what was shown"
    if name in GROUPS["by slate"] and log.prefix_propensity_RK is None:
        return (
            "no estimate: it needs the chance of a whole slate, and these propensities give away only single positions"
        )
    if name == "replay":
        return _uneven(log)
    return None


def figures(terms: Terms, resampled_B: np.ndarray, log: LoggedData, level: float, name: str) -> dict[str, float]:
    """Value, bootstrap, Student and empirical Bernstein intervals of estimator `name`, and how much of the log stands
    behind them."""
    low, high = percentile_interval(resampled_B, level)
    student_low, student_high = student_interval(terms, log.viewer_R, level)
    bernstein_low, bernstein_high = bernstein_interval(terms, log.viewer_R, level)
    found = {"value": value(terms), "low": low, "high": high, "student_low": student_low, "student_high": student_high,
             "bernstein_low": bernstein_low, "bernstein_high": bernstein_high}  # fmt: skip
    if not terms.weight_RK.any():
        return found
    return found | {"effective_samples": float(_effective(terms, name).min()), "largest_weight": float(terms.weight_RK.max()),
                    "mean_weight": float(terms.weight_RK[terms.shown_RK].mean())}  # fmt: skip


def too_few(terms: Terms, name: str) -> str | None:
    """The sentence where the weights leave too few effective samples in some column; None where they do not."""
    effective_K = _effective(terms, name)
    if effective_K.min() >= MIN_EFFECTIVE:
        return None
    return (
        f"no estimate: its weights leave {effective_K.min():.1f} effective samples, fewer than {MIN_EFFECTIVE:g}; "
        "a longer log or more exploration is needed"
    )


def _effective(terms: Terms, name: str) -> np.ndarray:
    """(sum w)^2 / sum w^2 by position, or of all impressions together where a post speaks for every position."""
    weight_RK, shown_RK = terms.weight_RK, terms.shown_RK
    if name in GROUPS["by exposure"]:
        weight_RK, shown_RK = weight_RK.reshape(-1, 1), shown_RK.reshape(-1, 1)
    sums_K, squares_K = weight_RK.sum(axis=0), (weight_RK**2).sum(axis=0)
    effective_K = np.where(squares_K > 0, sums_K**2 / np.where(squares_K > 0, squares_K, 1.0), 0.0)
    return effective_K[shown_RK.any(axis=0)]


def _terms(name: str, log: LoggedData, target: Target) -> tuple[Terms, float | None]:
    if name in FAMILIES:
        tuned = slope(FAMILIES[name], log, target)
        # JSON has no infinity; it stands for weights that are left as they are.
        return tuned.terms, tuned.hyperparameter if np.isfinite(tuned.hyperparameter) else None
    plain: Mapping[str, Callable[[LoggedData, Target], Terms]] = {**ESTIMATORS, **SLATE_ESTIMATORS}
    return partial(plain[name], log, target)(), None


def _uneven(log: LoggedData) -> str | None:
    """Why a log whose slates were not equally likely cannot be replayed by rejection."""
    even_RK = 1.0 / np.maximum(log.pool_R, 1)[:, None]
    uneven_RK = log.shown_RK & ~np.isclose(log.propensity_RK, even_RK, rtol=1e-6)
    if not uneven_RK.any():
        return None
    return (
        "no estimate: rejection is fair only where all slates were equally likely, and "
        f"{uneven_RK.sum() / max(log.shown_RK.sum(), 1):.0%} of these impressions were not shown at random"
    )
