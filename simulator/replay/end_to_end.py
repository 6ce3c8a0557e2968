"""Replay from end to end: checks, the walk, tuning on validation, judgement on test, one report."""

from typing import Any

import numpy as np

from contracts.artifacts import Artifact
from contracts.files import canonical_json
from contracts.progress import stage
from contracts.samples import SAMPLES
from contracts.workspace import Workspace
from serving.feed import VALUE_MODEL_FILE, FeedPipeline, Models, ValueModel, pool_policy
from simulator.evaluation import propensity_check
from simulator.evaluation.hashing import splitmix64
from simulator.replay.checks import check_features
from simulator.replay.contents import Findings, compose
from simulator.replay.evidence import gather
from simulator.replay.judgement import PolicySlates, judge, logged_value
from simulator.replay.known_truth import add_truth, load_truth
from simulator.replay.models import TrainedModels, load_trained
from simulator.replay.order import add_ndcg
from simulator.replay.parity import compare_features
from simulator.replay.ranking import ranker_metrics
from simulator.replay.settings import ReplaySettings
from simulator.replay.tuning import Scored, Tuned, tune, untuned
from simulator.replay.walk import Walker
from simulator.replay.window import Window, load_window
from simulator.report import print_policies, write_report

BASELINE = "chronological"
DESCRIPTIONS = {
    "chronological": "Newest post first.",
    "popularity": "Posts that most people engaged with lately.",
    "random": "Any order of the pool, equally likely; a floor to measure from.",
    "prerank": "The pre-ranker alone, best score first.",
    "full": "What serves: ranker, value model and reranking for variety and exploration.",
    "full, untuned": "The same with every action weighed by its worth, as before tuning.",
}


def replay(workspace: Workspace, settings: ReplaySettings | None = None) -> dict[str, Any]:
    """Judges the feed policies on the test window; writes artifacts "report" and "value_model" and `reports/replay.*`.

    Returns the policies' headline figures and where the report lies. `BadInput` when the log, its propensities or the
    models cannot be judged by; then nothing is written, and earlier reports stay.
    """
    settings = settings or ReplaySettings()
    dataset, split = workspace.dataset(), workspace.dataset().split()
    models = load_trained(workspace, split)
    has = dataset.has_propensities
    with stage("load the logged requests"):
        test = load_window(
            workspace,
            split,
            "test",
            has_propensities=has,
            limit=settings.test_requests,
            pool_entries=settings.pool_entries,
        )
        validation = (
            load_window(
                workspace,
                split,
                "validation",
                has_propensities=has,
                limit=settings.validation_requests,
                pool_entries=settings.pool_entries,
            )
            if has
            else None
        )
    walker = Walker(workspace, split)
    tuned = _tuned(walker, validation, models, dataset.live_us, settings)
    policies = _policies(models.with_value(tuned.model), dataset.live_us)
    if tuned.record["tuned"]:
        policies["full, untuned"] = pool_policy(
            "full", models.with_value(ValueModel.for_tasks(models.ranker.tasks)), dataset.live_us
        )
    exact_R = np.isin(test.request_R, _smallest_hashes(test.request_R, settings.parity_requests))
    with stage(f"walk {len(test.request_R):,} test requests through {len(policies)} policies"):
        walked = walker.walk(test, policies, policies[BASELINE], exact_R)
    slates = [PolicySlates(name, DESCRIPTIONS[name], slate_RK) for name, slate_RK in walked.slate_RK.items()]
    slates.insert(2, PolicySlates("random", DESCRIPTIONS["random"], None))
    with stage("judge the policies"):
        checked = propensity_check(test.logged_data()) if has else None
        probability_PT = models.ranker.probabilities(walked.inputs_PF)
        if checked is not None and checked["passed"]:
            evidence = gather(test, walked, probability_PT, settings)
            entries = judge(slates, evidence, settings, BASELINE)
        else:
            entries = [_unjudged(policy) for policy in slates]
        add_ndcg(entries, test, walked, probability_PT, models, tuned.model, settings)
        truth = load_truth(workspace)
        known = add_truth(entries, slates, truth, test, BASELINE, settings) if truth else None
        tasks, rows = ranker_metrics(workspace, split, models.ranker, dataset.tasks)
    with stage("compare online features with the batch"):
        parity = compare_features(workspace, walked.exact, split.test[0], split.test[1] + split.window_us)
        check_features(parity)
    found = Findings(
        entries, BASELINE, logged_value(test, settings), checked, tuned.record, tasks, rows, parity, known, walked
    )
    report = compose(workspace, dataset, split, test, validation, found, models.served, settings)
    value_model, written = _write(workspace, models, tuned, report, settings)
    print_policies(report)
    return {
        "policies": {entry["name"]: {"headline": entry["headline"], "gain": entry["gain"], "truth": entry["truth"],
                                     "ndcg": entry["ndcg"], "refusal": entry["refusal"]} for entry in report["policies"]},
        "verdict": report["verdict"], "report": str(workspace.reports / "replay.html"), "json": str(workspace.reports / "replay.json"),
        "version": written.version, "value_model": value_model.version, "parity": parity["sentence"],
    }  # fmt: skip


def _policies(models: Models, live_us: int) -> dict[str, FeedPipeline]:
    return {name: pool_policy(name, models, live_us) for name in ("chronological", "popularity", "prerank", "full")}


def _tuned(
    walker: Walker, validation: Window | None, models: TrainedModels, live_us: int, settings: ReplaySettings
) -> Tuned:
    tasks = models.ranker.tasks
    if validation is None:
        return untuned(
            tasks, "The log holds no propensities, so the value model could not be tuned: each action weighs its worth."
        )
    with stage(f"walk {len(validation.request_R):,} validation requests"):
        walked = walker.walk(validation, {}, pool_policy(BASELINE, models.served, live_us))
    checked = propensity_check(validation.logged_data())
    if not checked["passed"]:
        return untuned(tasks, f"The value model could not be tuned: {checked['sentence']}.")
    with stage("tune the value model"):
        probability_PT = models.ranker.probabilities(walked.inputs_PF)
        evidence = gather(validation, walked, probability_PT, settings)
        scored = Scored(validation, evidence, probability_PT, walked.inputs_PF, walked.allowed_P)
        return tune(scored, tasks, settings)


def _unjudged(policy: PolicySlates) -> dict[str, Any]:
    return {"name": policy.name, "description": policy.description, "overlap": None, "refusal": None, "estimates": {},
            "headline": None, "by_task": {}, "gain": None, "truth": None, "covered": None, "ndcg": None}  # fmt: skip


def _smallest_hashes(ids_R: np.ndarray, count: int) -> np.ndarray:
    return ids_R[np.argsort(splitmix64(ids_R), kind="stable")[:count]]


def _write(workspace: Workspace, models: TrainedModels, tuned: Tuned, report: dict[str, Any],
           settings: ReplaySettings) -> tuple[Artifact, Artifact]:  # fmt: skip
    parents = {kind: models.served.versions[kind] for kind in ("prerank", "ranker")}
    parents["samples"] = workspace.samples.manifest(SAMPLES).content_hash
    chosen = settings.model_dump(mode="json")
    written = write_report(workspace, report, parents=parents, settings=chosen)
    with workspace.artifacts.create("value_model", parents=parents, settings=chosen) as value_model:
        (value_model.path / VALUE_MODEL_FILE).write_bytes(canonical_json(tuned.record["value_model"]))
        value_model.metrics = {name: tuned.record[name] for name in ("tuned", "gain", "sentence")}
    return value_model, written
