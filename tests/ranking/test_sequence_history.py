"""Histories hold what had happened and was known before the request, and a candidate sees them and no other candidate."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from contracts.clock import DAY, HOUR, MINUTE
from contracts.lake import Lake
from contracts.tables import ACTION_KINDS, ACTIONS, POSTS
from ranking.sequence.history import AGES, MOST_TIES, Histories, histories
from ranking.sequence.network import build_network
from ranking.sequence.tokens import slots_of
from tests.ranking.sequence_problem import HISTORY, SMALL, VOCABULARY, problem

NOW = 1_700_006_400 * 1_000_000
VIEWER, OTHER = 1, 2


def _actions(rows: list[tuple]) -> pa.Table:
    """Rows of (viewer, post, author, kind, occurred before the request, known after it happened), times in microseconds."""
    columns = {
        "action_id": range(len(rows)), "request_id": [None] * len(rows), "user_id": [row[0] for row in rows],
        "post_id": [row[1] for row in rows], "author_id": [row[2] for row in rows], "kind": [row[3] for row in rows],
        "value": [None] * len(rows), "occurred_at": [NOW - row[4] for row in rows],
        "known_at": [NOW - row[4] + row[5] for row in rows],
    }  # fmt: skip
    return pa.table(columns).cast(ACTIONS.schema)


def _posts() -> pa.Table:
    """Post 20 became topic 6 only two hours before the request; post 30 was known an hour before."""
    versions = [(10, 100, 3, 9 * DAY), (20, 200, 5, 9 * DAY), (20, 200, 6, 2 * HOUR), (30, 300, 7, HOUR)]
    columns = {
        name: [None] * len(versions)
        for name in ("origin_post_id", "subject_id", "edited_at", "text", "embedding", "audience", "deleted_at")
    }
    columns |= {
        "post_id": [v[0] for v in versions], "author_id": [v[1] for v in versions], "topic": [v[2] for v in versions],
        "created_at": [NOW - 9 * DAY] * len(versions), "known_at": [NOW - v[3] for v in versions],
        "kind": ["text"] * len(versions), "visibility": ["public"] * len(versions),
    }  # fmt: skip
    return pa.table({name: pa.array(columns[name], POSTS.schema.field(name).type) for name in POSTS.schema.names})


PAST = [
    (VIEWER, 10, 100, "like", 2 * DAY, MINUTE), (VIEWER, 20, 200, "click", 3 * HOUR, MINUTE),
    (VIEWER, 10, 100, "comment", HOUR, MINUTE), (VIEWER, 30, 300, "share", 90 * MINUTE, 0), (OTHER, 10, 100, "hide", HOUR, 0),
]  # fmt: skip
NOT_YET = [
    (VIEWER, 10, 100, "hide", -HOUR, 0), (VIEWER, 10, 100, "hide", 0, 0), (VIEWER, 20, 200, "hide", 2 * HOUR, 3 * HOUR),
    (VIEWER, 20, 200, "hide", 2 * HOUR, 2 * HOUR),
]  # fmt: skip
"""Later; at the very moment; long before but known later; known at the very moment."""


def _found(folder: Path, rows: list[tuple], length: int = 5) -> Histories:
    lake = Lake(folder)
    lake.write(ACTIONS, _actions(rows))
    lake.write(POSTS, _posts())
    return histories(lake, np.array([VIEWER, 77]), np.array([NOW, NOW]), length)


def _shown(found: Histories) -> list[list]:
    return [
        getattr(found, name)[found.there_RK].tolist() for name in ("kinds_RK", "topics_RK", "authors_RK", "ties_RK")
    ]


def test_a_history_is_what_the_viewer_did_oldest_first_as_it_was_known(tmp_path: Path):
    found = _found(tmp_path, PAST)
    assert found.there_RK.tolist() == [[False, True, True, True, True], [False] * 5]
    kinds, topics, authors, ties = _shown(found)
    assert [ACTION_KINDS[kind] for kind in kinds] == ["like", "click", "share", "comment"]
    assert topics == [3, 5, -1, 3], "each post's topic as known with the action; post 30 was not known then"
    assert authors == [100, 200, 300, 100] and ties == [0, 0, 0, 1]
    assert found.ages_RK[0, 1:].tolist() == [
        int(np.log2(1 + at / MINUTE)) for at in (2 * DAY, 3 * HOUR, 90 * MINUTE, HOUR)
    ]
    assert found.ties_with(np.array([0, 0, 1]), np.array([100, 400, 100])).tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    "planted", [*([one] for one in NOT_YET), NOT_YET], ids=["later", "now", "late", "late now", "all"]
)
def test_what_came_later_or_was_known_later_moves_nothing(tmp_path: Path, planted: list[tuple]):
    before, after = _found(tmp_path / "a", PAST), _found(tmp_path / "b", PAST + planted)
    assert _shown(before) == _shown(after)
    assert np.array_equal(before.there_RK, after.there_RK)
    assert np.array_equal(before.ages_RK[before.there_RK], after.ages_RK[after.there_RK])


def test_only_the_last_actions_are_kept_and_late_ones_take_no_place(tmp_path: Path):
    found = _found(tmp_path, PAST + NOT_YET, length=2)
    assert [ACTION_KINDS[kind] for kind in found.kinds_RK[0]] == ["share", "comment"]
    assert found.ties_RK[0].tolist() == [0, 0], "ties are counted inside the history alone"


def test_long_ago_and_many_ties_stay_inside_the_table(tmp_path: Path):
    many = [(VIEWER, 10, 100, "like", 9000 * DAY + number, 0) for number in range(20)]
    found = _found(tmp_path, many, length=20)
    assert found.ages_RK.max() == AGES - 1 and found.ties_RK.max() == MOST_TIES
    ids = VOCABULARY.ids(found.kinds_RK + 1, found.kinds_RK * 0, found.kinds_RK * 0, found.ties_RK, found.ages_RK + 1)
    assert ids.min() >= 0 and ids.max() < VOCABULARY.rows


def test_values_outside_the_vocabulary_share_slot_0():
    assert slots_of(np.array([4, 7, 9, -1, 100]), (4, 9)).tolist() == [1, 0, 2, 0, 0]
    assert slots_of(np.array([4]), ()).tolist() == [0]


def test_a_log_without_actions_gives_empty_histories(tmp_path: Path):
    assert not _found(tmp_path, []).there_RK.any()


def _logits(data, sample: int) -> torch.Tensor:
    made = problem()
    network = build_network(made.rows, made.slots_C, made.train.tasks, SMALL).eval()
    with torch.no_grad():
        for block in network.blocks:
            block.mlp.layer.bank.down.mul_(3.0)  # quiet experts would hide a leak between candidates
        tokens = data.batch(np.array([sample]), 0, torch.device("cpu"))
        return network(tokens, 0, network.logits)


def test_a_candidate_sees_the_history_and_not_the_others():
    data = problem().train
    sample = int(np.flatnonzero((data.rows_SC >= 0).all(axis=1) & data.there_SK[:, -3:].all(axis=1))[0])
    usual = _logits(data, sample)[-1]
    # The last one: causality alone would hide what comes after it, not what comes before.
    data.candidate_NX[data.rows_SC[sample, :-1], 2] = data.candidate_NX[data.rows_SC[sample, -1], 2]
    data.tasks.numeric_NM[data.rows_SC[sample, :-1]] += 5.0
    assert torch.allclose(_logits(data, sample)[-1], usual, atol=1e-12)
    data.history_SKX[sample, HISTORY - 2, 0] = 1 + data.history_SKX[sample, HISTORY - 2, 0] % 8
    assert (_logits(data, sample)[-1] - usual).abs().max() > 1e-6
