"""What stands beside PyTorch is the same training, sends what the formulas say, and says what a machine cannot show."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from benchmarks.beside_torch import one_gpu, traffic
from benchmarks.beside_torch.on_ranks import cases
from benchmarks.beside_torch.workload import Workload
from benchmarks.distributed import measure
from contracts.errors import BadInput
from distributed import Rank
from tests.distributed.pool import pool

TINY = Workload(layers=4, width=32, heads=4, kv_heads=2, feed_forward=32, vocabulary=64, length=16, samples=2)
CASES = cases(TINY, 2)


def losses(rank: Rank, number: int, other: dict | None = None) -> list[tuple[float, float]]:
    case = cases(TINY, 2)[number]
    sides = case.ours(rank, case.work), case.theirs(rank, dataclasses.replace(case.work, **(other or {})))
    return [(sides[0](key), sides[1](key)) for key in range(3)]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_both_sides_train_alike(number: int):
    for pairs in pool().run(losses, (number,), 2):
        assert all(one == pytest.approx(other, rel=1e-5) for one, other in pairs)
        assert pairs[2][0] < pairs[0][0]


def test_a_side_that_learns_at_another_rate_is_seen():
    pairs = pool().run(losses, (0, {"learning_rate": 2e-3}), 2)[0]
    assert pairs[0][0] == pytest.approx(pairs[0][1], rel=1e-5) and pairs[2][0] != pytest.approx(pairs[2][1], rel=1e-5)


def test_every_axis_sends_the_bytes_of_its_formula():
    for sent in pool().run(traffic.sent, (TINY,), 2)[0]:
        assert sent.counted == sent.formula and sum(sent.counted.values()) > 0, sent.layout


def test_the_one_device_path_runs_without_a_gpu():
    found = one_gpu.speeds("cpu", one_gpu.TINY, 2, (False,))
    assert [(one.attention, one.compiled) for one in found] == [("fused", False), ("eager", False)]
    assert all(one.tokens_per_s > 0 and one.mfu is None for one in found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the sentence is for machines without a GPU")
def test_a_gpu_that_was_asked_for_and_is_not_there_is_not_measured():
    result = measure(True, "cuda")
    assert not result.claims and "no CUDA device" in result.not_measured[0]


def test_another_device_is_refused_in_one_sentence():
    with pytest.raises(BadInput, match="--device is 'tpu'; it is cpu or cuda"):
        measure(True, "tpu")
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.distributed", "--device", "tpu"], capture_output=True, text=True
    )
    assert answer.returncode == 2 and answer.stderr.strip().count("\n") == 0
