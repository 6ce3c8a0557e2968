"""Replay from end to end: checks, the walk, tuning on validation, judgement on test, one report."""

from typing import Any

import numpy as np

from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.files import canonical_json
from contracts.hashing import splitmix64
from contracts.progress import stage
from contracts.samples import SAMPLES
from contracts.splits import TimeSplit
from contracts.workspace import Workspace
from serving.feed import VALUE_MODEL_FILE, ValueModel, pool_policy
from simulator.replay.checks import check_features, check_split, check_sums
from simulator.replay.clocks import check_lake_clocks
from simulator.replay.contents import Findings, compose
from simulator.replay.evidence import gather
from simulator.replay.exposure import mixture
from simulator.replay.judgement import PolicySlates, judge, logged_value
from simulator.replay.known_truth import add_truth, load_truth
from simulator.replay.long_term import long_term
from simulator.replay.models import TrainedModels, load_trained
from simulator.replay.order import add_ndcg
from simulator.replay.parity import compare_features
from simulator.replay.question import BASELINE, DESCRIPTIONS, SERVED, UNTUNED, Question
from simulator.replay.ranking import ranker_metrics
from simulator.replay.settings import ReplaySettings
from simulator.replay.tuning import Scored, Tuned, tune, untuned
from simulator.replay.walk import Walker
from simulator.replay.window import Window, load_window
from simulator.report import print_policies, write_report

_WHEN = ("request_id", "post_id", "requested_at", "shown_at", "split")


def replay(
    workspace: Workspace, settings: ReplaySettings | None = None, question: Question | None = None
) -> dict[str, Any]:
    """Judges feed policies on the test window; writes artifact "report" and `reports/replay.*`, and, when the served policy
    is among them, the tuned "value_model".

    Returns the policies' headline figures and where the report lies. `BadInput` when the question, the log, its
    propensities or the models cannot be judged by; then nothing is written, and earlier reports stay.
    """
    settings, question = settings or ReplaySettings(), question or Question()
    dataset = workspace.dataset()
    split = question.window(workspace, dataset.split())
    beside = question.other_logs
    has = dataset.has_propensities
    names = question.names
    with stage("load and check the logged requests"):
        check_lake_clocks(workspace.lake, dataset)
        check_split(workspace.samples.read(SAMPLES, _WHEN), dataset.split())
        models = load_trained(workspace, split)
        test, checked = _window(workspace, split, "test", has, settings.test_requests, settings)
        if question.estimator is not None and not has:
            raise BadInput(_without_propensities(test, question.estimator))
        tuning = has and SERVED in names
        validation, _ = (
            _window(workspace, split, "validation", has, settings.validation_requests, settings)
            if tuning
            else (None, None)
        )
    walker = Walker(workspace, split)
    tuned = _tuned(walker, validation, models, dataset, settings)
    policies = {
        name: pool_policy(name, models.with_value(tuned.model), dataset.live_us) for name in names if name != "random"
    }
    if tuned.record["tuned"]:
        policies[UNTUNED] = pool_policy(
            SERVED, models.with_value(ValueModel.for_tasks(models.ranker.tasks)), dataset.live_us
        )
    exact_R = np.isin(test.request_R, _smallest_hashes(test.request_R, settings.parity_requests))
    with stage(f"walk {len(test.request_R):,} test requests through {len(policies)} policies"):
        walked = walker.walk(test, policies, policies[BASELINE], exact_R)
    with stage("compare online features with the batch"):
        parity = compare_features(workspace, walked.exact, split.test[0], split.test[1] + split.window_us)
        check_features(parity)
    slates = [
        PolicySlates(name, DESCRIPTIONS[name], walked.slate_RK.get(name))
        for name in DESCRIPTIONS
        if name in (*names, *policies)
    ]
    with stage("judge the policies"):
        probability_PT = models.ranker.probabilities(walked.inputs_PF)
        if checked is not None:
            evidence = gather(test, walked, probability_PT, settings)
            entries = judge(slates, evidence, settings, BASELINE, question.estimator)
            if evidence.logging is not None:
                checked = {**checked, "calibration": evidence.logging.calibration(test)}
        else:
            entries = [_unjudged(policy) for policy in slates]
        add_ndcg(entries, test, walked, probability_PT, models, tuned.model, settings)
        truth = load_truth(workspace)
        known = add_truth(entries, slates, truth, test, BASELINE, settings) if truth else None
        ranked = ranker_metrics(workspace, split, models.ranker, dataset.tasks)
    with stage("look for what lasts"):
        lasting = long_term(workspace.lake, dataset, settings, beside)
    found = Findings(
        entries, BASELINE, logged_value(test, settings), checked, tuned.record, ranked, parity, known, walked, lasting
    )
    report = compose(workspace, dataset, split, test, validation, found, models.served, settings)
    written = _write(workspace, models, tuned, report, settings, with_value=SERVED in names)
    print_policies(report)
    return {
        "policies": {entry["name"]: {"headline": entry["headline"], "gain": entry["gain"], "truth": entry["truth"],
                                     "ndcg": entry["ndcg"], "refusal": entry["refusal"]} for entry in report["policies"]},
        "warnings": [mark["sentence"] for mark in report["warnings"]], "verdict": report["verdict"],
        "report": str(workspace.reports / "replay.html"), "json": str(workspace.reports / "replay.json"),
        "version": written["report"], "value_model": written.get("value_model"), "parity": parity["sentence"],
    }  # fmt: skip


def _window(
    workspace: Workspace, split: TimeSplit, name: str, has_propensities: bool, limit: int, settings: ReplaySettings
) -> tuple[Window, dict[str, Any] | None]:
    """The requests of a window, and what is to be said of their propensities."""
    window = load_window(
        workspace, split, name, has_propensities=has_propensities, limit=limit, pool_entries=settings.pool_entries
    )
    if not has_propensities:
        return window, None
    mixture(window)
    return window, check_sums(window.logged_data(), window.request_R, name)


def _without_propensities(test: Window, estimator: str) -> str:
    impressions = int(test.shown_RK.sum())
    return (
        f"{estimator} weighs by propensities, and {impressions:,} of {impressions:,} impressions of the test window have none, such as "
        f"request {test.request_R[0]}, post {test.post_RK[0, 0]}: leave --estimator out, and ranking and recall are measured"
    )


def _tuned(
    walker: Walker, validation: Window | None, models: TrainedModels, dataset: Dataset, settings: ReplaySettings
) -> Tuned:
    tasks = models.ranker.tasks
    if validation is None:
        why = f"Tuning was left out: {SERVED} is not among the policies judged." if dataset.has_propensities else (
            "The log holds no propensities, so the value model could not be tuned: each action weighs its worth.")  # fmt: skip
        return untuned(tasks, why)
    with stage(f"walk {len(validation.request_R):,} validation requests"):
        walked = walker.walk(validation, {}, pool_policy(BASELINE, models.served, dataset.live_us))
    with stage("tune the value model"):
        probability_PT = models.ranker.probabilities(walked.inputs_PF)
        evidence = gather(validation, walked, probability_PT, settings)
        scored = Scored(validation, evidence, probability_PT, walked.inputs_PF, walked.allowed_P)
        return tune(scored, tasks, settings)


def _unjudged(policy: PolicySlates) -> dict[str, Any]:
    return {"name": policy.name, "description": policy.description, "overlap": None, "refusal": None, "estimates": {}, "refused": {},
            "headline": None, "by_task": {}, "gain": None, "truth": None, "covered": None, "ndcg": None}  # fmt: skip


def _smallest_hashes(ids_R: np.ndarray, count: int) -> np.ndarray:
    return ids_R[np.argsort(splitmix64(ids_R), kind="stable")[:count]]


def _write(workspace: Workspace, models: TrainedModels, tuned: Tuned, report: dict[str, Any], settings: ReplaySettings, *,
           with_value: bool) -> dict[str, str]:  # fmt: skip
    """Versions of what was written. The report comes last, since its link is what says that a replay is complete."""
    parents = {kind: models.served.versions[kind] for kind in ("prerank", "ranker")}
    parents["samples"] = workspace.samples.manifest(SAMPLES).content_hash
    chosen = settings.model_dump(mode="json")
    versions = {}
    if with_value:
        with workspace.artifacts.create("value_model", parents=parents, settings=chosen) as value_model:
            (value_model.path / VALUE_MODEL_FILE).write_bytes(canonical_json(tuned.record["value_model"]))
            value_model.metrics = {name: tuned.record[name] for name in ("tuned", "gain", "sentence")}
        versions["value_model"] = value_model.version
    return versions | {"report": write_report(workspace, report, parents=parents, settings=chosen).version}
