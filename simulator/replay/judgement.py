"""Each policy's slates against the log: estimates with intervals, gains over the baseline, truth where it is known.

Shapes: R requests, K positions, P pool entries of all requests, B resamples.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.errors import BadInput
from simulator.evaluation import (
    ESTIMATORS,
    LoggedData,
    Terms,
    compare,
    overlap,
    percentile_interval,
    replicates,
    student_interval,
    value,
    viewer_counts,
)
from simulator.replay.estimates import NAMES, estimate_all, figures, missing_means
from simulator.replay.evidence import Evidence
from simulator.replay.settings import ReplaySettings
from simulator.replay.window import Window

ASSUMPTION = (
    "Estimates assume that the reward at a position depends on the post there and on the position, not on the other posts "
    "of the slate (pbm and pbm_dr also that position decides only whether a post is looked at; those by slate let posts above act on those "
    "below); what else a slate's posts do to each other is missing from every estimate, and with it from its interval."
)


COUNTED_TASKS = ("click", "hide")
"""The tasks whose gain over the baseline is judged too: what people do at once, and what drives them away."""


def headline_of(log: LoggedData) -> str:
    """The estimator that decides: by exposure where the log allows it, since it needs far fewer requests."""
    return "dr" if log.exposure_RK is None else "pbm_dr"


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
    """One policy's part of the report, and behind its gains the terms of the headline ("value") and of each task, with
    their resampled values (B,); none when refused."""

    entry: dict[str, Any]
    terms: dict[str, Terms]
    resampled: dict[str, np.ndarray]


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
    if why := missing_means(decisive, evidence.log):
        able = [name for name in NAMES if missing_means(name, evidence.log) is None]
        raise BadInput(f"{decisive} cannot decide, {why}; this log has the means for {', '.join(able)}")
    generator = np.random.default_rng(settings.seed)
    counts_BV = viewer_counts(evidence.log.viewer_R, settings.resamples, generator)
    judged = {policy.name: _judge_one(policy, evidence, counts_BV, settings, decisive) for policy in policies}
    base = judged[baseline]
    for one in judged.values():
        if one is not base:
            one.entry["gain"] = _gain("value", one, base, settings.level)
            for task in COUNTED_TASKS:
                if task in one.entry["by_task"]:
                    one.entry["by_task"][task]["gain"] = _gain(task, one, base, settings.level)
    others = {name: one.terms["value"] for name, one in judged.items() if "value" in one.terms and name != baseline}
    if "value" in base.terms and others:
        for name, compared in compare(others, base.terms["value"], evidence.log.viewer_R, settings.level).items():
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
        "estimates": {}, "refused": {}, "headline": None, "by_task": {}, "gain": None, "truth": None, "covered": None, "ndcg": None,
    }  # fmt: skip
    found = estimate_all(log, target, seen, counts_BV, settings.level)
    entry["estimates"], entry["refused"] = found.found, found.refused
    if decisive in found.refused or seen.refusal:
        entry["refusal"] = seen.refusal or found.refused[decisive]
        return Judged(entry, {}, {})
    entry["headline"] = {"estimator": decisive, **found.found[decisive]}
    terms, resampled = {"value": found.terms[decisive]}, {"value": found.resampled[decisive]}
    for task, reward_RK in log.task_reward_RK.items():
        if reward_RK.any():
            name = "snips" if log.exposure_RK is None else "pbm"
            terms[task] = ESTIMATORS[name](log.task(task), target)
            resampled[task] = replicates(terms[task], log.viewer_R, counts_BV)
            entry["by_task"][task] = figures(terms[task], resampled[task], log, settings.level, name)
    return Judged(entry, terms, resampled)


def _gain(of: str, one: Judged, base: Judged, level: float) -> dict[str, float | None] | None:
    if of not in one.terms or of not in base.terms:
        return None
    base_value = value(base.terms[of])
    difference = value(one.terms[of]) - base_value
    low, high = percentile_interval(one.resampled[of] - base.resampled[of], level)
    relative = difference / base_value if base_value > 0 else None
    return {"value": difference, "low": low, "high": high, "relative": relative}
