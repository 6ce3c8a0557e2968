"""What a log must be like before replay judges by it: each planted fault gives one sentence, and nothing else happens."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest

from contracts.artifacts import Artifact
from contracts.clock import DAY, HOUR, SECOND
from contracts.errors import BadInput
from contracts.features import FEATURE_NAMES
from contracts.samples import SAMPLES
from contracts.splits import TimeSplit
from contracts.tables import IMPRESSIONS, POSTS, REQUESTS
from contracts.workspace import Workspace
from simulator.replay.checks import check_model
from simulator.replay.evidence import Evidence
from simulator.replay.exposure import examination_by_position, mixture
from simulator.replay.window import load_window

SPLIT = TimeSplit((0, 4 * DAY), (5 * DAY, 6 * DAY), (7 * DAY, 9 * DAY), DAY)


def write_log(root, fault=None, requests=20, pool=5, slate=3) -> Workspace:
    """Twenty test requests of one viewer each, pools of five, slates of three; `fault` changes the rows before writing."""
    rows = {"requests": [], "impressions": [], "samples": []}
    for r in range(requests):
        at = 7 * DAY + r * HOUR
        posts = [100 * r + i for i in range(pool)]
        rows["requests"].append({"request_id": r, "user_id": r % 6, "requested_at": at, "policy": "p", "experiment": None,
                                 "slate_size": slate, "candidates": posts, "known_at": at})  # fmt: skip
        for k in range(slate):
            common = {"request_id": r, "user_id": r % 6, "post_id": posts[(k + r) % pool], "author_id": 1, "position": k,
                      "shown_at": at, "policy": "p", "propensity": 1 / pool}  # fmt: skip
            rows["impressions"].append({**common, "viewed_ms": 10, "experiment": None, "feature_version": None,
                                        "features": None, "known_at": at})  # fmt: skip
            labels = {
                "label_click": int(k == 0),
                "label_like": 0,
                "label_comment": 0,
                "label_share": None,
                "label_hide": int(k == 2),
            }
            rows["samples"].append({**common, "requested_at": at, "viewed": True, "split": "test",
                                    "examination": 1.0, "keep_share": 1.0, **labels,
                                    **dict.fromkeys(FEATURE_NAMES, 0.0)})  # fmt: skip
    if fault:
        fault(rows)
    workspace = Workspace(root)
    workspace.lake.write(REQUESTS, pa.Table.from_pylist(rows["requests"], schema=REQUESTS.schema))
    workspace.lake.write(IMPRESSIONS, pa.Table.from_pylist(rows["impressions"], schema=IMPRESSIONS.schema))
    workspace.lake.write(POSTS, pa.Table.from_pylist(posts_of(rows), schema=POSTS.schema))
    workspace.samples.write(SAMPLES, pa.Table.from_pylist(rows["samples"], schema=SAMPLES.schema))
    return workspace


def posts_of(rows: dict) -> list[dict]:
    """One post a second, in the order of their ids, but for those in `created_later`."""
    wanted = sorted({post_id for request in rows["requests"] for post_id in request["candidates"]})
    fixed = {"author_id": 1, "kind": "text", "topic": 0, "visibility": "public"}
    created = {post_id: post_id * SECOND for post_id in wanted} | rows.get("created_later", {})
    return [
        {"post_id": post_id, "created_at": created[post_id], "known_at": created[post_id], **fixed}
        for post_id in wanted
    ]


def load(root, fault=None, limit=None):
    return load_window(write_log(root, fault), SPLIT, "test", has_propensities=True, limit=limit)


def set_propensity(value):
    def fault(rows):
        for row in rows["samples"][4:6]:
            row["propensity"] = value

    return fault


def twice(rows):
    rows["requests"].append(dict(rows["requests"][3]))


def two_at_one_position(rows):
    rows["samples"][1]["position"] = 0


def outside_its_pool(rows):
    rows["requests"][0]["candidates"] = [1, 2]


def shown_before_asked(rows):
    for row in rows["samples"][6:9]:
        row["shown_at"] -= 5 * SECOND


def shown_before_created(rows):
    """Request 2 is moved to before its third post was written."""
    for row in (rows["requests"][2], *rows["samples"][6:9], *rows["impressions"][6:9]):
        for name in ("requested_at", "shown_at"):
            if name in row:
                row[name] = 7 * DAY
    rows["created_later"] = {202: 7 * DAY + 90 * SECOND}


def no_requests(rows):
    for row in rows["requests"]:
        row["requested_at"] -= 7 * DAY


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (set_propensity(None), r"2 of 60 impressions .* missing or outside \(0, 1\], such as request 1, position 1, post 10.: None"),
        (set_propensity(0.0), r"2 of 60 impressions .*: 0.0"),
        (set_propensity(1.5), r"2 of 60 impressions .*: 1.5"),
        (twice, r"1 request ids of the test window come more than once, such as request 3 \(2 times\)"),
        (two_at_one_position, r"1 positions of the test window hold more than one post, such as request 0 at position 0"),
        (outside_its_pool, r"1 impressions .* not among their request's candidates, such as request 0, post 0"),
        (shown_before_asked, r"3 of 60 impressions .* dated before their request, by up to 5.000 s, such as request 2, post 202: a clock"),
        (shown_before_created, r"1 of 60 impressions .* created after the request, such as request 2, post 202, created 90.000 s later"),
        (no_requests, r"the test window, 1970-01-08 00:00 to 1970-01-10 00:00, .* 0 of the log's 20 requests .* request 19, the last"),
    ],
)  # fmt: skip
def test_a_faulty_log_gives_one_sentence_with_the_count_and_an_example(tmp_path, fault, sentence):
    with pytest.raises(BadInput, match=sentence):
        load(tmp_path, fault)


def test_reward_is_worth_times_label_and_absent_tasks_count_nothing(tmp_path):
    window = load(tmp_path)
    assert window.reward_RK.tolist() == [[1.0, 0.0, -8.0]] * 20
    assert np.isnan(window.label_RKT[:, :, 3]).all()


def test_a_slate_that_is_not_whole_is_left_out(tmp_path):
    window = load(tmp_path, lambda rows: rows["samples"].pop(7))
    assert window.total_requests == 19
    assert 2 not in window.request_R


def test_the_subsample_depends_on_the_ids_alone(tmp_path):
    chosen = load(tmp_path / "a", limit=8).request_R
    fewer = load(tmp_path / "b", lambda rows: [rows["requests"].pop(i) for i in (19, 0)], limit=8).request_R
    assert len(chosen) == 8
    assert set(chosen) - {0, 19} <= set(fewer)
    assert np.all(np.diff(chosen) > 0)  # in time order


def test_pool_rows_find_each_post_in_its_own_pool_only(tmp_path):
    window = load(tmp_path)
    rows = window.pool_rows(window.post_RK)
    assert np.array_equal(window.pool_P[rows], window.post_RK)
    stranger = np.roll(window.post_RK, 1, axis=0)
    assert (window.pool_rows(stranger) == -1).all()


def test_exposure_is_known_only_where_every_propensity_comes_out(tmp_path):
    """Epsilon 0.5 over pools of five, newest first else; planted: one propensity that no such mixture gives."""

    def mixed(rows, wrong=False):
        for row in rows["samples"]:
            rank = 4 - row["post_id"] % 100  # posts were created in the order of their ids
            row["propensity"] = 0.5 / 5 + 0.5 * (rank == row["position"])
        if wrong:
            rows["samples"][10]["propensity"] += 0.01

    window = load(tmp_path / "true", mixed)
    examination_K = np.array([1.0, 0.5, 0.25])
    logging = mixture(window)
    exposure_RK = logging.exposure(window, examination_K)
    newest_RK = window.post_RK % 100 == 4
    second_RK = window.post_RK % 100 == 3
    third_RK = window.post_RK % 100 == 2
    expected = 0.5 * 1.75 / 5 + 0.5 * (newest_RK * 1.0 + second_RK * 0.5 + third_RK * 0.25)
    assert exposure_RK == pytest.approx(expected)
    assert examination_by_position(window).tolist() == [1.0, 1.0, 1.0]
    in_order_R = (window.post_RK % 100 == [4, 3, 2]).all(axis=1)
    assert logging.prefix(window)[:, 2] == pytest.approx(0.5 / (5 * 4 * 3) + 0.5 * in_order_R)
    calibration = logging.calibration(window)
    assert calibration["predicted"] == pytest.approx([0.6] * 3)
    assert calibration["observed"][0] == pytest.approx(newest_RK[:, 0].mean())
    assert mixture(load(tmp_path / "wrong", lambda rows: mixed(rows, True))) is None


def test_a_mixture_whose_propensities_sum_to_more_than_one_is_refused(tmp_path):
    def mixed_and_scaled(rows):
        for row in rows["samples"]:
            row["propensity"] = 1.2 * (0.5 / 5 + 0.5 * (4 - row["post_id"] % 100 == row["position"]))

    with pytest.raises(
        BadInput, match=r"sum to 1.2 at each position, over 60 impressions, such as request 0, position 0, post 0"
    ):
        mixture(load(tmp_path, mixed_and_scaled))


@pytest.mark.parametrize(
    ("parents", "metrics", "sentence"),
    [
        ({"samples": "b" * 64}, {}, "was trained on samples bbbbbbbbbbbb, not on the present aaaaaaaaaaaa"),
        ({"samples": "a" * 64}, {"trained_until": 8 * DAY}, "trained on the log until 1970-01-09 00:00, after the test window began"),
    ],
)  # fmt: skip
def test_a_model_that_may_have_seen_the_test_window_is_refused(tmp_path, parents, metrics, sentence):
    artifact = Artifact("ranker", tmp_path, "v1", parents=parents, metrics=metrics)
    with pytest.raises(BadInput, match=sentence):
        check_model(artifact, "a" * 64, SPLIT.test[0])
    check_model(Artifact("ranker", tmp_path, "v1", parents={"samples": "a" * 64}), "a" * 64, SPLIT.test[0])


def test_cascade_forecasts_of_random_order_average_the_same_over_all_slates_there_are(tmp_path):
    """Six requests show the six orders of three posts; weights are 1, so a doubly robust correction must cancel exactly."""

    def all_orders(rows):
        for request, order in enumerate(permutations(range(3))):
            for k, post in enumerate(order):
                rows["samples"][3 * request + k].update(post_id=100 * request + post, propensity=1 / 3)
                rows["impressions"][3 * request + k]["post_id"] = 100 * request + post

    workspace = write_log(tmp_path, all_orders, requests=6, pool=3)
    window = load_window(workspace, SPLIT, "test", has_propensities=True, limit=None)
    predicted_33 = np.random.default_rng(1).random((3, 3))  # of each post at each position
    q_PK = predicted_33[window.pool_P % 100]
    positions = np.arange(3)
    baseline_RK = predicted_33[window.post_RK % 100, positions]
    log = replace(window.logged_data(), baseline_RK=baseline_RK)
    target = Evidence(window, log, q_PK, None, None).target(None)
    assert target.to_go_logged_RK.mean(axis=0) == pytest.approx(target.to_go_target_RK.mean(axis=0))
    assert target.prefix_probability_RK[:, 2] == pytest.approx(1 / 6)
