"""Planted faults stop a replay: exit code 2, one sentence with count and example row, and the earlier report stays."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from contracts.artifacts import ArtifactStore
from contracts.clock import DAY, HOUR, SECOND
from contracts.lake import Lake
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS, REQUESTS, SESSIONS, TableSpec
from contracts.workspace import Workspace
from feedloop.cli import main

BASELINE_ALONE = ("--policy", "chronological")  # the shortest replay there is


def change(lake: Lake, spec: TableSpec, column: str, new: Callable[[pa.Table], np.ndarray]) -> None:
    """Writes `spec` again with `column` as `new(table)`."""
    table = lake.read(spec)
    at = table.schema.get_field_index(column)
    lake.write(
        spec,
        table.set_column(at, spec.schema.field(column), pa.array(new(table), spec.schema.field(column).type)),
        parents=lake.manifest(spec).parents,
    )


def shifted(column: str, by_us: int, rows: int) -> Callable[[pa.Table], np.ndarray]:
    """The last `rows` rows of `column` moved by `by_us`."""

    def new(table: pa.Table) -> np.ndarray:
        values = table[column].to_numpy().copy()
        values[-rows:] += by_us
        return values

    return new


def future_feature(workspace: Workspace) -> None:
    """What people did reached the log two days later than the samples had it."""
    change(workspace.lake, ACTIONS, "known_at", lambda table: pc.add(table["known_at"], 2 * DAY).to_numpy())


def retrain(workspace: Workspace, **metrics: int) -> None:
    """The ranker again, which says of itself `metrics`."""
    store: ArtifactStore = workspace.artifacts
    old = store.load("ranker")
    with store.create(
        "ranker", parents=old.parents, settings={"again": True}, feature_version=old.feature_version
    ) as new:
        for name in old.files:
            (new.path / name).write_bytes((old.path / name).read_bytes())
        new.metrics = {**old.metrics, **metrics}


def trained_in_test(workspace: Workspace) -> None:
    retrain(workspace, trained_until=workspace.dataset().split().test[0] + 5 * HOUR)


def scaled(factor: float) -> Callable[[Workspace], None]:
    def fault(workspace: Workspace) -> None:
        change(workspace.samples, SAMPLES, "propensity", lambda table: table["propensity"].to_numpy() * factor)
        same_samples(workspace)

    return fault


def jittered(workspace: Workspace) -> None:
    """Propensities that no policy has, half as large as they were on average."""
    factor = np.random.default_rng(2).uniform(0.3, 0.7, workspace.samples.manifest(SAMPLES).rows)
    change(workspace.samples, SAMPLES, "propensity", lambda table: table["propensity"].to_numpy() * factor)
    same_samples(workspace)


def same_samples(workspace: Workspace) -> None:
    """Models say that they were trained on the changed samples, so that no other fault than the planted one is there."""
    digest = workspace.samples.manifest(SAMPLES).content_hash
    for kind in ("prerank", "ranker"):
        old = workspace.artifacts.load(kind)
        with workspace.artifacts.create(
            kind, parents=old.parents | {"samples": digest}, settings=old.settings, feature_version=old.feature_version
        ) as new:
            for name in old.files:
                (new.path / name).write_bytes((old.path / name).read_bytes())
            new.metrics = old.metrics


def zero_for_shown(workspace: Workspace) -> None:
    def new(table: pa.Table) -> np.ndarray:
        values = table["propensity"].to_numpy().copy()
        values[np.flatnonzero(table["split"].to_numpy(zero_copy_only=False) == "test")] = 0.0
        return values

    change(workspace.samples, SAMPLES, "propensity", new)
    same_samples(workspace)


def no_propensities(workspace: Workspace) -> None:
    replace(workspace.dataset(), has_propensities=False).save(workspace.dataset_path)


def request_twice(workspace: Workspace) -> None:
    split = workspace.dataset().split()
    requests = workspace.lake.read(REQUESTS)
    inside = pc.greater_equal(requests["requested_at"], split.test[0])
    workspace.lake.write(REQUESTS, pa.concat_tables([requests, requests.filter(inside).slice(0, 3)]))


def action_before_request(workspace: Workspace) -> None:
    def new(table: pa.Table) -> np.ndarray:
        values = table["occurred_at"].to_numpy().copy()
        values[np.flatnonzero(table["request_id"].is_valid().to_numpy())[:2]] -= 3 * DAY
        return values

    change(workspace.lake, ACTIONS, "occurred_at", new)


def impression_before_request(workspace: Workspace) -> None:
    def new(table: pa.Table) -> np.ndarray:
        inside = (table["split"].to_numpy(zero_copy_only=False) == "test") & (table["position"].to_numpy() < 2)
        return table["shown_at"].to_numpy() - 9 * SECOND * inside

    change(workspace.samples, SAMPLES, "shown_at", new)
    same_samples(workspace)


def session_after_the_end(workspace: Workspace) -> None:
    change(workspace.lake, SESSIONS, "ended_at", shifted("ended_at", 90 * DAY, 2))
    change(workspace.lake, SESSIONS, "started_at", shifted("started_at", 90 * DAY, 2))


def known_before(spec: TableSpec) -> Callable[[Workspace], None]:
    return lambda workspace: change(workspace.lake, spec, "known_at", shifted("known_at", -DAY, 4))


def no_request_in_test(workspace: Workspace) -> None:
    split = workspace.dataset().split()
    requests = workspace.lake.read(REQUESTS)
    workspace.lake.write(REQUESTS, requests.filter(pc.less(requests["requested_at"], split.test[0])))


def random_split(workspace: Workspace) -> None:
    def new(table: pa.Table) -> np.ndarray:
        return np.random.default_rng(1).permutation(table["split"].to_numpy(zero_copy_only=False))

    change(workspace.samples, SAMPLES, "split", new)
    same_samples(workspace)


def nothing(_: Workspace) -> None:
    """The fault is in what is asked."""


FAULTS = {
    "a future feature": (
        future_feature, (), r"\d+ of [\d,]+ impressions hold another value of \w+ in the samples than was known .* request \d+, post \d+"),
    "a model trained on the test window": (
        trained_in_test, (), r"the ranker model \w+ was trained on the log until .* 05:00, after the test window began"),
    "a window that overlaps training": (
        nothing, ("--from", "2024-05-10", "--to", "2024-05-18"),
        r"overlaps the training of the prerank model \w+ and the ranker model \w+.*: [\d,]+ impressions .* request \d+, post \d+"),
    "a window whose labels are open": (
        nothing, ("--to", "2024-05-20"), r"ends after .*: [\d,]+ requests would lack labels, such as request \d+"),
    "a random split": (
        random_split, (), r"not split by time: [\d,]+ of [\d,]+ impressions .* request \d+, post \d+, .*; a random split lets a model see"),
    "propensities that sum to a half": (
        scaled(0.5), (), r"do not sum to one: those of a pool sum to 0\.5 at each position, over [\d,]+ impressions, such as request \d+"),
    "propensities of nobody": (
        jittered, (), r"do not sum to one over a pool: inverse propensities add up to [12]\.\d+ of the pool size.* such as request \d+"),
    "a propensity of zero for what was shown": (
        zero_for_shown, (), r"(\d+) of \1 impressions of the test window have a propensity that .* outside \(0, 1\].* request \d+"),
    "a log without propensities given to IPS": (
        no_propensities, ("--estimator", "ips"), r"ips weighs by propensities, and ([\d,]+) of \1 impressions .* none, such as request"),
    "request ids twice": (request_twice, (), r"3 request ids of the test window come more than once, such as request \d+ \(2 times\)"),
    "an action before its request": (
        action_before_request, (), r"2 of [\d,]+ actions are dated before the request .* by up to 2\d\d,\d+\.\d+ s, such as action_id \d+"),
    "an impression before its request": (
        impression_before_request, (), r"\d+ of \d+ impressions of the test window are dated before their request"),
    "a session in the future": (
        session_after_the_end, (), r"2 of [\d,]+ sessions start after the log ended \(2024-05-20 00:00\).* such as user_id \d+"),
    "actions known before they were done": (
        known_before(ACTIONS), (), r"4 of [\d,]+ rows of actions were known \(known_at\) before .* such as action_id \d+"),
    "posts known before they were written": (
        known_before(POSTS), (), r"4 of [\d,]+ rows of posts were known \(known_at\) before .* such as post_id \d+"),
    "impressions known before they were shown": (
        known_before(IMPRESSIONS), (), r"4 of [\d,]+ rows of impressions were known \(known_at\) before .* request_id \d+, post_id \d+"),
    "an empty window": (nothing, ("--from", "2024-05-18", "--to", "2024-05-18"), r"is empty: 0 requests"),
    "a test window without requests": (
        no_request_in_test, (), r"the test window, .*, has no request: 0 of the log's [\d,]+ requests .* such as request \d+"),
    "a policy that is not there": (nothing, ("--policy", "loudest"), r"there is no policy 'loudest' to replay; there are: chronological, "),
    "a date that is none": (nothing, ("--from", "yesterday"), r"--from 'yesterday' is no date"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_stops_the_run_and_leaves_the_earlier_report(copy, small_replays, name):
    plant, options, sentence = FAULTS[name]
    before = {path: path.read_bytes() for path in copy.reports.glob("replay.*")}
    value_model = (copy.artifacts.root / "value_model" / "CURRENT").read_bytes()
    plant(copy)
    result = CliRunner().invoke(main, ["replay", "--workspace", str(copy.root), *BASELINE_ALONE, *options])
    said = result.stderr.splitlines()[-1]
    assert result.exit_code == 2, result.stderr
    assert re.search(sentence, said), said
    assert said.count("feedloop: ") == 1
    assert before == {path: path.read_bytes() for path in copy.reports.glob("replay.*")} and len(before) == 2
    assert (copy.artifacts.root / "value_model" / "CURRENT").read_bytes() == value_model
    assert not list(copy.artifacts.root.glob("*/.building-*"))


def test_the_log_without_a_fault_is_replayed_for_the_policies_and_days_asked_for(copy, small_replays):
    options = [
        "--policy",
        "popularity",
        "--from",
        "2024-05-17T12:00",
        "--to",
        "2024-05-18",
        "--estimator",
        "pbm",
        "--json",
    ]
    result = CliRunner().invoke(main, ["replay", "--workspace", str(copy.root), *options])
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    report = json.loads((copy.reports / "replay.json").read_text())
    assert list(said["policies"]) == ["chronological", "popularity"]
    assert report["windows"]["test"]["start"] == "2024-05-17 12:00"
    assert report["windows"]["test"]["end"] == "2024-05-18 00:00"
    assert {policy["headline"]["estimator"] for policy in report["policies"]} == {"pbm"}
    assert report["served"] is None and said["value_model"] is None
    assert "popularity" in report["verdict"][0]
