"""Parameters, FLOPs and memory against the published formulas and tables."""

import pytest

from distributed.planner.descriptions import known_models, load_model, model_from
from distributed.planner.errors import PlanError
from distributed.planner.layout import RECOMPUTE, Layout
from distributed.planner.machines import cluster_from, known_machines, load_cluster
from distributed.planner.memory import (
    Precision,
    in_flight,
    layer_activation_bytes,
    stage_memory,
    stage_parameters,
    zero_states,
)
from distributed.planner.models import gpt

GPT_22B = gpt("22b", 48, 6144, 64, 2048, 51200)


@pytest.mark.parametrize(
    ("billions", "heads", "hidden", "layers"),
    [(1.7, 24, 2304, 24), (3.6, 32, 3072, 30), (7.5, 32, 4096, 36), (18.4, 48, 6144, 40), (39.1, 64, 8192, 48),
     (76.1, 80, 10240, 60), (145.6, 96, 12288, 80), (310.1, 128, 16384, 96), (529.6, 128, 20480, 105),
     (1008, 160, 25600, 128)],
)  # fmt: skip
def test_parameter_counts_of_the_megatron_table_to_its_rounding(billions, heads, hidden, layers):
    counted = gpt("row", layers, hidden, heads, 2048, 51200).parameters / 1e9
    assert counted == pytest.approx(billions, abs=0.5 if billions == 1008 else 0.051)


def test_flops_equal_the_published_closed_formulas():
    s, h, layers, v, batch = 2048, 6144, 48, 51200, 4
    common = batch * layers * s * h * h
    assert GPT_22B.training_flops(batch) == pytest.approx(72 * common * (1 + s / 6 / h + v / 12 / h / layers))
    assert GPT_22B.training_flops(batch, "full") == pytest.approx(96 * common * (1 + s / 6 / h + v / 16 / layers / h))
    assert GPT_22B.training_flops(batch, "selective") == pytest.approx(
        72 * common * (1 + s / 3 / h + v / 12 / h / layers)
    )


def test_activation_bytes_equal_the_published_formula_of_each_technique():
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    unit, square = s * b * h, 5 * a * s / h
    published = {
        ("none", False): 10 + 24 / t + square / t, ("none", True): (34 + square) / t,
        ("selective", False): 10 + 24 / t, ("selective", True): 34 / t,
        ("full", False): 2, ("full", True): 2 / t,
    }  # fmt: skip
    for recompute in RECOMPUTE:
        for sp in (False, True):
            layout = Layout(tp=t, micro_batch=b, recompute=recompute, sp=sp)
            assert layer_activation_bytes(GPT_22B, layout) == pytest.approx(unit * published[recompute, sp])
    assert layer_activation_bytes(GPT_22B, Layout(micro_batch=b)) == pytest.approx(unit * (34 + square))


@pytest.mark.parametrize(
    ("billions", "ranks", "published"),
    [(7.5, 64, (120, 31.4, 16.6, 1.88)), (7.5, 4, (120, 52.5, 41.25, 30)), (7.5, 1024, (120, 30.1, 15.1, 0.12)),
     (128, 64, (None, 536, 284, 32)), (1000, 1024, (None, 4012, 2014, 15.6))],
)  # fmt: skip
def test_zero_model_states_equal_the_published_table(billions, ranks, published):
    for stage, gigabytes in enumerate(published):
        states = zero_states(billions * 1e9, 0, Layout(dp=ranks, zero=stage), Precision(2, 2, 12))
        assert gigabytes is None or sum(states) / 1e9 == pytest.approx(gigabytes, rel=0.004, abs=0.005)


@pytest.mark.parametrize("name", ["gpt-22b", "llama3-8b", "mixtral-8x7b", "sequence-ranker", "mmoe-ranker"])
def test_one_rank_holds_every_parameter_once(name):
    model = load_model(name)
    held = sum(stage_parameters(model, Layout(), model.layers, True, True)) + model.table_parameters
    assert held == model.parameters


def test_shards_of_all_ranks_add_up_to_the_matrices_and_repeat_only_what_is_small():
    model = load_model("llama3-8b")
    shards = 8 * sum(stage_parameters(model, Layout(tp=8), model.layers, True, True))
    repeated = 7 * (model.layers * model.norm_parameters + model.hidden)
    assert shards == model.parameters + repeated


def test_experts_are_sharded_over_ep_and_their_optimizer_over_what_is_left():
    model = load_model("mixtral-8x7b")
    dense, expert = stage_parameters(model, Layout(dp=8, ep=4), 32, True, True)
    _, all_experts = stage_parameters(model, Layout(dp=8), 32, True, True)
    assert expert == all_experts / 4
    _, _, optimizer = zero_states(dense, expert, Layout(dp=8, ep=4, zero=1), Precision())
    assert optimizer == pytest.approx(12 * (dense / 8 + expert / 2))


def test_memory_in_flight_follows_the_schedule():
    assert in_flight("gpipe", 8, 0, 24) == 24
    assert [in_flight("1f1b", 8, stage, 24) for stage in (0, 7)] == [8, 1]
    assert in_flight("1f1b", 8, 0, 3) == 3
    assert in_flight("interleaved", 8, 0, 24, 2) == pytest.approx(8 * (1 + 7 / 16))
    assert in_flight("zb-h2", 8, 0, 24) == 15


def test_full_recompute_keeps_only_inputs_and_the_layer_being_rerun():
    full = stage_memory(GPT_22B, Layout(tp=8, micro_batch=4, recompute="full"), 48, 0, 1)
    none = stage_memory(GPT_22B, Layout(tp=8, micro_batch=4), 48, 0, 1)
    assert full.activations < none.activations / 10
    assert full.parameters == none.parameters


def test_every_figure_of_a_shipped_machine_has_a_source():
    for name in known_machines():
        assert {"tflops", "memory", "levels", "efficiency"} <= set(load_cluster(name).sources), name


def test_descriptions_with_a_wrong_key_or_type_get_a_sentence():
    with pytest.raises(PlanError, match="unknown head; known:"):
        model_from({"name": "x", "layers": 2, "head": 3}, "x.json")
    with pytest.raises(PlanError, match='layers is "two"; it should be a valid integer'):
        model_from({"name": "x", "layers": "two"}, "x.json")
    with pytest.raises(PlanError, match="hidden 100 is not a multiple of 3 heads"):
        model_from({"name": "x", "layers": 2, "hidden": 100, "heads": 3, "sequence": 8}, "x.json")
    with pytest.raises(PlanError, match="no machine 'h300'; known: v100-pcie"):
        cluster_from({"machine": "h300"}, None, "c.toml")
    assert len(known_models()) > 5
