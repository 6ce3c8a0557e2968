"""What the report says: findings put into one JSON-able record."""

from dataclasses import dataclass
from typing import Any

from contracts.clock import to_datetime
from contracts.dataset import Dataset
from contracts.features import FEATURE_VERSION
from contracts.splits import TimeSplit
from contracts.tasks import TASKS
from contracts.workspace import Workspace
from serving.feed import Models
from simulator.evaluation.slices import SLICES
from simulator.replay.estimates import GROUPS
from simulator.replay.judgement import ASSUMPTION
from simulator.replay.question import SERVED
from simulator.replay.ranking import TIES, Ranked
from simulator.replay.settings import ReplaySettings
from simulator.replay.verdict import replay_marks, verdict
from simulator.replay.walk import Walked
from simulator.replay.window import Window


@dataclass(frozen=True)
class Findings:
    """All that replay found out; see `compose` for where it goes."""

    policies: list[dict[str, Any]]
    baseline: str
    logged: dict[str, float]
    propensities: dict[str, Any] | None
    tuning: dict[str, Any]
    ranked: Ranked
    parity: dict[str, Any]
    truth: dict[str, float] | None
    walked: Walked
    long_term: dict[str, Any]


def compose(workspace: Workspace, dataset: Dataset, split: TimeSplit, test: Window, validation: Window | None, found: Findings,
            models: Models, settings: ReplaySettings) -> dict[str, Any]:  # fmt: skip
    """The whole report. It holds no time of day and no duration, so the same log and models give the same bytes."""
    report: dict[str, Any] = {
        "dataset": {"source": dataset.source, "derived": dataset.derived, "tasks": list(dataset.tasks)},
        "windows": {"test": _window(split.test, test), "validation": _window(split.validation, validation)},
        "baseline": found.baseline,
        "served": SERVED if any(policy["name"] == SERVED for policy in found.policies) else None,
        "worths": [{"name": task.name, "worth": task.worth} for task in TASKS if task.name in dataset.tasks],
        "policies": found.policies,
        "off_policy": _off_policy(dataset, found, settings),
        "truth": _truth(found),
        "tasks": {name: {**metrics, "logistic_auc": _logistic(workspace, name)} for name, metrics in found.ranked.tasks.items()},
        "slices": {"meanings": {name: meaning for name, (meaning, _) in SLICES.items()}, "found": found.ranked.slices},
        "ranking": {"rows": found.ranked.rows, "ties": TIES},
        "long_term": found.long_term,
        "recall": _recall(workspace),
        "pool": {"posts": len(found.walked.allowed_P), "refused": int((~found.walked.allowed_P).sum()),
                 "refused_by_filter": found.walked.dropped, "degraded": found.walked.degraded},
        "tuning": found.tuning,
        "parity": found.parity,
        "settings": settings.model_dump(mode="json"),
        "versions": {**{f"{kind} model": version for kind, version in sorted(models.versions.items()) if kind in ("prerank", "ranker")},
                     "features": FEATURE_VERSION},
    }  # fmt: skip
    report["warnings"] = [*replay_marks(found.policies, found.baseline), *found.long_term["marks"]]
    report["verdict"] = verdict(report)
    return report


def _window(span: tuple[int, int], window: Window | None) -> dict[str, Any]:
    start, end = (f"{to_datetime(at):%Y-%m-%d %H:%M}" for at in span)
    if window is None:
        return {"start": start, "end": end, "requests": None, "replayed": 0, "viewers": 0}
    return {"start": start, "end": end, "requests": window.total_requests, "replayed": len(window.request_R),
            "viewers": len(set(window.viewer_R.tolist())), "impressions": int(window.shown_RK.sum())}  # fmt: skip


def _off_policy(dataset: Dataset, found: Findings, settings: ReplaySettings) -> dict[str, Any]:
    checked = found.propensities
    reason = None
    if checked is None:
        reason = (f"The {dataset.source} log holds no propensities, so nobody can say what another policy would have been worth: "
                  "there are no off-policy estimates. Ranking and recall are measured below.")  # fmt: skip
    return {
        "possible": reason is None, "reason": reason, "propensities": checked, "logged": found.logged,
        "estimators": {group: list(names) for group, names in GROUPS.items()} if checked else {},
        "headline_estimator": next((policy["headline"]["estimator"] for policy in found.policies if policy["headline"]), None),
        "intervals": (f"Intervals are {settings.level:.0%}, from {settings.resamples:,} bootstrap resamples of viewers, "
                      "renormalised in each."),
        "assumption": ASSUMPTION,
    }  # fmt: skip


def _truth(found: Findings) -> dict[str, Any]:
    judged = [policy for policy in found.policies if policy["covered"] is not None]
    return {
        "known": found.truth is not None,
        "ceiling": found.truth["ceiling"] if found.truth else None,
        "logged": found.truth["logged"] if found.truth else None,
        "covered": sum(policy["covered"] for policy in judged), "judged": len(judged),
    }  # fmt: skip


def _logistic(workspace: Workspace, task: str) -> float | None:
    return workspace.artifacts.load("ranker").metrics.get("test", {}).get(task, {}).get("auc_logistic_regression")


def _recall(workspace: Workspace) -> dict[str, Any]:
    if not workspace.artifacts.versions("recall"):
        return {"recall_at_100": {}, "standard_error": {}, "questions": 0, "candidate_ceiling": None,
                "note": "No recall artifact in the workspace: run `feedloop train recall`."}  # fmt: skip
    artifact = workspace.artifacts.load("recall")
    test = artifact.metrics["test"]
    recall = {name: value for name, value in test["recall"].items() if value is not None}
    ceiling = test["candidate_ceiling"]
    what = {
        "discoveries": "subjects that a viewer posts about for the first time",
        "actions": "posts that a viewer acts on",
    }
    note = f"Share of the {what[artifact.metrics['kind']]} afterwards among the first {test['at']} retrieved, "
    note += f"at {test['questions']:,} requests"
    if ceiling is not None:
        note += f"; all paths together hold {ceiling:.3f}"
    return {"recall_at_100": recall, "standard_error": test["standard_error"], "questions": test["questions"],
            "candidate_ceiling": ceiling, "note": f"{note}.", "version": artifact.version}  # fmt: skip
