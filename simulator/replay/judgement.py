"""Each policy's slates against the log: estimates with intervals, gains over the baseline, truth where it is known.

Shapes: R requests, K positions, P pool entries of all requests, B resamples.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.evaluation import (
    LoggedData,
    Target,
    Terms,
    overlap,
    percentile_interval,
    replicates,
    student_interval,
    value,
    viewer_counts,
)
from simulator.evaluation.estimators import ESTIMATORS, clipped_ips, snips
from simulator.evaluation.logged_data import deterministic_target, uniform_target
from simulator.replay.settings import ReplaySettings
from simulator.replay.window import Window

HEADLINE = "dr"
ASSUMPTION = (
    "Estimates assume that the reward at a position depends on the post there and on the position, not on the other posts "
    "of the slate; what a slate's posts do to each other is missing from every estimate, and with it from its interval."
)


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
    """One policy's part of the report and the resampled headline values (B,) behind its gains; None when refused."""

    entry: dict[str, Any]
    headline_B: np.ndarray | None


def targets_of(policies: list[PolicySlates], log: LoggedData, q_PK: np.ndarray, pool_start_R: np.ndarray,
               pool_P: np.ndarray) -> dict[str, Target]:  # fmt: skip
    """Each policy as a target on `log`; `q_PK` is the regression's reward of every pool entry at every position."""
    return {policy.name: _target(policy.slate_RK, log, q_PK, pool_start_R, pool_P) for policy in policies}


def pool_rows(post_RK: np.ndarray, pool_start_R: np.ndarray, pool_P: np.ndarray) -> np.ndarray:
    """Index into the P pool entries of each post of each slate (R, K); -1 where the post is not in its pool, or is -1."""
    size_R = np.diff(pool_start_R)
    owner_P = np.repeat(np.arange(len(size_R)), size_R)
    order = np.lexsort((pool_P, owner_P))
    ids, codes = np.unique(np.concatenate([pool_P, post_RK.ravel()]), return_inverse=True)
    key_P = owner_P[order] * len(ids) + codes[: len(pool_P)][order]
    wanted = np.repeat(np.arange(len(size_R)), post_RK.shape[1]) * len(ids) + codes[len(pool_P) :]
    at = np.minimum(np.searchsorted(key_P, wanted), max(len(key_P) - 1, 0))
    found = (key_P[at] == wanted) & (post_RK.ravel() >= 0)
    return np.where(found, order[at], -1).reshape(post_RK.shape)


def slate_baseline(slate_RK: np.ndarray, log: LoggedData, q_PK: np.ndarray, pool_start_R: np.ndarray,
                   pool_P: np.ndarray) -> np.ndarray:  # fmt: skip
    """The regression's reward (R, K) of each post of each slate at its position; 0 outside the pool."""
    return _baseline(pool_rows(slate_RK, pool_start_R, pool_P), log, q_PK)


def judge(policies: list[PolicySlates], log: LoggedData, targets: dict[str, Target], settings: ReplaySettings,
          baseline: str) -> list[dict[str, Any]]:  # fmt: skip
    """One report entry per policy; the gain of each over `baseline` is paired, since all share the resamples."""
    generator = np.random.default_rng(settings.seed)
    counts_BV = viewer_counts(log.viewer_R, settings.resamples, generator)
    judged = {policy.name: _judge_one(policy, log, targets[policy.name], counts_BV, settings) for policy in policies}
    for one in judged.values():
        one.entry["gain"] = _gain(one, judged[baseline], settings.level)
    return [one.entry for one in judged.values()]


def logged_value(window: Window, settings: ReplaySettings) -> dict[str, float]:
    """The mean reward per request of the log itself, with its interval."""
    zero = np.zeros_like(window.reward_RK)
    terms = Terms(window.reward_RK, zero, zero, window.shown_RK, False)
    low, high = student_interval(terms, window.viewer_R, settings.level)
    return {"value": value(terms), "low": low, "high": high}


def _target(slate_RK: np.ndarray | None, log: LoggedData, q_PK: np.ndarray, pool_start_R: np.ndarray,
            pool_P: np.ndarray) -> Target:  # fmt: skip
    positions = log.shown_RK.shape[1]
    if slate_RK is None:
        size_R = np.maximum(np.diff(pool_start_R), 1)
        owner_P = np.repeat(np.arange(len(size_R)), np.diff(pool_start_R))
        sums_RK = np.stack([np.bincount(owner_P, weights=q_PK[:, k], minlength=len(size_R)) for k in range(positions)], axis=1)
        return uniform_target(log, baseline_RK=np.where(log.shown_RK, sums_RK / size_R[:, None], 0.0))
    row_RK = pool_rows(slate_RK, pool_start_R, pool_P)
    q_RK = _baseline(row_RK, log, q_PK)
    outside_R = ((slate_RK >= 0) & (row_RK < 0)).sum(axis=1) / np.maximum((slate_RK >= 0).sum(axis=1), 1)
    return deterministic_target(log, slate_RK, baseline_RK=q_RK, outside_R=outside_R)


def _baseline(row_RK: np.ndarray, log: LoggedData, q_PK: np.ndarray) -> np.ndarray:
    predicted_RK = q_PK[np.maximum(row_RK, 0), np.arange(row_RK.shape[1])]
    return np.where((row_RK >= 0) & log.shown_RK, predicted_RK, 0.0)


def _judge_one(policy: PolicySlates, log: LoggedData, target: Target, counts_BV: np.ndarray, settings: ReplaySettings) -> Judged:
    seen = overlap(log, target)
    entry: dict[str, Any] = {
        "name": policy.name, "description": policy.description, "overlap": seen.as_dict(), "refusal": seen.refusal,
        "estimates": {}, "headline": None, "by_task": {}, "gain": None, "truth": None, "covered": None, "ndcg": None,
    }  # fmt: skip
    if seen.refusal:
        return Judged(entry, None)
    headline_B = None
    for name, estimator in ESTIMATORS.items():
        terms = clipped_ips(log, target, settings.clip) if name == "clipped_ips" else estimator(log, target)
        resampled_B = replicates(terms, log.viewer_R, counts_BV)
        entry["estimates"][name] = _estimate(terms, resampled_B, log, settings.level)
        if name == HEADLINE:
            headline_B = resampled_B
            entry["headline"] = {"estimator": name, **entry["estimates"][name]}
    for task, reward_RK in log.task_reward_RK.items():
        if reward_RK.any():
            terms = snips(log.task(task), target)
            entry["by_task"][task] = _estimate(terms, replicates(terms, log.viewer_R, counts_BV), log, settings.level)
    return Judged(entry, headline_B)


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
    return {"value": difference, "low": low, "high": high, "relative": difference / base_value if base_value > 0 else None}

