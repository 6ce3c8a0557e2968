"""Publishing: the log's end, its features and the models in force become one version in Redis, switched to at once."""

import uuid
from itertools import islice
from typing import Any

import redis

from contracts.clock import now, to_datetime
from contracts.errors import BadInput
from contracts.features import FAMILIES, FEATURE_VERSION
from contracts.files import hash_value
from contracts.lake import content_hashes
from contracts.progress import say, stage
from contracts.states import STATES
from contracts.tables import TABLES
from contracts.workspace import Workspace
from serving.feed.models import KINDS
from serving.settings import PublishSettings
from serving.snapshot import Build, state_items
from serving.store.redis import PUBLICATIONS, VERSIONS, RedisStore, answering, connect
from serving.versions import (
    FIRST,
    Meta,
    PublisherLock,
    count_keys,
    drained_to,
    holds_until,
    log_identity,
    pointers,
    read_meta,
    sweep,
    switch_to,
    write_meta,
)


def publish(workspace: Workspace, redis_url: str, settings: PublishSettings | None = None) -> dict[str, Any]:
    """Writes a whole new version beside the one in force, catches up with live events, and switches.

    Killed at any moment it leaves the old version in force; the next publish sweeps what it left. `BadInput` when the
    workspace lacks the log or its features, a model's files are not those that training wrote, or Redis does not answer.
    """
    settings = settings or PublishSettings()
    client = connect(redis_url, timeout_s=60.0)
    with answering():
        client.ping()
        with PublisherLock(client, uuid.uuid4().hex, settings.lock_s) as lock:
            swept = sweep(client)  # first of all: what a publisher that was killed left behind
            meta = _new_version(workspace, client)
            with stage(f"publish {meta.version}"):
                counts = _write(workspace, client, meta, lock, settings)
                meta = Meta(**{**meta.__dict__, "counts": counts})
                write_meta(client, meta)
                lock.renew()
                applied, skipped = switch_to(client, meta, FIRST)
            swept += sweep(client)
    return {
        "version": meta.version, "as_of": to_datetime(meta.as_of).isoformat(), "keys": sum(counts.values()),
        "keys_by_family": counts, "artifacts": meta.artifacts, "live_events_applied": applied,
        "live_events_skipped": skipped, "removed_versions": swept,
    }  # fmt: skip


def rollback(workspace: Workspace, redis_url: str) -> dict[str, Any]:
    """Puts the version before the present one in force again, live events since then included; twice is back again.

    `BadInput` when there is none, or its models are no longer in the workspace as they were.
    """
    client = connect(redis_url, timeout_s=60.0)
    with answering(), PublisherLock(client, uuid.uuid4().hex, PublishSettings().lock_s):
        current, previous = pointers(client)
        if previous is None:
            raise BadInput(f"nothing to go back to: {f'there is no version before {current}' if current else 'nothing is published yet'}")
        meta = read_meta(client, previous)
        for kind, version in meta.artifacts.items():
            workspace.artifacts.load(kind, version)
        applied, _ = switch_to(client, meta, holds_until(client, previous))
    return {"version": previous, "before": current, "live_events_applied": applied}


def _new_version(workspace: Workspace, client: redis.Redis) -> Meta:
    dataset = workspace.dataset()
    artifacts = {kind: workspace.artifacts.load(kind) for kind in KINDS if workspace.artifacts.versions(kind)}
    for kind, artifact in artifacts.items():
        if artifact.feature_version not in (None, FEATURE_VERSION):
            raise BadInput(
                f"{kind} {artifact.version} was trained with feature version {artifact.feature_version}, "
                f"but this code computes {FEATURE_VERSION}: train it again"
            )
    for kind in KINDS:
        if kind not in artifacts:
            say(f"no {kind} in the workspace: feeds will do without it")
    versions = {kind: artifact.version for kind, artifact in artifacts.items()}
    states = content_hashes(workspace.features, [STATES[name] for name in FAMILIES])
    made_of = hash_value([content_hashes(workspace.lake, TABLES.values()), states, versions, FEATURE_VERSION])
    version = f"{made_of[:12]}-{client.incr(PUBLICATIONS)}"
    client.sadd(VERSIONS, version)
    return Meta(
        version=version, log_id=log_identity(dataset), source=dataset.source, as_of=dataset.end, live_us=dataset.live_us,
        tasks=dataset.tasks, feature_version=FEATURE_VERSION, artifacts=versions, counts={},
        drained_to=drained_to(client, dataset),
        clock_offset_us=_clock_offset(client, log_identity(dataset), dataset.end),
    )  # fmt: skip


def _clock_offset(client: redis.Redis, log_id: str, log_end: int) -> int:
    """Feeds go on from the log's end, and never back in time when the same log is published again."""
    wall = now()
    current, _ = pointers(client)
    if current is not None:
        in_force = read_meta(client, current)
        if in_force.log_id == log_id:
            return max(log_end, wall + in_force.clock_offset_us) - wall
    return log_end - wall


def _write(workspace: Workspace, client: redis.Redis, meta: Meta, lock: PublisherLock,
           settings: PublishSettings) -> dict[str, int]:  # fmt: skip
    store = RedisStore(client, meta.version)
    written: dict[str, int] = {}
    for family, items in state_items(Build(workspace, meta.as_of, meta.live_us)):
        distinct = dict(items)
        written[family] = written.get(family, 0) + len(distinct)
        left = iter(distinct.items())
        while chunk := dict(islice(left, settings.chunk_keys)):
            client.mset({store.place(key): value for key, value in chunk.items()})
            lock.renew()
    written = {family: count for family, count in sorted(written.items()) if count}
    found = dict(sorted(count_keys(client, meta.version).items()))
    if found != written:
        raise BadInput(f"Redis holds {found} keys of version {meta.version}, but {written} were written: publish again")
    return written
