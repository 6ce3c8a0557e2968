"""What was trained and let go of leaves no model, no group and no thread behind on a rank."""

import os

import pytest

from distributed import ParallelLayout
from tests.distributed.parity import Case, train_under
from tests.distributed.pool import pool
from tests.distributed.workers import left_behind


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system does not list a process's threads")
def test_training_again_and_again_leaves_no_models_and_no_threads():
    before = pool().run(left_behind, (), 4)
    for axes in ("cp=2,tp=2", "dp_replicate=2,dp_shard=2", "pp=2,tp=2"):
        pool().run(train_under, (Case(ParallelLayout.parse(axes), steps=1),), 4)
    after = pool().run(left_behind, (), 4)
    assert [alive for alive, _ in after] == [0] * 4
    assert all(now <= then for (_, now), (_, then) in zip(after, before, strict=True)), (before, after)
