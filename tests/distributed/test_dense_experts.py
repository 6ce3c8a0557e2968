"""A dense mixture whose experts lie on different ranks is the whole one, the feed's ranker among them."""

import pytest
import torch
from torch import nn

from distributed import ParallelLayout, Rank
from distributed.exchange import alone
from distributed.experts import shard_dense_experts
from distributed.groups import Mesh
from tests.distributed.test_experts import on_ranks


class Stacked(nn.Module):
    def __init__(self, experts: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, inputs, outputs, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(experts, 1, outputs, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.matmul(inputs, self.weight) + self.bias


def dense(rank: Rank, rows: list[int], layers: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Experts of 4 sharded over all ranks, mixed by fixed gates: outputs, own experts' gradients, input gradients."""
    torch.manual_seed(1)
    stack: list[nn.Module] = [Stacked(4, 3, 5), Stacked(4, 5, 2)][:layers]
    everyone_AD = torch.randn(sum(rows), 3, dtype=torch.float64)
    if rank.world_size > 1:
        mesh = Mesh(ParallelLayout(dp_shard=rank.world_size), rank)
        stack = shard_dense_experts(stack, mesh.data)
        inputs_BD = everyone_AD.split(rows)[rank.index].clone().requires_grad_()
    else:
        inputs_BD = everyone_AD.clone().requires_grad_()
    hidden = inputs_BD.unsqueeze(0)
    for layer in stack:
        hidden = layer(hidden).tanh()
    gates_E = torch.linspace(0.1, 1.0, 4, dtype=torch.float64)
    mixed_BH = torch.einsum("e,ebh->bh", gates_E, hidden)
    mixed_BH.square().sum().backward()
    parameters = [parameter for layer in stack for parameter in layer.parameters()]
    return mixed_BH.detach(), [parameter.grad for parameter in parameters], inputs_BD.grad


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("rows", [[3, 4], [5, 0, 2, 1]])
def test_a_dense_mixture_sharded_over_ranks_is_the_whole_one(rows: list[int], layers: int):
    out_AH, gradients, inputs_AD = dense(Rank(), rows, layers)
    results = on_ranks(dense, (rows, layers), len(rows))
    local = 4 // len(rows)
    for rank, (mixed_BH, mine, inputs_BD) in enumerate(results):
        assert (mixed_BH - out_AH.split(rows)[rank]).abs().sum() < 1e-9
        assert (inputs_BD - inputs_AD.split(rows)[rank]).abs().sum() < 1e-9
        for gradient, whole in zip(mine, gradients):
            assert (gradient - whole[rank * local : (rank + 1) * local]).abs().max() < 1e-9


def ranker(rank: Rank, rows: list[int]) -> tuple[float, dict[str, torch.Tensor]]:
    """The feed's MMoE on uneven ranks: loss sum and gradients, of own experts for those that are sharded."""
    from ranking.mmoe import MMoE, masked_log_loss

    torch.manual_seed(4)
    network = MMoE(3, [5, 4], 2, experts=4, expert_width=6, tower_width=3, embedding_dim=2,
                   prior_logits_T=torch.tensor([-1.0, -2.0])).double()  # fmt: skip
    numeric, slots = torch.randn(sum(rows), 3, dtype=torch.float64), torch.randint(4, (sum(rows), 2))
    labels = (torch.rand(sum(rows), 2, dtype=torch.float64) < 0.3).double()
    mine = slice(0, sum(rows))
    group = alone()
    if rank.world_size > 1:
        group = Mesh(ParallelLayout(dp_shard=rank.world_size), rank).data
        network.expert_in, network.expert_out = shard_dense_experts([network.expert_in, network.expert_out], group)
        mine = slice(sum(rows[: rank.index]), sum(rows[: rank.index + 1]))
    logits = network(numeric[mine], slots[mine])
    loss = masked_log_loss(logits, labels[mine], torch.ones(len(logits), dtype=torch.float64)).sum()
    loss.backward()
    gradients = {}
    for name, parameter in network.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients[name.replace("inner.", "")] = gradient if "expert_" in name else group.all_reduce_(gradient)
    return group.all_reduce_(loss.detach()).item(), gradients


def test_the_feeds_ranker_with_its_experts_on_two_ranks_is_that_of_one():
    loss, wanted = ranker(Rank(), [7, 4])
    for rank, (found, gradients) in enumerate(on_ranks(ranker, ([7, 4],), 2)):
        assert found == pytest.approx(loss, abs=1e-9) and set(gradients) == set(wanted)
        for name, gradient in gradients.items():
            whole = wanted[name][2 * rank : 2 * rank + 2] if "expert_" in name else wanted[name]
            assert (gradient - whole).abs().max() < 1e-9, name
