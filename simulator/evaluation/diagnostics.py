"""Whether a log can answer for a policy at all: overlap, effective sample size, and whether the propensities are true.

Shapes: R requests, K positions.
"""

from dataclasses import asdict, dataclass

import numpy as np

from simulator.evaluation.estimators import exposure_weights, importance_weights
from simulator.evaluation.logged_data import LoggedData, Target

_MAX_DEVIATIONS = 5.0


@dataclass(frozen=True)
class Overlap:
    """How much of the log speaks about the target.

    `mean_weight`: of the importance weights of all shown impressions, 1 when the log can show all that the target shows;
    `unsupported_share`: how much that mean lacks of 1, an estimate of the share of the target's posts that the log never
    shows there; `effective_samples`: (sum w)^2 / sum w^2 of the impressions, at each position, or, where weights are by exposure, of
    all together; `matched_share`: impressions with weight above zero; `outside_share`: share of the target's slates that
    no logged pool held; `outside_refusal`, `support_refusal`: a sentence where posts lie outside the pools, or where
    propensities of single positions cannot answer, else None; `refusal`: the first reason why the log cannot answer.
    """

    impressions: int
    matched_share: float
    by_exposure: bool
    effective_samples_min: float
    effective_samples: tuple[float, ...]
    largest_weight: float
    mean_weight: float
    unsupported_share: float
    outside_share: float
    outside_refusal: str | None
    support_refusal: str | None
    refusal: str | None

    def as_dict(self) -> dict:
        """For JSON."""
        return {**asdict(self), "effective_samples": list(self.effective_samples)}


def overlap(log: LoggedData, target: Target, *, min_effective: float = 5.0, max_outside: float = 0.05,
            max_unsupported: float = 0.1) -> Overlap:  # fmt: skip
    """Overlap of `log` and `target`; `refusal` when a position (or, by exposure, the log) has fewer than `min_effective`
    effective samples, when more than `max_outside` of the target's posts lie outside the logged pools, or when importance
    weights average more than `max_unsupported` away from 1, and that is no chance: then some of what the target shows is
    never shown by the log, or the propensities are not true."""
    by_exposure = log.exposure_RK is not None and target.exposure_RK is not None
    single_RK = importance_weights(log, target)
    weight_RK = exposure_weights(log, target) if by_exposure else single_RK
    mean_weight, error = _mean_weight(single_RK, log.shown_RK)
    counted_RK, filled_K = (
        (weight_RK.reshape(-1, 1), np.array([True])) if by_exposure else (weight_RK, log.shown_RK.any(axis=0))
    )
    sums_K, squares_K = counted_RK.sum(axis=0), (counted_RK**2).sum(axis=0)
    effective_K = np.where(squares_K > 0, sums_K**2 / np.where(squares_K > 0, squares_K, 1.0), 0.0)[filled_K]
    outside = 0.0 if target.outside_R is None or log.requests == 0 else float(np.mean(target.outside_R))
    impressions = int(log.shown_RK.sum())
    outside_refusal = support_refusal = None
    if impressions == 0:
        outside_refusal = "no estimate: there is no impression to weigh"
    elif outside > max_outside:
        outside_refusal = (f"no estimate: {outside:.1%} of the posts that the policy shows lie outside the logged pools, "
                   f"more than {max_outside:.0%}, so the log cannot answer for them")  # fmt: skip
    elif abs(mean_weight - 1) > max(max_unsupported, _MAX_DEVIATIONS * error):
        why = "some of what the policy shows is never shown by this log, or" if mean_weight < 1 else "so"
        support_refusal = (f"no estimate: the importance weights average {mean_weight:.2f} and not 1, "
                           f"{abs(mean_weight - 1) / error:.0f} standard errors away; {why} the propensities are not true")  # fmt: skip
    too_few = None
    if impressions and effective_K.min() < min_effective:
        where = "" if by_exposure else f"at position {int(np.argmin(effective_K))} "
        too_few = (f"no estimate: {where}the log has {effective_K.min():.1f} effective samples for this policy, "
                   f"fewer than {min_effective:g}; a longer log or more exploration is needed")  # fmt: skip
    return Overlap(
        impressions=impressions,
        matched_share=float((weight_RK > 0).sum() / max(impressions, 1)),
        by_exposure=by_exposure,
        effective_samples_min=float(effective_K.min()) if impressions else 0.0,
        effective_samples=tuple(float(x) for x in effective_K),
        largest_weight=float(weight_RK.max()) if impressions else 0.0,
        mean_weight=mean_weight,
        unsupported_share=max(0.0, 1.0 - mean_weight),
        outside_share=outside,
        outside_refusal=outside_refusal,
        support_refusal=outside_refusal or support_refusal,
        refusal=outside_refusal or too_few or support_refusal,
    )


def _mean_weight(weight_RK: np.ndarray, shown_RK: np.ndarray) -> tuple[float, float]:
    """Mean weight of the impressions shown, and its standard error over requests."""
    counted_R = shown_RK.sum(axis=1)
    kept = counted_R > 0
    mean_R = weight_RK.sum(axis=1)[kept] / counted_R[kept]
    if len(mean_R) < 2:
        return float(mean_R.sum()), float("inf")
    return float(mean_R.mean()), max(float(mean_R.std(ddof=1) / np.sqrt(len(mean_R))), 1e-9)


def propensity_check(log: LoggedData, *, max_deviations: float = 5.0) -> dict:
    """Tests logged propensities against the pool: E[1 / propensity] is the number of posts with a chance at a position.

    So the mean over requests of (mean over positions of 1/p) / pool is 1 where every post of the pool has a chance, less
    where some have none, and never truly more than 1. Returns it with its standard error, `deviations` (standard errors
    from 1), `passed` (false only when it is more than `max_deviations` above 1, so that the propensities cannot be
    those of the policy that made the log), and a sentence.
    """
    ratio_RK = np.where(log.shown_RK, 1.0 / (log.propensity_RK * np.maximum(log.pool_R, 1)[:, None]), 0.0)
    counted_R = log.shown_RK.sum(axis=1)
    ratio_R = ratio_RK.sum(axis=1)[counted_R > 0] / counted_R[counted_R > 0]
    if len(ratio_R) < 2:
        return {"mean": None, "standard_error": None, "deviations": None, "passed": True,
                "sentence": "too few requests to check the propensities"}  # fmt: skip
    mean, error = float(ratio_R.mean()), max(float(ratio_R.std(ddof=1) / np.sqrt(len(ratio_R))), 1e-9)
    deviations = (mean - 1.0) / error
    passed = deviations <= max_deviations
    sentence = (
        f"inverse propensities add up to {mean:.3f} of the pool size, {abs(deviations):.1f} standard errors from 1"
    )
    if not passed:
        sentence += ": the logged propensities are not those of the policy that made this log"
    elif deviations < -max_deviations:
        sentence += ": some posts of the pools had no chance of being shown"
    else:
        sentence += ", as it should be"
    return {"mean": mean, "standard_error": error, "deviations": deviations, "passed": passed, "sentence": sentence}
