"""Replay from end to end on a small simulated log."""

from dataclasses import replace as replaced

import numpy as np
import pyarrow as pa
import pytest

import simulator.report.document as document
from contracts.clock import HOUR, SECOND
from contracts.errors import BadInput
from contracts.files import read_json
from contracts.samples import SAMPLES
from contracts.tables import ACTIONS
from contracts.workspace import Workspace
from serving.feed import Models, Query, ValueModel, pool_policy
from simulator.replay import replay
from simulator.replay.estimates import NAMES
from simulator.replay.walk import Walker
from simulator.replay.window import load_window


@pytest.fixture(scope="module")
def report(judged) -> dict:
    return read_json(judged.reports / "replay.json")


def test_report_judges_every_policy_beside_the_truth(report):
    names = [policy["name"] for policy in report["policies"]]
    assert names[:5] == ["chronological", "popularity", "random", "prerank", "full"]
    for policy in report["policies"]:
        assert policy["headline"]["low"] < policy["headline"]["value"] < policy["headline"]["high"]
        assert policy["truth"]["value"] > 0
        assert sorted([*policy["estimates"], *policy["refused"]]) == sorted(NAMES)
        assert all(sentence.startswith("no estimate: ") for sentence in policy["refused"].values())
        assert policy["overlap"]["effective_samples_min"] > 5
    gains = [policy["gain"] for policy in report["policies"] if policy["name"] != "chronological"]
    assert all(0 <= gain["p"] <= gain["p_holm"] <= 1 for gain in gains)
    assert min(gain["p_holm"] for gain in gains) == pytest.approx(min(1, len(gains) * min(gain["p"] for gain in gains)))
    assert report["truth"]["ceiling"] > max(policy["truth"]["value"] for policy in report["policies"])
    assert set(report["tasks"]) == {"click", "like", "comment", "share", "hide"}
    assert report["pool"]["refused"] <= 0.01 * report["pool"]["posts"]
    assert report["parity"]["differing"] == {}
    assert report["parity"]["rows"] > 100


def test_page_needs_nothing_from_elsewhere_and_shows_every_policy(judged, report):
    page = (judged.reports / "replay.html").read_text()
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<svg") >= 2 + 5
    for policy in report["policies"]:
        assert f"<b>{policy['name']}</b>" in page
    assert report["verdict"][0].split(":")[0] in page


def test_same_log_and_models_give_the_same_report_bytes(judged, report, copy, replay_settings):
    replay(copy, replay_settings)
    assert (copy.reports / "replay.json").read_bytes() == (judged.reports / "replay.json").read_bytes()
    assert (copy.reports / "replay.html").read_bytes() == (judged.reports / "replay.html").read_bytes()


def test_a_crash_while_the_report_is_written_leaves_the_earlier_one_whole(copy, report, monkeypatch, replay_settings):
    replay(copy, replay_settings)
    before = {name: (copy.reports / name).read_bytes() for name in ("replay.json", "replay.html")}
    calls = []

    def crash_after_the_names(link, target):
        calls.append(link.name)
        if link.name == "latest":
            raise KeyboardInterrupt
        original(link, target)

    original = document._point
    monkeypatch.setattr(document, "_point", crash_after_the_names)
    with pytest.raises(KeyboardInterrupt):
        replay(copy, replay_settings.model_copy(update={"seed": 8}))
    assert calls[-1] == "latest"
    assert {name: (copy.reports / name).read_bytes() for name in before} == before


def test_a_log_without_propensities_is_refused_estimates_but_gets_metrics(copy, replay_settings):
    dataset = copy.dataset()
    replaced(dataset, has_propensities=False).save(copy.dataset_path)
    result = replay(copy, replay_settings)
    found = read_json(copy.reports / "replay.json")
    assert "holds no propensities" in found["off_policy"]["reason"]
    assert found["verdict"][0] == found["off_policy"]["reason"]
    assert all(policy["headline"] is None and policy["ndcg"] > 0 for policy in found["policies"])
    assert found["tasks"]["click"]["auc"] is not None
    assert not found["tuning"]["tuned"]
    assert "could not be tuned" in found["tuning"]["sentence"]
    assert "holds no propensities" in (copy.reports / "replay.html").read_text()
    assert result["policies"]["full"]["headline"] is None


def test_samples_made_anew_after_training_are_refused_and_nothing_is_written(copy, replay_settings):
    table = copy.samples.read(SAMPLES)
    copy.samples.write(SAMPLES, table.slice(1), parents=copy.samples.manifest(SAMPLES).parents)
    versions = copy.artifacts.versions("report")
    with pytest.raises(BadInput, match="prerank model .* was trained on samples .* train it again"):
        replay(copy, replay_settings)
    assert copy.artifacts.versions("report") == versions
    assert not copy.artifacts.versions("value_model") or versions


def test_what_becomes_known_later_moves_no_earlier_request(judged, copy):
    """Planted: a hundred likes and clicks of the viewers themselves, done before the windows, known only half way through."""
    split = judged.dataset().split()
    half = (split.test[0] + split.test[1]) // 2
    window = load_window(judged, split, "test", has_propensities=True, limit=60)
    actions = copy.lake.read(ACTIONS)
    planted = [
        {"action_id": 10**9 + i, "request_id": None, "user_id": int(window.viewer_R[r]), "post_id": int(post_id),
         "author_id": int(author_of(copy, post_id)), "kind": "like", "value": None,
         "occurred_at": split.test[0] - HOUR, "known_at": half + i * SECOND // 1000}
        for i, (r, post_id) in enumerate((r, window.pool(r)[0]) for r in range(len(window.request_R)))
    ]  # fmt: skip
    copy.lake.write(ACTIONS, pa.concat_tables([actions, pa.Table.from_pylist(planted, schema=ACTIONS.schema)]))
    pipeline = pool_policy("chronological", Models(None, None, None, ValueModel({}), {}), judged.dataset().live_us)
    walked = [Walker(workspace, split).walk(window, {}, pipeline) for workspace in (judged, copy)]
    before_P = np.repeat(window.requested_at_R <= half, window.pool_size_R)
    same_P = (walked[0].inputs_PF == walked[1].inputs_PF).all(axis=1)
    assert same_P[before_P].all()
    assert not same_P[~before_P].all()  # the plant is real: once known, it counts


def author_of(workspace: Workspace, post_id: int) -> int:
    from contracts.tables import POSTS

    posts = workspace.lake.read(POSTS, ["post_id", "author_id"])
    return posts["author_id"].to_numpy()[posts["post_id"].to_numpy() == post_id][0]


def test_hydrating_once_for_all_policies_gives_each_policys_own_feed(judged):
    """What replay ranks is what the pipeline serves when it runs alone on the same store."""
    split, live_us = judged.dataset().split(), judged.dataset().live_us
    window = load_window(judged, split, "test", has_propensities=True, limit=15)
    from serving.feed import load_models

    models = load_models(judged, with_recall=False)
    policies = {name: pool_policy(name, models, live_us) for name in ("chronological", "popularity", "prerank", "full")}
    walked = Walker(judged, split).walk(window, policies, policies["chronological"])
    alone = Walker(judged, split)
    for r in range(len(window.request_R)):
        alone.changes.advance(alone.store, int(window.requested_at_R[r]))
        query = Query(
            int(window.viewer_R[r]), int(window.requested_at_R[r]), int(window.shown_RK[r].sum()), 0, window.pool(r)
        )
        for name, policy in policies.items():
            shown = policy.run(query, alone.store).post_id_K
            assert walked.slate_RK[name][r, : len(shown)].tolist() == shown.tolist()
