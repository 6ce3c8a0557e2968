"""Recall as a whole on a tiny log: nothing from the future, the artifact serves, new and deleted posts at once."""

import subprocess
import sys

import numpy as np
import pytest

from contracts.clock import DAY, HOUR, MINUTE
from contracts.errors import BadInput
from contracts.workspace import Workspace
from recall.log import read_log
from recall.paths import train_paths
from recall.runtime import RecallRuntime
from recall.train import train_recall
from recall.vector import NewPost
from tests.recall.world import DAYS, START, action_row, make_rows, post_row, small_settings, write

END = START + DAYS * DAY


@pytest.fixture(scope="module")
def rows():
    return make_rows(np.random.default_rng(11))


@pytest.fixture(scope="module")
def trained(rows, tmp_path_factory):
    made = {**rows, "posts": [*rows["posts"],
        post_row(9001, 1, END - HOUR, visibility="private"), post_row(9002, 1, END - HOUR, visibility="friends"),
        post_row(9003, 1, END - HOUR, visibility="list", audience=[3]), post_row(9004, 1, END - HOUR, deleted_at=END - MINUTE),
        post_row(9005, 3, END - HOUR, kind="share", origin_post_id=9002), post_row(9006, 1, END - HOUR),
    ]}  # fmt: skip
    workspace = write(tmp_path_factory.mktemp("recall"), made)
    return workspace, train_recall(workspace, small_settings(workspace))


@pytest.fixture
def runtime(trained):
    return RecallRuntime.load(trained[0].artifacts.load("recall"))


def test_the_merge_beats_popularity_where_tastes_differ(trained):
    recall = trained[1]["test"]["recall"]
    assert recall["merged"] >= recall["popular"]
    assert (
        0 < recall["merged"] <= trained[1]["test"]["candidate_ceiling"] <= trained[1]["test"]["relevant_in_pool"] <= 1
    )


def test_the_same_log_gives_the_same_version(trained):
    workspace, report = trained
    assert train_recall(workspace, small_settings(workspace))["version"] == report["version"]


def test_a_planted_future_changes_nothing_that_was_trained_before_it(rows, tmp_path):
    as_of = START + 12 * DAY
    future = post_row(9999, 4, as_of)
    planted = [action_row(900_000 + u, u, future, as_of + MINUTE) for u in range(60)]
    late = [action_row(910_000 + u, u, rows["posts"][0], START + 2 * HOUR, known_at=as_of) for u in range(60)]
    joined = {"user_id": 500, "registered_at": as_of, "known_at": as_of, "city": "city0"}
    plain = write(tmp_path / "plain", rows)
    other = write(tmp_path / "planted", {**rows, "posts": [*rows["posts"], future], "users": [*rows["users"], joined],
                                         "actions": [*rows["actions"], *planted, *late]})  # fmt: skip
    early = [action_row(920_000 + u, u, rows["posts"][0], as_of - HOUR) for u in range(60)]
    changed = write(tmp_path / "past", {**rows, "actions": [*rows["actions"], *early]})
    settings = small_settings(plain)
    first, second, third = (train_paths(read_log(w.lake), as_of, settings) for w in (plain, other, changed))
    assert first.viewer_UD.tobytes() == second.viewer_UD.tobytes()
    assert first.channels.score_T.tobytes() == second.channels.score_T.tobytes()
    assert first.viewer_UD.tobytes() != third.viewer_UD.tobytes()


def test_nothing_but_public_posts_comes_out_of_the_runtime(runtime):
    for user in range(60):
        found = set(runtime.search(user, END, 500).posts.post_id_N.tolist())
        found |= set(runtime.popular(user, END, 500).posts.post_id_N.tolist())
        assert not found & {9001, 9002, 9003, 9004, 9005}
        assert (9006 in found) == (user != 1)


def test_the_index_finds_what_exact_search_finds(trained, runtime):
    with np.load(trained[0].artifacts.load("recall").file("posts.npz")) as file:
        post_id_N, vector_ND = file["post_id_N"], file["vector_ND"]
    best = post_id_N[np.argsort(-(vector_ND @ runtime.viewer_vector(500)), kind="stable")]
    found = runtime.search(500, END, 5).posts.post_id_N
    assert found[0] == best[0]


def test_a_new_post_is_retrievable_at_once_by_vector_and_popularity_and_a_deleted_one_never_again(runtime):
    for post_id, visibility in ((70_001, "public"), (70_002, "friends"), (70_003, "private")):
        runtime.add_posts([NewPost(post_id, 2, END + MINUTE, "text", 0, visibility, embedding=[1, 0, 0, 0])])
    now = END + 2 * MINUTE
    assert 70_001 in runtime.search(4, now, 500).posts.post_id_N
    runtime.record(70_001, "share", now, city="city1")
    assert 70_001 in runtime.popular(4, now, 500, city="city1").posts.post_id_N
    for hidden in (70_002, 70_003):
        assert hidden not in runtime.search(4, now, 500).posts.post_id_N
    shares = [
        NewPost(70_010 + origin % 7, 2, now, "share", 0, "public", root_post_id=origin) for origin in (9006, 9002)
    ]
    runtime.add_posts(shares)
    found = runtime.search(4, now, 500).posts.group_id_N
    assert 9006 in found and 9002 not in found
    runtime.remove_post(70_001)
    assert 70_001 not in runtime.search(4, now, 500).posts.post_id_N
    assert 70_001 not in runtime.popular(4, now, 500).posts.post_id_N
    runtime.remove_post(70_001)


def test_posts_past_their_life_and_of_the_future_are_not_found(runtime):
    assert len(runtime.search(4, END + 30 * DAY, 100)) == 0
    assert len(runtime.popular(4, START - DAY, 100)) == 0


def test_a_viewers_channels_are_of_their_own_circle(runtime):
    for user in range(6):
        channels, _ = runtime.channels(user)
        assert (channels[:5] % 2 == user % 2).mean() > 0.7
    assert len(runtime.channels(12345)[0]) == 0


def test_loading_and_searching_needs_neither_torch_nor_implicit_nor_spark():
    code = ("import sys, recall.runtime, recall.social, recall.merge, recall.train\n"
            "bad = {'torch', 'implicit', 'pyspark', 'lightgbm'} & set(sys.modules)\nassert not bad, bad")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_log_and_a_log_that_nobody_liked_are_one_sentence_and_leave_no_artifact(tmp_path, rows):
    with pytest.raises(BadInput, match="no log yet"):
        train_recall(Workspace(tmp_path / "empty"))
    workspace = write(tmp_path / "silent", {**rows, "actions": []})
    with pytest.raises(BadInput, match="nothing to learn from"):
        train_recall(workspace)
    assert not workspace.artifacts.versions("recall")
