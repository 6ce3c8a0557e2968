"""Legality, the nearest layout, bytes on the wire, the split of layers, and the search."""

import dataclasses
import itertools
import json

import pytest

from distributed.planner.answer import Question, answer, default_batch
from distributed.planner.balance import dearest, partition
from distributed.planner.collectives import bytes_sent, collective_s, spread
from distributed.planner.descriptions import load_model
from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimator
from distributed.planner.groups import axis_groups, nodes_of
from distributed.planner.layout import Layout, meshes, objections, parse_layout
from distributed.planner.ledger import bytes_by_axis, ledger
from distributed.planner.machines import load_cluster
from distributed.planner.page import page, trace_json
from distributed.planner.search import limits_from, search, why_not

LLAMA_70B, MIXTRAL = load_model("llama3-70b"), load_model("mixtral-8x7b")


def test_experts_are_folded_into_data_and_context_and_multiply_nothing():
    for mesh in meshes(MIXTRAL, 64, 8):
        assert mesh.tp * mesh.cp * mesh.pp * mesh.dp == 64
        assert (mesh.dp * mesh.cp) % mesh.ep == 0 and 8 % mesh.ep == 0
    wrong = parse_layout("tp=2,pp=4,dp=4,ep=2")
    assert any("ep 2 is no factor of the world" in text for text in objections(MIXTRAL, wrong, 64, 64))


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [("tp=3,dp=21", "64 heads are no multiple of tp 3"), ("dp=32", "dp 32 = 32 ranks, but there are 64"),
     ("cp=64,tp=1,dp=1,pp=1,sp=0", None), ("pp=64", None), ("dp=64,micro=3", "256 is no multiple of dp 64 x micro-batch 3 = 192"),
     ("pp=32,dp=2,schedule=interleaved,v=4", "80 layers are fewer than pp 32 x 4 chunks = 128 stages"),
     ("pp=8,dp=8,schedule=zb-h2,micro=4", "zb-h2 needs at least 15 micro-batches; there are 8"),
     ("tp=8,dp=8,ep=8", "has no experts: ep 8 must be 1")],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_numbers(layout, sentence):
    found = objections(LLAMA_70B, parse_layout(layout), 64, 256)
    assert found == [] if sentence is None else any(sentence in text for text in found)


def test_key_heads_repeat_when_tp_exceeds_them_but_not_unevenly():
    assert objections(LLAMA_70B, Layout(tp=16, dp=4), 64, 64) == []
    odd = dataclasses.replace(LLAMA_70B, kv_heads=16, heads=96, hidden=12288, ffn=49152)
    assert any("16 kv heads neither split" in text for text in objections(odd, Layout(tp=24), 24, 24))


def test_an_impossible_layout_is_answered_with_the_nearest_that_fits():
    cluster = load_cluster("h100", 64)
    with pytest.raises(PlanError, match=r"tp 3 x .* = 63 ranks, but there are 64.*nearest that works: (.*)") as caught:
        answer(Question(LLAMA_70B, cluster, 256, layout="tp=3,dp=21"))
    near = parse_layout(str(caught.value).rsplit("works: ", 1)[1])
    assert objections(LLAMA_70B, near, 64, 256) == []
    assert Estimator(LLAMA_70B, cluster, 256).fits(near)


def test_when_nothing_fits_the_sentence_names_need_room_and_a_cluster_that_would_do():
    with pytest.raises(PlanError, match=r"nothing fits: llama3-405b on 8 h100 .* GiB .* works: \d+ accelerators with"):
        answer(Question(load_model("llama3-405b"), load_cluster("h100", 8), 64))


def test_the_405b_search_looks_at_few_thousand_layouts_and_has_the_published_one_among_the_first_ten():
    estimator = Estimator(load_model("llama3-405b"), load_cluster("h100", 16384), 2048)
    found = search(estimator)
    assert 1000 < found.looked_at < 10_000
    assert (8, 1, 16, 128) in [(e.layout.tp, e.layout.cp, e.layout.pp, e.layout.dp) for e in found.best]
    assert len(found.best) == 10 and all(e.fits for e in found.best)


def test_why_not_names_the_memory_or_the_time_that_speaks_against_a_layout():
    estimator = Estimator(LLAMA_70B, load_cluster("h100", 64), 256)
    found = search(estimator)
    assert "does not fit" in why_not(estimator, Layout(dp=64, zero=3), found)[0]
    assert "most of the difference is" in why_not(estimator, Layout(tp=8, pp=4, dp=2, zero=1), found)[0]
    assert "is the fastest" in why_not(estimator, found.best[0].layout, found)[0]
    assert "nearest" in why_not(estimator, Layout(tp=7, dp=9), found)[1]


def test_the_split_of_layers_is_the_best_of_all_splits():
    costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    for stages, first, last in ((2, 0.0, 0.0), (3, 0.5, 4.0), (4, 2.0, 2.0)):
        least = 0 if first else 1
        every = [c for c in itertools.product(range(len(costs) + 1), repeat=stages)
                 if sum(c) == len(costs) and all(c[1:-1]) and c[0] >= least and c[-1] >= least]  # fmt: skip
        best = min(dearest(costs, counts, first, last) for counts in every)
        assert dearest(costs, partition(costs, stages, first, last), first, last) == best


@pytest.mark.parametrize("layout", ["tp=8,pp=16,dp=128", "tp=8,pp=64,dp=32", "tp=4,pp=9,dp=1"])
def test_equal_layers_between_priced_ends_are_split_as_dynamic_programming_splits_them(layout):
    model, wish = load_model("llama3-405b"), parse_layout(layout)
    estimator = Estimator(model, load_cluster("h100", wish.world_size), 4096)
    _, _, entry, head = estimator.pieces(wish)
    costs = [estimator.mean_layer(wish).total] * model.layers
    quick, exact = estimator.split_layers(wish), partition(costs, wish.pp, entry.total, head.total)
    assert sum(quick) == model.layers
    assert dearest(costs, quick, entry.total, head.total) == pytest.approx(
        dearest(costs, exact, entry.total, head.total)
    )


def test_collective_bytes_are_the_textbook_ones():
    size = 268e6  # hidden 8192, 16384 tokens, bf16
    assert bytes_sent("all_reduce", size, 8) == pytest.approx(2 * 7 / 8 * size)
    assert bytes_sent("all_gather", size, 8) + bytes_sent("reduce_scatter", size, 8) == bytes_sent(
        "all_reduce", size, 8
    )
    assert bytes_sent("all_to_all", size, 1) == 0


def test_a_group_over_nodes_reduces_inside_first_and_is_faster_than_one_flat_ring():
    cluster = load_cluster("h100", 64)
    assert spread(cluster, 64, 1) == (8, 8) and spread(cluster, 8, 8) == (1, 8) and spread(cluster, 8, 2) == (4, 2)
    assert collective_s("all_reduce", 1e9, (8, 8), cluster) < collective_s("all_reduce", 1e9, (1, 64), cluster) / 3


def test_sequence_parallel_sends_the_bytes_of_the_all_reduces_it_replaces():
    estimator = Estimator(LLAMA_70B, load_cluster("h100", 64), 64)
    sent = [bytes_by_axis(ledger(estimator, Layout(tp=8, dp=8, sp=sp)))["tp"] for sp in (True, False)]
    assert sent[0] == pytest.approx(sent[1], rel=1e-3)
    hidden = 2 * 8192 * 8192
    # Eight micro-batches of 80 layers with four all-reduces, and two at the ends; loss and norms are a thousandth.
    assert sent[1] == pytest.approx(8 * (80 * 4 + 2) * 2 * 7 / 8 * hidden, rel=1e-3)


def test_full_recompute_repeats_the_communication_of_the_forward():
    estimator = Estimator(LLAMA_70B, load_cluster("h100", 64), 64)
    none, full = (
        bytes_by_axis(ledger(estimator, Layout(tp=8, dp=8, recompute=mode)))["tp"] for mode in ("none", "full")
    )
    assert full == pytest.approx(1.5 * none, rel=5e-3)


@pytest.mark.parametrize(("zero", "volumes"), [(0, 2), (1, 2), (3, 3)])
def test_zero_moves_two_or_three_times_the_parameters_with_one_micro_batch(zero, volumes):
    estimator = Estimator(LLAMA_70B, load_cluster("h100", 64), 64, precision=None)
    estimator.precision = dataclasses.replace(estimator.precision, gradient=2)
    sent = bytes_by_axis(ledger(estimator, Layout(dp=64, zero=zero)))["dp"]
    assert sent == pytest.approx(volumes * 2 * LLAMA_70B.parameters * 63 / 64, rel=0.03)


def test_the_sixty_four_gpu_exercise_lists_its_groups_and_their_nodes():
    layout = Layout(tp=4, pp=4, dp=4)
    assert axis_groups(layout, "dp")[:2] == [[0, 4, 8, 12], [1, 5, 9, 13]]
    assert [nodes_of(group, 8) for group in axis_groups(layout, "dp")] == [
        [n, n + 1] for n in (0, 2, 4, 6) for _ in range(4)
    ]
    assert axis_groups(layout, "pp")[0] == [0, 16, 32, 48]
    for axis in ("tp", "dp", "pp"):
        assert sorted(rank for group in axis_groups(layout, axis) for rank in group) == list(range(64))


def test_expert_groups_are_runs_inside_the_data_and_context_ranks():
    layout = Layout(tp=2, cp=2, dp=4, ep=4)
    assert axis_groups(layout, "ep")[0] == [0, 2, 4, 6]


def test_the_answer_is_json_and_its_page_and_trace_need_nothing_else():
    found = answer(Question(LLAMA_70B, load_cluster("h100", 64), 256, layout="tp=4,pp=4,dp=4,zero=2"))
    json.dumps(found.report)
    text = page(found)
    assert text.count("<svg") == 4 and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    events = [e for e in json.loads(trace_json(found))["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 4 * 64 * 2
    assert sum(found.report["chosen"]["seconds"].values()) == pytest.approx(found.report["chosen"]["step_s"])


@pytest.mark.parametrize(("model", "gpus"), [("mmoe-ranker", 8), ("sequence-ranker", 8), ("mixtral-8x7b", 16)])
def test_rankers_and_experts_get_a_layout_that_fits(model, gpus):
    asked = load_model(model)
    report = answer(Question(asked, load_cluster("h100", gpus), default_batch(asked, gpus))).report
    assert report["best"][0]["fits"] and 0 < report["best"][0]["mfu"] < 1


@pytest.mark.parametrize("text", ["tp", "tp=x", "tp=2,tp=4", "speed=3", "zero=7", "tp=0", "schedule=magic"])
def test_a_layout_text_that_cannot_be_read_is_refused(text):
    with pytest.raises(PlanError, match="layout"):
        parse_layout(text)


def test_a_layout_reads_back_as_it_prints():
    layout = Layout(
        tp=8, cp=2, pp=16, dp=4, zero=2, micro_batch=2, recompute="full", schedule="interleaved", virtual=3, sp=False
    )
    assert parse_layout(str(layout)) == layout


def test_a_limit_in_dollars_shuts_out_dear_layouts_and_needs_a_price():
    cluster = load_cluster("h100", 64)
    with pytest.raises(PlanError, match="h100 has no dollars_per_hour"):
        limits_from(cluster, None, 1.0)
    priced = dataclasses.replace(cluster, dollars_per_hour=2.0)
    estimator = Estimator(LLAMA_70B, priced, 256)
    free, dear = search(estimator), search(estimator, limits_from(priced, "1f1b", 1.25))
    assert dear.too_dear > 0 and all(e.step_s * 64 * 2 / 3600 <= 1.25 for e in dear.best)
    assert dear.best[0].step_s >= free.best[0].step_s
    with pytest.raises(PlanError, match="no schedule '2f2b'"):
        limits_from(cluster, "2f2b")
