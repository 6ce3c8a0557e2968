"""What a training run has beside its steps: schedules, a moving average of the weights, progress, and a log to be diagnosed."""

import dataclasses
import itertools
import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from distributed import ParallelLayout, Rank, TrainResult, train
from distributed.average import MovingAverage
from distributed.groups import Mesh
from distributed.models.transformer import Tokens
from distributed.parallelize import ParallelStyle, parallelize
from distributed.planner.diagnosis import diagnose, read_step_log
from distributed.schedules import SHAPES, rate_factor
from distributed.stack_work import StackWork
from distributed.step_log import StepLog
from distributed.trainer import TrainerSettings, train_work
from distributed.waits import axis_of
from tests.distributed import parity
from tests.distributed.parity import SEQUENCE, SIZES, Case
from tests.distributed.pool import pool
from tests.distributed.workers import Network, Problem

SETTINGS = TrainerSettings(epochs=3, batch_size=50, learning_rate=0.02, clip_norm=0.5, average_decay=0.9)
SPARSE = dataclasses.replace(SIZES, experts=4)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_schedule_warms_up_to_its_peak_and_none_rises_again(shape: str):
    factors = [rate_factor(shape, 100, 0.1)(step) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(factors) == 1.0 and all(a >= b for a, b in itertools.pairwise(factors[9:]))
    assert factors[55] == pytest.approx({"cosine": 0.5, "linear": 0.5, "constant": 1.0, "wsd": 1.0}[shape])
    assert factors[99] == 1.0 if shape == "constant" else factors[99] < 0.06


def test_a_stable_phase_can_be_ended_anywhere_and_other_names_are_refused():
    # The first half of a long run is that of one that would have been longer.
    one, other = (rate_factor("wsd", steps, 10 / steps) for steps in (100, 200))
    assert [one(step) for step in range(80)] == [other(step) for step in range(80)]
    with pytest.raises(ValueError, match="schedule is 'step', not cosine, linear, constant or wsd"):
        rate_factor("step", 10, 0.1)
    with pytest.raises(ValueError, match=r"warm-up over 0.1 and decay over 2 .* between 0 and 1"):
        rate_factor("wsd", 10, 0.1, 2)


def averaged(rank: Rank, case: Case) -> dict[str, np.ndarray]:
    """The averages after three steps, and whether the weights came back afterwards."""
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(parity.build(case.sizes), mesh, case.style, SEQUENCE)
    data, gradients_of = parity.in_place(parallel, mesh, case)
    optimizer = torch.optim.AdamW(data.parameters(), lr=0.01)
    average = MovingAverage(data, 0.5)
    for step in range(3):
        gradients_of(parity.micro_batches(step, case, mesh), step)
        optimizer.step()
        data.after_step()
        average.update()
    before = parity.whole(parallel, data, False)
    with average.in_place():
        inside = parity.whole(parallel, data, False)
    after = parity.whole(parallel, data, False)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert max(np.abs(before[name] - inside[name]).max() for name in before) > 1e-3
    return inside


@pytest.mark.parametrize("axes", ["dp_shard=2,tp=2", "pp=2,dp_shard=2"])
def test_the_average_of_shards_is_the_shard_of_the_average(axes: str):
    case = Case(ParallelLayout.parse(axes), ParallelStyle(zero=3))
    single = averaged(Rank(), Case(ParallelLayout()))
    for found in pool().run(averaged, (case,), 4):
        assert max(np.abs(found[name] - single[name]).max() for name in found) < 1e-9


def fit_averaged(rank: Rank, settings: TrainerSettings, layout: ParallelLayout | None = None) -> TrainResult:
    problem = Problem()
    return train(Network(rank.index), problem.loss, 203, problem.validate, 203, settings, rank, layout=layout)


def test_the_trainer_validates_and_keeps_the_average_on_any_number_of_ranks():
    single, plain = (
        fit_averaged(Rank(), SETTINGS),
        fit_averaged(Rank(), dataclasses.replace(SETTINGS, average_decay=None)),
    )
    found = pool().run(fit_averaged, (SETTINGS, ParallelLayout(dp_shard=2)), 2)[0]
    assert [h["validation"] for h in found.history] == pytest.approx(
        [h["validation"] for h in single.history], abs=1e-9
    )
    assert single.history[0]["train"] == plain.history[0]["train"]
    assert single.history[0]["validation"] != plain.history[0]["validation"]
    assert max((found.state[name] - single.state[name]).abs().max() for name in single.state) < 1e-9


def logged(rank: Rank, axes: str, style: ParallelStyle, path: str) -> list[str]:
    """Two epochs of a small mixture; the lines of progress."""

    def batch(rows_B: np.ndarray, first: int) -> Tokens:
        ids = torch.from_numpy(np.random.default_rng(0).integers(0, SIZES.vocabulary, (12, SEQUENCE)))[rows_B]
        return Tokens.packed(ids, torch.zeros_like(ids), first)

    def figures(hidden_BLD: torch.Tensor, _: Tokens) -> torch.Tensor:
        return torch.stack([hidden_BLD.square().sum(), hidden_BLD.new_tensor(float(hidden_BLD.numel()))])[None]

    mesh = Mesh(ParallelLayout.parse(axes), rank)
    work = StackWork(parity.build(SPARSE), mesh, style, SEQUENCE, batch, batch, figures, micro_batches=2)
    said: list[str] = []
    settings = TrainerSettings(epochs=2, batch_size=6)
    train_work(work, 12, 6, settings, report=said.append, step_log=Path(path))
    return said


def test_the_log_of_a_run_is_diagnosed_by_the_planner(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    said = pool().run(logged, ("pp=2,dp_shard=2", ParallelStyle(ep=2), str(path)), 4)[0]
    assert len(said) == 3 and "pp=2: inside a node" in said[0]
    assert "samples/s" in said[1] and "waiting (" in said[1] and "GB, 4 rank(s)" in said[1]
    lines = read_step_log(path)
    assert [(line["step"], line["rank"]) for line in lines] == [(step, rank) for step in range(4) for rank in range(4)]
    for line in lines:
        assert line["samples"] == 6 and line["stage"] == line["rank"] // 2
        assert set(line["communication_s"]) >= {"dp", "ep"}
        spent = line["compute_s"] + sum(line["communication_s"].values()) + line["bubble_s"]
        assert spent == pytest.approx(line["seconds"], rel=1e-6)
    # Each of a step's 6 samples has 16 tokens with 2 choices in each of 2 layers.
    assert sum(sum(line["expert_tokens"]) for line in lines if line["step"] == 0) == 6 * 16 * 2 * 2
    found = diagnose(lines)
    assert found.steps == 4 and 0 < found.communication < 1 and found.bubble is not None
    assert found.expert_imbalance is not None and found.dropped == 0

    from feedloop.cli import main

    ask = ["plan", "--model", "llama3-8b", "--cluster", "h100", "--diagnose", str(path), "--json"]
    read = CliRunner().invoke(main, ask)
    assert read.exit_code == 0, read.output
    assert json.loads(read.stdout)["by_axis"].keys() == found.by_axis.keys()


@pytest.mark.parametrize("room", [0, 1, 150])
def test_lines_that_find_no_room_leave_whole_lines_and_the_name_of_the_file(tmp_path: Path, room: int):
    path = tmp_path / "steps.jsonl"
    log = StepLog(Mesh(ParallelLayout(), Rank()), path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    _two_steps(log)
    whole = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + room, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            _two_steps(log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(path) and path.read_bytes() == whole
    _two_steps(log)
    assert path.read_bytes().count(b"\n") == 4


def _two_steps(log: StepLog) -> None:
    for step in range(2):
        log.begin()
        log.end(step, 5)
    log.flush()


def counted(rank: Rank) -> tuple[str, float]:
    mesh = Mesh(ParallelLayout(dp_replicate=rank.world_size), rank)
    log = StepLog(mesh, peak_flops=1e12)
    matrix = torch.ones(10, 20, requires_grad=True)
    for step in range(2):
        log.begin()
        (torch.ones(5, 10) @ matrix).sum().backward()
        log.end(step, 5 * rank.world_size)
    return log.progress(), log._flops_per_sample


def test_the_share_of_the_peak_counts_the_operators_of_a_step():
    # 2 x 10 x 20 for a row forward; the gradient of the matrix as much, none for the rows.
    for said, flops in (counted(Rank()), *pool().run(counted, (), 2)):
        assert flops == 2 * 2 * 10 * 20 and "% of the peak" in said


@pytest.mark.parametrize(
    ("name", "axis"),
    [("tp", "tp"), ("dp_replicatexdp_shardxcp", "dp"), ("dp_shardxcp", "dp"), ("dp_shardxcp.inner2", "ep"),
     ("dp_shardxcp.outer2", "dp"), ("cp.inner2", "cp"), ("cp.outer2", "cp"), ("tp.inner2", "tp"), ("pp", "pp"),
     ("ppxdp_replicatexdp_shardxcpxtp", "world"), ("cpxtp", "cp")],
)  # fmt: skip
def test_a_group_works_for_one_axis(name: str, axis: str):
    assert axis_of(name) == axis
