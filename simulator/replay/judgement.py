"""Each policy's slates against the log: estimates with intervals, gains over the baseline, truth where it is known.

Shapes: R requests, K positions, P pool entries of all requests, B resamples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.errors import BadInput
from simulator.evaluation import (
    LoggedData,
    Target,
    Terms,
    compare,
    overlap,
    percentile_interval,
    replicates,
    student_interval,
    value,
    viewer_counts,
)
from simulator.evaluation.estimators import ESTIMATORS, clipped_ips, pbm, snips
from simulator.replay.evidence import Evidence
from simulator.replay.settings import ReplaySettings
from simulator.replay.window import Window

ASSUMPTION = (
    "Estimates assume that the reward at a position depends on the post there and on the position, not on the other posts "
    "of the slate (pbm and pbm_dr also that position decides only whether a post is looked at); what a slate's posts do to "
    "each other is missing from every estimate, and with it from its interval."
)


def headline_of(log: LoggedData) -> str:
    """The estimator that decides: by exposure where the log allows it, since it needs far fewer requests."""
    return "dr" if log.exposure_RK is None else "pbm_dr"


def estimators_for(log: LoggedData) -> dict[str, Callable[[LoggedData, Target], Terms]]:
    """Those that the log has the means for."""
    return {name: one for name, one in ESTIMATORS.items() if log.exposure_RK is not None or not name.startswith("pbm")}


@dataclass(frozen=True)
class PolicySlates:
    """What one policy shows at the window's requests: `slate_RK` post ids, -1 empty; None for the uniform random policy.

    `score_P` orders the whole pool by the policy before reranking, for NDCG; None where the policy has no order.
    """

    name: str
    description: str
    slate_RK: np.ndarray | None
    score_P: np.ndarray | None = None


@dataclass(frozen=True)
class Judged:
    """One policy's part of the report, and behind its gains the resampled headline values (B,) and the headline's terms;
    None when refused."""

    entry: dict[str, Any]
    headline_B: np.ndarray | None
    headline: Terms | None


def judge(
    policies: list[PolicySlates],
    evidence: Evidence,
    settings: ReplaySettings,
    baseline: str,
    decisive: str | None = None,
) -> list[dict[str, Any]]:
    """One report entry per policy; the gain of each over `baseline` is paired, since all share the resamples.

    `decisive` names the estimator of the headline; `BadInput` when this log lacks the means for it.
    `p_holm` of a gain is its p value after Holm's correction for the number of policies that are compared here."""
    decisive = decisive or headline_of(evidence.log)
    if decisive not in estimators_for(evidence.log):
        raise BadInput(
            f"{decisive} needs the whole logging distribution, which these propensities do not give away; "
            f"this log has the means for {', '.join(estimators_for(evidence.log))}"
        )
    generator = np.random.default_rng(settings.seed)
    counts_BV = viewer_counts(evidence.log.viewer_R, settings.resamples, generator)
    judged = {policy.name: _judge_one(policy, evidence, counts_BV, settings, decisive) for policy in policies}
    for one in judged.values():
        one.entry["gain"] = _gain(one, judged[baseline], settings.level)
    base = judged[baseline].headline
    others = {name: one.headline for name, one in judged.items() if one.headline is not None and name != baseline}
    if base is not None and others:
        for name, compared in compare(others, base, evidence.log.viewer_R, settings.level).items():
            judged[name].entry["gain"] |= {"p": compared.p, "p_holm": compared.p_holm}
    return [one.entry for one in judged.values()]


def logged_value(window: Window, settings: ReplaySettings) -> dict[str, float]:
    """The mean reward per request of the log itself, with its interval."""
    zero = np.zeros_like(window.reward_RK)
    terms = Terms(window.reward_RK, zero, zero, window.shown_RK, False)
    low, high = student_interval(terms, window.viewer_R, settings.level)
    return {"value": value(terms), "low": low, "high": high}


def _judge_one(
    policy: PolicySlates, evidence: Evidence, counts_BV: np.ndarray, settings: ReplaySettings, decisive: str
) -> Judged:
    log, target = evidence.log, evidence.target(policy.slate_RK)
    seen = overlap(log, target)
    entry: dict[str, Any] = {
        "name": policy.name, "description": policy.description, "overlap": seen.as_dict(), "refusal": seen.refusal,
        "estimates": {}, "headline": None, "by_task": {}, "gain": None, "truth": None, "covered": None, "ndcg": None,
    }  # fmt: skip
    if seen.refusal:
        return Judged(entry, None, None)
    headline_B, headline = None, None
    for name, estimator in estimators_for(log).items():
        terms = clipped_ips(log, target, settings.clip) if name == "clipped_ips" else estimator(log, target)
        resampled_B = replicates(terms, log.viewer_R, counts_BV)
        entry["estimates"][name] = _estimate(terms, resampled_B, log, settings.level)
        if name == decisive:
            headline_B, headline = resampled_B, terms
            entry["headline"] = {"estimator": name, **entry["estimates"][name]}
    for task, reward_RK in log.task_reward_RK.items():
        if reward_RK.any():
            terms = (snips if log.exposure_RK is None else pbm)(log.task(task), target)
            entry["by_task"][task] = _estimate(terms, replicates(terms, log.viewer_R, counts_BV), log, settings.level)
    return Judged(entry, headline_B, headline)


def _estimate(terms: Terms, resampled_B: np.ndarray, log: LoggedData, level: float) -> dict[str, float]:
    low, high = percentile_interval(resampled_B, level)
    student_low, student_high = student_interval(terms, log.viewer_R, level)
    return {"value": value(terms), "low": low, "high": high, "student_low": student_low, "student_high": student_high}


def _gain(one: Judged, base: Judged, level: float) -> dict[str, float | None] | None:
    if one.headline_B is None or base.headline_B is None or one is base:
        return None
    difference = one.entry["headline"]["value"] - base.entry["headline"]["value"]
    low, high = percentile_interval(one.headline_B - base.headline_B, level)
    base_value = base.entry["headline"]["value"]
    return {
        "value": difference,
        "low": low,
        "high": high,
        "relative": difference / base_value if base_value > 0 else None,
    }
