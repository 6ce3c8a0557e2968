"""Dense mixtures (MMoE): the experts lie on different ranks and every sample uses all of them.

Samples travel to all ranks, each computes its experts for everybody's samples, and the outputs travel home.
Legend: B samples of this rank, A samples of all ranks, D inputs, E experts, L experts a rank, H outputs, R ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from distributed.errors import LayoutError
from distributed.exchange import exchange_rows, gathered
from distributed.groups import Group


@dataclass
class _Rows:
    """How many samples each member brought to the forward under way."""

    counts_R: list[int] = field(default_factory=list)


class _Entering(nn.Module):
    """Before the first expert layer: (1, B, D) of each member to (1, A, D) on all."""

    def __init__(self, inner: nn.Module, group: Group, rows: _Rows):
        super().__init__()
        self.inner, self._group, self._rows = inner, group, rows

    def forward(self, inputs_1BD: torch.Tensor) -> torch.Tensor:
        inputs_BD, ranks = inputs_1BD[0], self._group.size
        mine = torch.tensor([len(inputs_BD)], device=inputs_BD.device)
        self._rows.counts_R = gathered(mine, self._group)[:, 0].tolist()
        everyone_AD = exchange_rows(
            inputs_BD.repeat(ranks, 1), [len(inputs_BD)] * ranks, self._rows.counts_R, self._group
        )
        return self.inner(everyone_AD.unsqueeze(0))


class _Leaving(nn.Module):
    """After the last expert layer: (L, A, H) of each member to (E, B, H) on the member whose samples they are."""

    def __init__(self, inner: nn.Module, group: Group, rows: _Rows):
        super().__init__()
        self.inner, self._group, self._rows = inner, group, rows

    def forward(self, hidden_LAW: torch.Tensor) -> torch.Tensor:
        outputs_ALH = self.inner(hidden_LAW).transpose(0, 1)
        ranks, mine = self._group.size, self._rows.counts_R[self._group.index]
        home_XLH = exchange_rows(outputs_ALH, self._rows.counts_R, [mine] * ranks, self._group)
        return home_XLH.unflatten(0, (ranks, mine)).permute(0, 2, 1, 3).flatten(0, 1)


def shard_dense_experts(stacked: Sequence[nn.Module], group: Group) -> list[nn.Module]:
    """The layers of a stack of experts, cut to this member's experts and joined to the others'.

    `stacked` are modules in order whose every parameter has the experts first, (E, ...), and that map (1 or E, B, in) to
    (E, B, out); between them come only operations of each element. The first and the last are wrapped, and each
    wrapped layer's `inner` holds the parameters, whose gradients come from the samples of all members.
    """
    if group.size == 1:
        return list(stacked)
    for layer in stacked:
        for name, parameter in list(layer.named_parameters(recurse=False)):
            experts = parameter.shape[0]
            if experts % group.size:
                raise LayoutError(f"{experts} experts are no multiple of ep {group.size}")
            local = experts // group.size
            mine = parameter.detach()[group.index * local : (group.index + 1) * local].clone()
            setattr(layer, name, nn.Parameter(mine))
    rows = _Rows()
    layers: list[nn.Module] = list(stacked)
    layers[0] = _Entering(layers[0], group, rows)
    layers[-1] = _Leaving(layers[-1], group, rows)
    return layers
