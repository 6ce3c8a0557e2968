"""The whole loop in one call: log -> features -> samples -> models -> replay -> published feed, and a summary of it."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.lake import Lake, content_hashes
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.tables import TABLES, TableSpec
from contracts.workspace import Workspace
from feedloop.log import bring_log
from feedloop.memory import watched
from feedloop.stage_record import StageRecord


@dataclass(frozen=True)
class LoopSettings:
    """`source` "environment" simulates; any other name is an adapter of `pipelines.sources` and needs `path`."""

    source: str = "environment"
    path: Path | None = None
    users: int = 2000
    days: int = 28
    seed: int = 7


def run_loop(workspace: Workspace, settings: LoopSettings, redis_url: str, *, fresh: bool = False) -> dict[str, Any]:
    """Runs every stage through `publish`; the summary is what `feedloop demo --json` prints."""
    from serving.api import sample_feed

    record = StageRecord(workspace, fresh=fresh)
    begun = time.perf_counter()
    with watched() as peak:
        _bring_log(workspace, settings, record)
        _prepare_samples(workspace, record)
        _train(workspace, record)
        _judge(workspace, record)
        publication = _publish(workspace, redis_url, record)
        feed = sample_feed(workspace, redis_url)
    return _summary(workspace, record, publication, feed) | {
        "seconds": {**record.seconds, "all": round(time.perf_counter() - begun, 2)},
        "reused": record.reused,
        "peak_memory_gb": round(peak.bytes / 1e9, 3),
    }


def _summary(
    workspace: Workspace, record: StageRecord, publication: dict[str, Any], feed: dict[str, Any]
) -> dict[str, Any]:
    dataset, reports = workspace.dataset(), record.reports
    written = [(name, spec) for name, spec in TABLES.items() if workspace.lake.exists(spec)]
    return {
        "source": dataset.source,
        "rows": {name: workspace.lake.manifest(spec).rows for name, spec in written}
        | {"samples": reports["samples"]["rows"]},
        "log": {name: reports["log"][name] for name in ("counts", "quarantined", "rejected") if name in reports["log"]},
        "recall_at_100": reports["train-recall"]["test"]["recall"],
        "auc": {task: metrics["auc"] for task, metrics in reports["train-ranker"]["test"].items()},
        "auc_logistic_regression": {
            task: metrics["auc_logistic_regression"] for task, metrics in reports["train-ranker"]["test"].items()
        },
        "replay": reports["replay"]["policies"],
        "verdict": reports["replay"]["verdict"],
        "parity": reports["replay"]["parity"],
        "report": reports["replay"]["report"],
        "published": publication,
        "sample_feed": feed,
    }


def _whole_tables(lake: Lake, specs: Collection[TableSpec]) -> dict[str, str]:
    """Content hashes of the tables that are there; `BadInput` when a file of one is gone or damaged."""
    hashes = content_hashes(lake, specs)
    for spec in specs:
        if spec.name in hashes:
            lake.files(spec)
    return hashes


def _bring_log(workspace: Workspace, settings: LoopSettings, record: StageRecord) -> None:
    from pipelines.sources import SOURCES, fingerprint

    def outputs() -> dict[str, str]:
        workspace.dataset()
        return _whole_tables(workspace.lake, TABLES.values())

    if settings.source == "environment":
        from simulator.environment import EnvironmentSettings, simulate

        sizes = {"users": settings.users, "days": settings.days, "seed": settings.seed}
        wanted = EnvironmentSettings(**sizes)
        record.run("log", lambda: bring_log(workspace, lambda staging: simulate(staging, wanted)), settings=sizes,
                   rooms=("simulator.environment",), outputs=outputs)  # fmt: skip
    else:
        path, ingest = Path(settings.path or ""), SOURCES[settings.source]
        files = {"source": settings.source, "files": fingerprint(path)}
        record.run("log", lambda: bring_log(workspace, lambda staging: ingest(path, staging)), settings=files,
                   rooms=("pipelines",), outputs=outputs)  # fmt: skip


def _prepare_samples(workspace: Workspace, record: StageRecord) -> None:
    from pipelines import spark
    from pipelines.features import build_states
    from pipelines.samples import build_samples
    from pipelines.sizing import session_for

    record.run("features", lambda: build_states(workspace, session_for(workspace.lake)), settings={}, rooms=("pipelines",),
               outputs=lambda: _whole_tables(workspace.features, STATES.values()), after=("log",))  # fmt: skip
    record.run("samples", lambda: build_samples(workspace, session_for(workspace.lake)), settings={}, rooms=("pipelines",),
               outputs=lambda: _whole_tables(workspace.samples, [SAMPLES]), after=("log",))  # fmt: skip
    spark.stop()


def _versions(workspace: Workspace, *kinds: str) -> Callable[[], dict[str, str]]:
    return lambda: {kind: workspace.artifacts.load(kind).version for kind in kinds}


def _train(workspace: Workspace, record: StageRecord) -> None:
    from ranking.prerank import train_prerank
    from ranking.train import train_ranker
    from recall.train import train_recall

    record.run("train-recall", lambda: train_recall(workspace), settings={}, rooms=("recall",),
               outputs=_versions(workspace, "recall"), after=("log",))  # fmt: skip
    record.run("train-prerank", lambda: train_prerank(workspace), settings={}, rooms=("ranking",),
               outputs=_versions(workspace, "prerank"), after=("samples",))  # fmt: skip
    record.run("train-ranker", lambda: train_ranker(workspace), settings={}, rooms=("ranking", "distributed"),
               outputs=_versions(workspace, "ranker"), after=("samples",))  # fmt: skip


def _judge(workspace: Workspace, record: StageRecord) -> None:
    from simulator.replay import replay

    record.run("replay", lambda: replay(workspace), settings={}, rooms=("simulator", "serving", "recall", "ranking"),
               outputs=_versions(workspace, "value_model", "report"),
               after=("log", "features", "samples", "train-recall", "train-prerank", "train-ranker"))  # fmt: skip


def _publish(workspace: Workspace, redis_url: str, record: StageRecord) -> dict[str, Any]:
    from serving.publish import publish

    # Never reused: the server may be another one than last time, or empty.
    begun = time.perf_counter()
    report = publish(workspace, redis_url)
    record.seconds["publish"] = round(time.perf_counter() - begun, 2)
    return report
