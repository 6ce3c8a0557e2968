"""The mixture of `ranking.mmoe` over ranks: its experts over tp or over ep, its embedding tables by rows over tp.

Under tp every rank has the same rows, computes its own experts' part of each task's mixture, and the parts are summed. Under
ep ranks have different rows, which travel to all experts and home. Gates, towers and the linear path are computed where the
rows are, by each tp rank alike.
"""

import torch
from torch import nn

from distributed.experts import expert_groups, shard_dense_experts
from distributed.groups import Group, Mesh
from distributed.parallelize import Cut
from distributed.placement import Placement
from distributed.tensor_parallel import Enter, VocabularyEmbedding, leave
from ranking.mmoe import MMoE

_EXPERTS = ("expert_in", "expert_out")


def cut_mixture(network: MMoE, cut: Cut, prefix: str = "") -> None:
    """Cuts `network`, whose parameters are called `prefix` + their names, over the ranks of `cut`; in place.

    `ValueError` when the experts do not divide; `ranking.layouts` refuses that before.
    """
    for name, _ in network.named_parameters():
        cut.alike(prefix + name)
    for part in _EXPERTS:
        stacked = getattr(network, part)
        for name, parameter in list(stacked.named_parameters()):
            setattr(stacked, name, cut.shard(f"{prefix}{part}.{name}", parameter, 0))
    for number, embedding in enumerate(network.embeddings):
        local_VD = cut.table(f"{prefix}embeddings.{number}.weight", embedding.weight)
        network.embeddings[number] = VocabularyEmbedding(local_VD, cut.group, sequence=False)
    network.enter_experts = Enter(cut.group, sequence=False)
    network.own_gates = _OwnGates(cut.group)
    network.sum_mixture = _Sum(cut.group)


def share_mixture(network: MMoE, mesh: Mesh, ep: int, placements: dict[str, Placement]) -> None:
    """Lays the experts over `ep` neighbours of dp_shard, in place; all ranks call it together.

    `LayoutError` when the numbers do not divide.
    """
    group, copies = expert_groups(mesh, ep)
    whole = len(network.expert_in.weight)
    stack = [nn.Identity(), network.expert_in, network.expert_out, nn.Identity()]
    layers = shard_dense_experts(stack, group)
    network.enter_experts, network.leave_experts = layers[0], layers[-1]
    for part in _EXPERTS:
        for name, _ in getattr(network, part).named_parameters():
            start = group.index * (whole // group.size)
            placements[f"{part}.{name}"] = Placement(0, start, whole, group, copies=copies)


class _OwnGates(nn.Module):
    """Of all gates (B, T, E) those of this rank's experts; each rank's gradient of its own is what the others lack."""

    def __init__(self, group: Group):
        super().__init__()
        self.enter, self.group = Enter(group, sequence=False), group

    def forward(self, gates_BTE: torch.Tensor) -> torch.Tensor:
        return self.enter(gates_BTE).chunk(self.group.size, dim=2)[self.group.index]


class _Sum(nn.Module):
    """The sum of the ranks' parts of the mixtures (T, B, H)."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, part_TBH: torch.Tensor) -> torch.Tensor:
        return leave(part_TBH, self.group, sequence=False)
