"""The merge of paths: no doubles, a stable order, and who brought what."""

import numpy as np
import pytest

from recall.merge import merge_paths
from recall.posts import PostColumns, Ranked
from recall.settings import MergeSettings

WEIGHTS = MergeSettings(
    weights={"a": 1.0, "b": 1.0, "c": 0.5}, quota={"a": 50, "b": 50, "c": 50}, constant=10.0, total=500
)


def ranked(post_ids, groups=None, created=None):
    post_id_K = np.array(post_ids, np.int64)
    groups = post_id_K if groups is None else np.array(groups, np.int64)
    created = post_id_K * 0 if created is None else np.array(created, np.int64)
    return Ranked(
        PostColumns(post_id_K, post_id_K, post_id_K, groups, created), -np.arange(len(post_id_K), dtype=float)
    )


def test_the_fused_score_is_the_sum_of_reciprocal_places():
    merged = merge_paths({"a": ranked([1, 2]), "b": ranked([2, 3])}, WEIGHTS)
    score = dict(zip(merged.posts.post_id_N.tolist(), merged.score_K.tolist()))
    assert score[1] == pytest.approx(1 / 11)
    assert score[2] == pytest.approx(1 / 12 + 1 / 11)
    assert score[3] == pytest.approx(1 / 12)
    assert merged.posts.post_id_N.tolist() == [2, 1, 3]


def test_equal_scores_go_newer_first_then_larger_id_whatever_the_order_of_paths_and_rows():
    paths = {"a": ranked([1, 4], created=[5, 5]), "b": ranked([2, 3], created=[9, 5])}
    expected = [2, 1, 4, 3]
    assert merge_paths(paths, WEIGHTS).posts.post_id_N.tolist() == expected
    assert merge_paths(dict(reversed(paths.items())), WEIGHTS).posts.post_id_N.tolist() == expected


def test_random_paths_merge_the_same_under_any_order_of_the_mapping(rng):
    for _ in range(20):
        paths = {name: ranked(rng.permutation(40)[:25], created=rng.integers(0, 3, 25)) for name in "abc"}
        for path in paths.values():
            path.posts.group_id_N[:] = path.posts.post_id_N % 17
            path.posts.created_at_N[:] = path.posts.post_id_N % 3
        names = rng.permutation(list("abc"))
        first = merge_paths(paths, WEIGHTS)
        second = merge_paths({name: paths[name] for name in names}, WEIGHTS)
        assert first.posts.post_id_N.tolist() == second.posts.post_id_N.tolist()
        assert first.paths == second.paths and (first.brought_KP == second.brought_KP).all()


def test_one_thing_takes_one_place_and_every_path_that_brought_it_is_named():
    merged = merge_paths({"a": ranked([1, 5], groups=[7, 5]), "b": ranked([2], groups=[7])}, WEIGHTS)
    assert sorted(merged.posts.group_id_N.tolist()) == [5, 7]
    of_seven = merged.brought_KP[merged.posts.group_id_N == 7][0]
    assert dict(zip(merged.paths, of_seven.tolist())) == {"a": True, "b": True}


def test_a_path_enters_with_its_quota_only():
    settings = WEIGHTS.model_copy(update={"quota": {"a": 3, "b": 50, "c": 50}})
    merged = merge_paths({"a": ranked(range(20)), "b": ranked([])}, settings)
    assert sorted(merged.posts.post_id_N.tolist()) == [0, 1, 2]


def test_no_path_found_anything_gives_an_empty_answer():
    assert len(merge_paths({"a": Ranked.empty()}, WEIGHTS)) == 0
