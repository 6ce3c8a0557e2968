"""A sparse mixture-of-experts layer: router, dispatch, experts, combine, and shared experts that every token uses.

Legend: N tokens of this rank, D hidden size.
"""

from collections.abc import Iterator

import torch
from torch import nn

from distributed.errors import LayoutError
from distributed.exchange import alone
from distributed.experts.bank import ExpertBank
from distributed.experts.dispatch import keep_within_capacity, through_experts
from distributed.experts.load import ExpertLoad
from distributed.experts.router import Router, RouterSettings, Routing
from distributed.groups import Group, Mesh
from distributed.recomputing import recomputing


class ExpertLayer(nn.Module):
    """`ep` are the ranks over which the experts lie: neighbours inside dp_shard x cp. `queue` are the ranks whose tokens
    share an expert's capacity (by default those of `ep`), `split` those that hold parts of the same sequences.

    A rank's expert weights receive the gradients of all tokens of `ep`; outside it, they are summed like any others.
    `load` counts until `load.clear()`; a forward that is recomputed is not counted again.
    """

    def __init__(self, hidden: int, width: int, settings: RouterSettings, *, ep: Group | None = None,
                 queue: Group | None = None, split: Group | None = None, capacity_factor: float | None = None,
                 shared: int = 0):  # fmt: skip
        super().__init__()
        self.ep = ep or alone()
        self._queue, self._split = queue or self.ep, split or alone()
        if settings.experts % self.ep.size:
            raise LayoutError(f"{settings.experts} experts are no multiple of ep {self.ep.size}")
        local = settings.experts // self.ep.size
        self.router = Router(hidden, settings)
        self.bank = ExpertBank(hidden, width, settings.experts, self.ep.index * local, local)
        self.shared = ExpertBank(hidden, width * shared, 1) if shared else None
        self.capacity_factor = capacity_factor
        self.load = ExpertLoad(settings.experts)

    def forward(self, hidden_ND: torch.Tensor, valid_N: torch.Tensor | None = None,
                segments_N: torch.Tensor | None = None, segments: int = 1) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """(N, D) and this rank's part of the router's loss sum. Padding (`valid_N` false) gives zeros and counts nowhere."""
        if valid_N is None:
            valid_N = torch.ones(len(hidden_ND), dtype=torch.bool, device=hidden_ND.device)
        if segments_N is None:
            segments_N = torch.zeros(len(hidden_ND), dtype=torch.int64, device=hidden_ND.device)
        routing: Routing = self.router(hidden_ND, valid_N, segments_N, segments, self._split)
        experts = self.router.settings.experts
        kept = keep_within_capacity(routing, experts, self.capacity_factor, self._queue)
        if not recomputing():
            self.load.add(routing.routed_E, kept.dropped_E)
        mixed_ND, _ = through_experts(hidden_ND, routing, kept, experts, self.bank, self.ep)
        if self.shared is not None:
            mixed_ND = mixed_ND + self.shared(hidden_ND, [len(hidden_ND)]) * valid_N.unsqueeze(1)
        return mixed_ND, routing.loss


def expert_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters sharded over `ep`: their gradients are summed over the data ranks outside it alone."""
    for part in module.modules():
        if isinstance(part, ExpertLayer):
            yield from part.bank.parameters()


def expert_groups(mesh: Mesh, ep: int) -> tuple[Group, tuple[Group, ...]]:
    """`ep` neighbours inside dp_shard x cp over which experts lie, and the groups over which expert gradients are summed.

    All ranks must call it together. `LayoutError` when `ep` does not divide dp_shard x cp.
    """
    inner, outer = mesh.carve(mesh.group("dp_shard", "cp"), ep)
    return inner, (outer, mesh.group("dp_replicate"))
