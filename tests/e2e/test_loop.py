"""The whole loop over real parts: it closes, a kill anywhere changes nothing, and replay's feed is the served feed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import redis

from contracts.features import FAMILIES
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.tables import TABLES
from contracts.workspace import Workspace
from serving.feed import load_models, serving_policy
from serving.feed.candidates import Query
from serving.feed.timing import Inline
from serving.snapshot import snapshot
from serving.store.redis import RedisStore, version_in_force

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.redis, pytest.mark.timeout(1500)]
STAGES = ("log", "features", "samples", "train-recall", "train-prerank", "train-ranker", "replay", "publish")


def command(workspace: Path, redis_url: str) -> list[str]:
    return [sys.executable, "-m", "feedloop", "demo", "--users", "150", "--days", "12", "--no-serve", "--json",
            "--workspace", str(workspace), "--redis-url", redis_url]  # fmt: skip


def undisturbed(workspace: Path, redis_url: str) -> dict:
    done = subprocess.run(command(workspace, redis_url), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def killed_in(stage: str, workspace: Path, redis_url: str, delay_s: float) -> None:
    """Starts the loop and kills it with SIGKILL `delay_s` seconds after `stage` has begun."""
    process = subprocess.Popen(
        command(workspace, redis_url), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(f"… {stage}"):
            time.sleep(delay_s)
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL, "".join(said[-20:])


def content(root: Path) -> dict[str, str]:
    """What a run made: content hashes of all tables, versions of all models."""
    workspace = Workspace(root)
    tables = {f"lake/{name}": workspace.lake.manifest(spec).content_hash for name, spec in TABLES.items()}
    states = {f"state/{name}": workspace.features.manifest(STATES[name]).content_hash for name in FAMILIES}
    models = {kind: workspace.artifacts.load(kind).version for kind in ("recall", "prerank", "ranker", "value_model")}
    return tables | states | models | {"samples": workspace.samples.manifest(SAMPLES).content_hash}


@pytest.fixture(scope="module")
def first(tmp_path_factory, redis_url):
    """(workspace folder, summary) of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, undisturbed(folder, redis_url)


def test_the_summary_says_what_came_of_every_stage(first):
    _, summary = first
    assert summary["rows"]["users"] == 150 and summary["rows"]["samples"] > 1000
    assert set(summary["recall_at_100"]) >= {"social", "collaborative", "popular", "vector", "merged"}
    assert set(summary["auc"]) == {"click", "like", "comment", "share", "hide"}
    for policy in ("chronological", "popularity", "random", "prerank", "full"):
        headline = summary["replay"][policy]["headline"]
        assert headline["low"] < headline["value"] < headline["high"]
    assert summary["sample_feed"]["items"] and set(STAGES) <= set(summary["seconds"])
    assert summary["parity"].startswith("all ") and Path(summary["report"]).is_file()


def test_a_feed_over_the_snapshot_is_the_served_feed_post_by_post(first, redis_url):
    folder, _ = first
    workspace = Workspace(folder)
    dataset = workspace.dataset()
    client = redis.Redis.from_url(redis_url)
    published, memory = RedisStore(client, version_in_force(client)), snapshot(workspace, dataset.end)
    policy = serving_policy("full", load_models(workspace), dataset.live_us, runner=Inline(), side_effects=[])
    users = np.random.default_rng(5).choice(np.arange(1001, 1151), 40, replace=False)
    shown = 0
    for user_id in users.tolist():
        served, replayed = (policy.run(Query(user_id, dataset.end, 10), store) for store in (published, memory))
        assert served.post_id_K.tolist() == replayed.post_id_K.tolist()
        np.testing.assert_allclose(served.score_K, replayed.score_K, rtol=1e-9)
        shown += len(served)
    assert shown > 200


def test_a_second_run_reuses_what_nothing_changed_for(first, redis_url):
    folder, summary = first
    again = undisturbed(folder, redis_url)
    assert set(again["reused"]) == set(STAGES) - {"publish"}
    assert again["auc"] == summary["auc"] and again["seconds"]["all"] < summary["seconds"]["all"]


def test_a_kill_in_every_stage_ends_with_what_an_undisturbed_run_made(first, tmp_path, redis_url):
    folder, _ = first
    for at, stage in enumerate(STAGES):
        killed_in(stage, tmp_path, redis_url, delay_s=0.3 + 0.4 * (at % 3))
    undisturbed(tmp_path, redis_url)
    assert content(tmp_path) == content(folder)
