"""Serving plans, diagnosis of logs and traces, and descriptions from modules."""

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from distributed.planner.descriptions import load_model
from distributed.planner.diagnosis import diagnose, from_trace, read_step_log
from distributed.planner.errors import PlanError
from distributed.planner.from_module import model_from_module
from distributed.planner.machines import load_cluster
from distributed.planner.serving import Traffic, advise, serving_plans
from feedloop.cli import main

LLAMA_8B, NODE = load_model("llama3-8b"), load_cluster("h100", 8)


def test_one_request_alone_is_fastest_on_all_cards_and_many_on_replicas():
    traffic = Traffic(2048, 256)
    best = advise(serving_plans(LLAMA_8B, NODE, traffic), traffic)
    assert (best["first result"].tp, best["first result"].replicas) == (8, 1)
    assert best["throughput"].replicas == 8
    assert best["throughput"].requests_per_s > 10 * best["first result"].requests_per_s


def test_a_model_too_large_for_one_card_is_split_and_one_too_large_for_all_is_refused():
    traffic = Traffic(512, 64)
    assert all(p.tp * p.pp >= 2 for p in serving_plans(load_model("llama3-70b"), NODE, traffic))
    with pytest.raises(PlanError, match=r"cannot be served on 8 h100: the smallest split needs .* GiB"):
        serving_plans(load_model("llama3-405b"), NODE, traffic)


def test_more_requests_than_the_cluster_can_answer_are_said_so():
    traffic = Traffic(2048, 256, 1e6)
    with pytest.raises(PlanError, match="are more than the"):
        advise(serving_plans(LLAMA_8B, NODE, traffic), traffic)


def test_replicas_serve_in_proportion_and_leave_latency_alone():
    traffic = Traffic(2048, 256)
    one, two = (
        next(p for p in serving_plans(LLAMA_8B, load_cluster("h100", n), traffic) if (p.tp, p.pp, p.batch) == (8, 1, 8))
        for n in (8, 16)
    )
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s) and two.request_s == one.request_s


def steps(**more):
    return [{"rank": r, "step": s, "seconds": 1.0, **more} for r in (0, 1) for s in range(3)]


def test_communication_above_thirty_percent_is_an_alarm_that_names_its_axis():
    found = diagnose(steps(communication_s={"tp": 0.35, "dp": 0.02}))
    assert found.communication == pytest.approx(0.37) and found.bound == "communication"
    assert "alarm: 37%" in found.advice[0] and "halve tp" in found.advice[1]
    calm = diagnose(steps(communication_s=0.05))
    assert calm.bound == "computation" and "bound by computation" in calm.advice[0]


def test_slow_stages_full_experts_and_bubbles_are_found():
    lines = [{"rank": r, "step": 0, "seconds": 1.0, "stage": r, "compute_s": 0.4 + 0.4 * r, "bubble_s": 0.3,
              "expert_tokens": [30, 10, 0, 0], "dropped_tokens": 10} for r in (0, 1)]  # fmt: skip
    found = diagnose(lines)
    assert found.stage_imbalance == pytest.approx(0.8 / 0.6)
    assert found.expert_imbalance == pytest.approx(3.0) and found.dropped == pytest.approx(0.2)
    text = " ".join(found.advice)
    assert (
        "slowest stage" in text and "busiest expert" in text and "capacity factor" in text and "micro-batches" in text
    )


def test_mfu_counts_model_flops_and_hfu_the_repeated_ones():
    lines = steps(samples=16)
    found = diagnose(lines, LLAMA_8B, NODE, "full")
    assert found.mfu == pytest.approx(LLAMA_8B.training_flops(16) / (8 * 989e12))
    assert found.hfu > 1.25 * found.mfu


def test_a_trace_counts_only_the_communication_that_no_computation_hides():
    def kernel(name, ts, dur):
        return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur}

    trace = {"traceEvents": [kernel("gemm", 0, 600_000), kernel("ncclDevKernel_AllReduce", 500_000, 400_000),
                             kernel("softmax", 900_000, 100_000), {"ph": "M", "name": "meta"}]}  # fmt: skip
    line = from_trace(trace)[0]
    assert line["seconds"] == pytest.approx(1.0) and line["communication_s"] == pytest.approx(0.3)


def test_a_trace_of_the_profiler_on_a_cpu_is_read(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(64, 64) @ torch.ones(64, 64)
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    line = from_trace(json.loads((tmp_path / "trace.json").read_text()))[0]
    assert 0 < line["compute_s"] <= line["seconds"] and line["communication_s"] == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "holds no step"), ("x\n", "line 1: not JSON"), ('{"step": 1}\n', "line 1: seconds is missing")],
)
def test_a_log_that_is_none_is_refused_with_its_line(tmp_path, text, sentence):
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(PlanError, match=sentence):
        read_step_log(tmp_path / "log.jsonl")


def test_a_module_on_the_meta_device_gives_its_own_parameter_count():
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(64, 4, 256)
        module = nn.ModuleDict({"posts": nn.Embedding(10**9, 64), "layers": nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
                                "norm": nn.LayerNorm(64), "head": nn.Linear(64, 6)})  # fmt: skip
    model = model_from_module(module, "ranker", 32, {"posts": 33})
    assert model.parameters == sum(p.numel() for p in module.parameters())
    assert (model.layers, model.hidden, model.heads, model.tables[0].lookups) == (3, 64, 4, 33)


def test_the_verb_plans_serving_and_reads_logs(tmp_path):
    ask = ["plan", "--model", "llama3-8b", "--cluster", "h100", "--json"]
    served = CliRunner().invoke(main, [*ask, "--requests", "2048:256"])
    assert json.loads(served.stdout)["for first result"]["tp"] == 8
    (tmp_path / "log.jsonl").write_text('{"seconds": 2.0, "communication_s": 1.0}\n')
    read = CliRunner().invoke(main, [*ask, "--diagnose", str(tmp_path / "log.jsonl")])
    assert json.loads(read.stdout)["communication"] == 0.5
    assert CliRunner().invoke(main, [*ask, "--requests", "many"]).exit_code == 2
