"""Mixtures of experts sharded over ranks are the mixture of one process, whatever the ranks, the padding and the load."""

import dataclasses

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from distributed import LayoutError, ParallelLayout, Rank, RankFailed
from distributed.exchange import alone
from distributed.experts import (
    ExpertLayer,
    Router,
    RouterSettings,
    expert_groups,
    expert_parameters,
    update_balance_bias_,
)
from distributed.experts.dispatch import keep_within_capacity
from distributed.groups import Mesh
from distributed.ledger import Ledger
from tests.distributed.pool import pool


def on_ranks(worker, arguments, nproc):
    """Patient: on a busy machine ranks take their time to start."""
    return pool().run(worker, arguments, nproc, timeout_s=60.0)


HIDDEN, WIDTH, EXPERTS = 6, 5, 4
SOFTMAX = RouterSettings(EXPERTS, 2, balance=0.3, z=0.1)
SIGMOID = dataclasses.replace(SOFTMAX, score="sigmoid", bias_step=0.05)


@dataclasses.dataclass(frozen=True)
class Case:
    layout: str
    ep: int
    settings: RouterSettings = SOFTMAX
    capacity: float | None = None
    shared: int = 0
    one_expert: bool = False
    fault: str = ""


def build(case: Case, **groups) -> ExpertLayer:
    torch.manual_seed(3)
    with_default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        layer = ExpertLayer(HIDDEN, WIDTH, case.settings, capacity_factor=case.capacity, shared=case.shared, **groups)
    finally:
        torch.set_default_dtype(with_default)
    if case.settings.bias_step:
        layer.router.balance_bias_E.copy_(torch.tensor([0.1, -0.2, 0.05, 0.0]))
    return layer


def tokens(rank: int, case: Case, pad: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uneven ranks, one of them without a valid token: hidden, valid, segments below 2."""
    count = (7, 0, 4, 9)[rank % 4]
    generator = torch.Generator().manual_seed(100 + rank)
    hidden_ND = torch.randn(count + pad, HIDDEN, generator=generator, dtype=torch.float64)
    if case.one_expert:
        hidden_ND = hidden_ND[:1].abs() if count == 0 else torch.ones_like(hidden_ND) + hidden_ND * 1e-3
        count = min(count, len(hidden_ND))
    valid_N = torch.arange(len(hidden_ND)) < count
    return hidden_ND, valid_N, torch.arange(len(hidden_ND)) % 2


def objective(layer: ExpertLayer, hidden_ND, valid_N, segments_N, segments) -> tuple[torch.Tensor, torch.Tensor]:
    mixed_ND, loss = layer(hidden_ND, valid_N, segments_N, segments)
    weights_D = torch.linspace(0.5, 1.5, HIDDEN, dtype=torch.float64)
    return (mixed_ND.square() * weights_D).sum() + (mixed_ND * weights_D).sum() + loss, mixed_ND


def sharded(rank: Rank, cases: list[Case]) -> list[dict]:
    results = []
    for case in cases:
        mesh = Mesh(ParallelLayout.parse(case.layout), rank)
        ep, outer = expert_groups(mesh, case.ep)
        layer = build(case, ep=ep, queue=mesh.data, split=mesh.group("cp"))
        hidden_ND, valid_N, segments_N = tokens(rank.index, case)
        hidden_ND.requires_grad_()
        with Ledger({**mesh.handles(), "ep": ep.handle}) as ledger:
            total, mixed_ND = objective(layer, hidden_ND, valid_N, segments_N, 2)
            total.backward()
        experts = {id(parameter) for parameter in expert_parameters(layer)}
        gradients = {}
        for name, parameter in layer.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for group in outer if id(parameter) in experts else (mesh.data,):
                group.all_reduce_(gradient)
            if case.fault == "experts summed over all data ranks" and id(parameter) in experts:
                ep.all_reduce_(gradient)
            gradients[name] = gradient
        routed_E = layer.load.routed_E.clone()
        if case.fault == "counts summed in place":
            mesh.data.all_reduce_(layer.load.routed_E)
        update_balance_bias_(layer.router, layer.load.routed_E, mesh.data)
        results.append({
            "out": mixed_ND.detach(), "hidden": hidden_ND.grad, "gradients": gradients, "first": layer.placement.held(ep.index)[0],
            "report": layer.load.report(mesh.data, ledger), "bias": layer.router.balance_bias_E,
            "untouched": bool(torch.equal(routed_E, layer.load.routed_E)), "a2a": ledger.line("ep", "all_to_all"),
            "data": mesh.data.index,
        })  # fmt: skip
    return results


def one_process(case: Case) -> dict:
    layout = ParallelLayout.parse(case.layout)
    parts = [tokens(rank, case) for rank in range(layout.world_size)]
    hidden_ND = torch.cat([part[0] for part in parts]).requires_grad_()
    # Members of a cp group hold parts of the same two sequences.
    segments_N = torch.cat([part[2] + 2 * (rank // layout.cp) for rank, part in enumerate(parts)])
    layer = build(case)
    total, mixed_ND = objective(layer, hidden_ND, torch.cat([part[1] for part in parts]), segments_N, 2 * len(parts))
    total.backward()
    update_balance_bias_(layer.router, layer.load.routed_E, alone())
    sizes = [len(part[0]) for part in parts]
    return {
        "out": mixed_ND.detach().split(sizes), "hidden": hidden_ND.grad.split(sizes),
        "gradients": {name: parameter.grad for name, parameter in layer.named_parameters()},
        "report": layer.load.report(alone()), "bias": layer.router.balance_bias_E,
    }  # fmt: skip


CASES = {
    2: [Case("dp_shard=2", 2), Case("cp=2", 2, SIGMOID), Case("dp_shard=2", 2, capacity=0.8, shared=1),
        Case("dp_shard=2", 2, one_expert=True), Case("dp_shard=2", 1), Case("dp_shard=2", 2, dataclasses.replace(SIGMOID, top_k=1))],
    4: [Case("dp_shard=2,cp=2", 4, SIGMOID), Case("dp_shard=2,cp=2", 2, capacity=0.7), Case("dp_replicate=2,cp=2", 2, shared=2),
        Case("dp_replicate=2,dp_shard=2", 2, SIGMOID, capacity=0.5), Case("dp_shard=4", 4, one_expert=True, capacity=0.6)],
}  # fmt: skip


def worst(case: Case, rank: int, found: dict, wanted: dict) -> float:
    apart = [(found["out"] - wanted["out"][rank]).abs().max(), (found["hidden"] - wanted["hidden"][rank]).abs().max(),
             (found["bias"] - wanted["bias"]).abs().max()]  # fmt: skip
    for name, gradient in found["gradients"].items():
        whole = wanted["gradients"][name]
        if name.startswith("bank"):
            whole = whole[found["first"] : found["first"] + len(gradient)]
        apart.append((gradient - whole).abs().max())
    return float(max(apart))


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_gradients_counts_and_bias_are_those_of_one_process(ranks: int):
    for rank, results in enumerate(on_ranks(sharded, (CASES[ranks],), ranks)):
        for case, found in zip(CASES[ranks], results):
            wanted = one_process(case)
            assert worst(case, rank, found, wanted) < 1e-9, case
            for key in ("tokens_per_expert", "max_over_mean", "dropped", "drop_rate"):
                assert found["report"][key] == wanted["report"][key], case
            assert found["untouched"], "the sum over ranks overwrote this rank's counts"
            assert found["report"]["bytes_sent"] > 0 or case.ep == 1


def test_expert_gradients_summed_twice_over_the_expert_group_would_be_caught():
    case = Case("dp_shard=2", 2, fault="experts summed over all data ranks")
    assert worst(case, 0, on_ranks(sharded, ([case],), 2)[0][0], one_process(case)) > 1e-3


def test_counts_summed_in_place_would_be_caught():
    case = Case("dp_shard=2", 2, fault="counts summed in place")
    # Rank 1, since rank 0 holds all valid tokens: its count is the sum already.
    found = on_ranks(sharded, ([case],), 2)[1][0]
    assert not found["untouched"]
    assert found["report"]["tokens_per_expert"] != one_process(case)["report"]["tokens_per_expert"]


def stays_away_without_tokens(rank: Rank) -> None:
    mesh = Mesh(ParallelLayout(dp_shard=2), rank)
    layer = build(Case("dp_shard=2", 2), ep=mesh.data)
    hidden_ND, valid_N, _ = tokens(rank.index, Case("dp_shard=2", 2))
    if valid_N.any():
        layer(hidden_ND, valid_N)


def test_a_rank_that_stays_away_for_want_of_tokens_is_a_failure_and_not_a_wait():
    with pytest.raises(RankFailed):
        pool().run(stays_away_without_tokens, (), 2, timeout_s=2)


def test_the_bytes_sent_to_experts_are_those_of_the_formula():
    case = Case("dp_shard=2", 2)
    for rank, (found,) in enumerate(on_ranks(sharded, ([case],), 2)):
        layer = build(case)
        hidden_ND, valid_N, segments_N = tokens(rank, case)
        experts_NK = layer.router(hidden_ND, valid_N, segments_N, 2, alone()).experts_NK[valid_N]
        away = int((experts_NK // 2 != rank).sum())
        other = tokens(1 - rank, case)
        came_NK = layer.router(*other, 2, alone()).experts_NK[other[1]]
        came = int((came_NK // 2 == rank).sum())
        # Dispatch out, combine back; in the backward the same the other way; and two counts of 8 bytes.
        assert found["a2a"].bytes_sent == 2 * (away + came) * HIDDEN * 8 + 2 * 8
        assert found["a2a"].calls == 5 and found["a2a"].seconds > 0


def test_padding_changes_nothing():
    layer = build(Case("", 1, dataclasses.replace(SOFTMAX, balance=0.5), capacity=0.8))
    for pad in (0, 5, 40):
        hidden_ND, valid_N, _ = tokens(0, Case("", 1), pad)
        if pad == 0:
            first_ND = hidden_ND
        else:
            hidden_ND = torch.cat([first_ND, hidden_ND[len(first_ND) :]])
        layer.load.clear()
        layer.zero_grad()
        total, _ = objective(layer, hidden_ND, valid_N, torch.zeros(len(hidden_ND), dtype=torch.int64), 1)
        total.backward()
        seen = (total.item(), layer.load.routed_E.tolist(), layer.load.dropped_E.tolist(), layer.router.weight.grad)
        if pad == 0:
            wanted = seen
        assert seen[0] == pytest.approx(wanted[0], abs=1e-12) and seen[1:3] == wanted[1:3]
        assert torch.allclose(seen[3], wanted[3], atol=1e-12)
    # The fault: padding that is taken for tokens.
    layer.load.clear()
    assert objective(layer, hidden_ND, None, None, 1)[0].item() != pytest.approx(wanted[0], abs=1e-3)
    assert layer.load.routed_E.tolist() != wanted[1]


def test_the_balance_gradient_does_not_depend_on_the_number_of_micro_batches():
    case = Case("", 1)
    hidden_ND, _, _ = tokens(3, case)
    sequences = (hidden_ND[:4], hidden_ND[4:9], hidden_ND[9:])
    whole, parts = build(case), build(case)
    segments_N = torch.repeat_interleave(torch.arange(3), torch.tensor([len(s) for s in sequences]))
    whole(hidden_ND, None, segments_N, 3)[1].backward()
    for sequence_ND in sequences:
        parts(sequence_ND)[1].backward()
    assert torch.allclose(whole.router.weight.grad, parts.router.weight.grad, atol=1e-14)
    # The fault: one balance loss over whatever lies in the micro-batch.
    merged = build(case)
    merged(hidden_ND)[1].backward()
    assert (merged.router.weight.grad - whole.router.weight.grad).abs().max() > 1e-4


def test_drops_are_reported_and_the_balance_loss_is_taken_before_them():
    free, tight = build(Case("", 1)), build(Case("", 1, capacity=0.25))
    hidden_ND, valid_N, segments_N = tokens(3, Case("", 1))
    losses = [layer(hidden_ND, valid_N, segments_N, 2)[1].item() for layer in (free, tight)]
    assert losses[0] == losses[1]
    report = tight.load.report(alone())
    # 9 tokens x 2 choices over 4 experts at factor 0.25: 2 places each.
    kept = sum(min(2, routed) for routed in report["tokens_per_expert"])
    assert report["dropped"] == 18 - kept > 0 and report["drop_rate"] == report["dropped"] / 18
    assert free.load.report(alone())["dropped"] == 0


def test_first_choices_take_places_before_second_ones():
    routing = build(Case("", 1)).router(*tokens(3, Case("", 1)), 2, alone())
    kept = keep_within_capacity(routing, EXPERTS, 0.5, alone())
    for expert in range(EXPERTS):
        second = kept.choices_P[kept.experts_P == expert] == 1
        first_ones = int((routing.experts_NK[routing.valid_N, 0] == expert).sum())
        assert not second.any() or int((~second).sum()) == first_ones


def test_tied_logits_are_routed_the_same_again_and_in_order():
    router = Router(HIDDEN, SOFTMAX).double()
    with torch.no_grad():
        router.weight.zero_()
    hidden_ND, valid_N, segments_N = tokens(0, Case("", 1))
    twice = [router(hidden_ND, valid_N, segments_N, 2, alone()).experts_NK for _ in range(2)]
    assert torch.equal(*twice) and twice[0].tolist() == [[0, 1]] * len(hidden_ND)


def recomputed(rank: Rank) -> tuple[bool, float, list[int]]:
    """All logits tied, full recompute: is the routing the same, how far are gradients apart, what was counted."""
    group = Mesh(ParallelLayout(dp_shard=2), rank).data
    hidden_ND, valid_N, segments_N = tokens(rank.index, Case("dp_shard=2", 2))
    runs = []
    for again in (False, True):
        layer = build(Case("dp_shard=2", 2), ep=group)
        with torch.no_grad():
            layer.router.weight.zero_()
        routings = []
        layer.router.register_forward_hook(
            lambda module, given, routing, kept=routings: kept.append(routing.experts_NK)
        )
        inputs_ND = hidden_ND.clone().requires_grad_()
        arguments = (inputs_ND, valid_N, segments_N, 2)
        mixed_ND, loss = checkpoint(layer, *arguments, use_reentrant=False) if again else layer(*arguments)
        (mixed_ND.square().sum() + loss).backward()
        runs.append((inputs_ND.grad, layer.bank.down.grad, routings, layer.load.routed_E.tolist()))
    same = len(runs[1][2]) == 2 and all(torch.equal(runs[0][2][0], routing) for routing in runs[1][2])
    apart = max(float((one - other).abs().max()) for one, other in zip(runs[0][:2], runs[1][:2]))
    assert runs[0][3] == runs[1][3]
    return same, apart, runs[1][3]


def test_recompute_routes_as_before_and_counts_once():
    # 7 valid tokens on rank 0, all tied: the first two experts.
    assert on_ranks(recomputed, (), 2) == [(True, 0.0, [7, 7, 0, 0]), (True, 0.0, [0, 0, 0, 0])]


def test_bf16_experts_route_and_add_up_in_float32():
    layer = ExpertLayer(HIDDEN, WIDTH, SOFTMAX).bfloat16()
    hidden_ND = tokens(3, Case("", 1))[0].bfloat16()
    routing = layer.router(hidden_ND, torch.ones(11, dtype=torch.bool), torch.zeros(11, dtype=torch.int64), 1, alone())
    assert routing.gates_NK.dtype == routing.loss.dtype == torch.float32
    assert layer(hidden_ND)[0].dtype == torch.bfloat16


def test_the_bias_balances_without_a_loss_and_leaves_the_gates_alone():
    settings = RouterSettings(EXPERTS, 1, "sigmoid", normalise=False, balance=0.0, bias_step=0.02)
    layer = build(Case("", 1, dataclasses.replace(settings, bias_step=0.0)))
    layer.router.settings = settings
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(400, HIDDEN, generator=generator, dtype=torch.float64) + 0.8
    uneven = []
    for _ in range(100):
        layer.load.clear()
        with torch.no_grad():
            layer.eval()(hidden_ND)
        uneven.append(layer.load.report(alone())["max_over_mean"])
        update_balance_bias_(layer.router, layer.load.routed_E, alone())
    assert uneven[0] > 1.5 and uneven[-1] < 1.15
    routing = layer.router(
        hidden_ND, torch.ones(400, dtype=torch.bool), torch.zeros(400, dtype=torch.int64), 1, alone()
    )
    scores_NE = (hidden_ND @ layer.router.weight.T).sigmoid()
    assert torch.equal(routing.gates_NK, scores_NE.gather(1, routing.experts_NK))


def test_experts_that_do_not_divide_are_refused_with_both_numbers():
    from distributed.groups import Group

    with pytest.raises(LayoutError, match="4 experts are no multiple of ep 3"):
        ExpertLayer(HIDDEN, WIDTH, SOFTMAX, ep=Group("ep", (0, 1, 2), 0))
