"""Experts that move, and hot ones that lie on several ranks, train as if they had stayed alone where they were."""

import pytest
import torch

from distributed import LayoutError, ParallelLayout, Rank
from distributed.exchange import alone
from distributed.experts import ExpertLayer, Placement, RouterSettings, place_by_load
from distributed.groups import Mesh
from tests.distributed.pool import pool

HIDDEN, STEPS = 6, 4
SETTINGS = RouterSettings(4, 2, balance=0.1)


def training(rank: Rank, fault: str = "") -> dict:
    """Four Adam steps; with ranks, experts are placed anew by their load after the second, on three slots a rank."""
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        sharded = rank.world_size > 1
        group = Mesh(ParallelLayout(dp_shard=rank.world_size), rank).data if sharded else alone()
        layer = ExpertLayer(HIDDEN, 5, SETTINGS, ep=group)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
        placements, uneven = [layer.placement], []
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            players = [rank.index] if sharded else [0, 1]
            generator = torch.Generator().manual_seed(step)
            both_ND = [torch.randn(9 + 4 * player, HIDDEN, generator=generator) + 0.7 for player in (0, 1)]
            segments_N = torch.cat([torch.full((len(both_ND[p]),), at) for at, p in enumerate(players)])
            mixed_ND, loss = layer(torch.cat([both_ND[p] for p in players]), None, segments_N, len(players))
            ((mixed_ND - 1).square().sum() + loss).backward()
            if sharded:
                group.all_reduce_(layer.router.weight.grad)
            if fault != "replicas apart":
                layer.sum_replicas_()
            optimizer.step()
            if sharded and step == 1:
                load_E = layer.load.report(group)["tokens_per_expert"]
                placement = place_by_load(load_E, group.size, 3)
                uneven = [layer.placement.unevenness(load_E), placement.unevenness(load_E)]
                layer.place_(placement, optimizer)
                placements.append(placement)
        held = layer.placement.held(group.index)
        weights = {expert: layer.bank.down[slot].detach().clone() for slot, expert in enumerate(held)}
        return {"weights": weights, "router": layer.router.weight.detach(), "placements": placements, "uneven": uneven}
    finally:
        torch.set_default_dtype(torch.float32)


def apart(results: list[dict]) -> float:
    whole = training(Rank())
    worst = max(float((found["router"] - whole["router"]).abs().max()) for found in results)
    for found in results:
        for expert, weight in found["weights"].items():
            worst = max(worst, float((weight - whole["weights"][expert]).abs().max()))
    return worst


def test_moved_and_replicated_experts_train_as_on_one_process():
    results = pool().run(training, (), 2, timeout_s=60)
    assert apart(results) < 1e-9
    before, after = results[0]["uneven"]
    assert after < before and results[0]["placements"] == results[1]["placements"]
    both = set(results[0]["weights"]) & set(results[1]["weights"])
    assert both and all(torch.equal(results[0]["weights"][e], results[1]["weights"][e]) for e in both)


def test_replicas_whose_gradients_are_not_summed_would_be_caught():
    assert apart(pool().run(training, ("replicas apart",), 2, timeout_s=60)) > 1e-4


def test_the_hottest_expert_gets_the_spare_slots_and_ranks_carry_alike():
    load_E = [100.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    placement = place_by_load(load_E, 2, 4)
    assert placement.expert_S.count(0) == 3 and placement.replicated == [0]
    assert placement.unevenness(load_E) < 1.3 < place_by_load(load_E, 2, 3).unevenness(load_E)
    assert sorted(set(placement.expert_S)) == list(range(6))


def test_slots_that_do_not_hold_the_experts_are_refused():
    with pytest.raises(LayoutError, match="2 ranks x 2 slots do not hold 5 experts"):
        place_by_load([1.0] * 5, 2, 2)
    with pytest.raises(LayoutError, match="5 slots of experts are no multiple of ep 2"):
        Placement((0, 1, 2, 3, 4), 2)
