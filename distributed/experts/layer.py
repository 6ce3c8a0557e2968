"""A sparse mixture-of-experts layer: router, dispatch, experts, combine, and shared experts that every token uses.

Legend: N tokens of this rank, D hidden size.
"""

from collections.abc import Iterator

import torch
from torch import nn

from distributed.exchange import alone
from distributed.experts.bank import ExpertBank
from distributed.experts.dispatch import keep_within_capacity, through_experts
from distributed.experts.load import ExpertLoad
from distributed.experts.placement import Placement, even_placement, moved, sum_over_replicas_
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
                 shared: int = 0, placement: Placement | None = None):  # fmt: skip
        super().__init__()
        self.ep = ep or alone()
        self._queue, self._split = queue or self.ep, split or alone()
        self.placement = placement or even_placement(settings.experts, self.ep.size)
        self.router = Router(hidden, settings)
        self.bank = ExpertBank(hidden, width, settings.experts, self.placement.held(self.ep.index))
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
        mixed_ND = through_experts(hidden_ND, routing, kept, self.placement, self.bank, self.ep)
        if self.shared is not None:
            mixed_ND = mixed_ND + self.shared(hidden_ND, [len(hidden_ND)]) * valid_N.unsqueeze(1)
        return mixed_ND, routing.loss

    def sum_replicas_(self) -> None:
        """After the backward: slots of one expert get the sum of their gradients. All of `ep` must call it."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.bank.parameters()]
        sum_over_replicas_(gradients, self.placement, self.ep)
        for parameter, gradient in zip(self.bank.parameters(), gradients):
            parameter.grad = gradient

    def place_(self, placement: Placement, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Between steps: moves experts, and their state in `optimizer`, to other slots. All of `ep` must call it.

        The bank gets new parameters, which take the old ones' places in the optimizer.
        """
        for name, parameter in list(self.bank.named_parameters()):
            fresh = nn.Parameter(moved(parameter, self.placement, placement, self.ep))
            setattr(self.bank, name, fresh)
            if optimizer is None:
                continue
            state = optimizer.state.pop(parameter, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[key] = moved(value, self.placement, placement, self.ep)
            optimizer.state[fresh] = state
            for settings in optimizer.param_groups:
                settings["params"] = [fresh if held is parameter else held for held in settings["params"]]
        self.placement = placement


def expert_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters sharded over `ep`: their gradients are summed over the data ranks outside it alone."""
    for part in module.modules():
        if isinstance(part, ExpertLayer):
            yield from part.bank.parameters()


def expert_groups(mesh: Mesh, ep: int, over_tp: bool = False) -> tuple[Group, tuple[Group, ...]]:
    """`ep` neighbours inside dp_shard x cp (x tp) over which experts lie, and the groups over which expert gradients are
    summed. With `over_tp` the ranks of tp must hold different tokens.

    All ranks must call it together. `LayoutError` when `ep` does not divide the ranks of those axes.
    """
    inner, outer = mesh.carve(mesh.group(*("dp_shard", "cp", "tp") if over_tp else ("dp_shard", "cp")), ep)
    return inner, (outer, mesh.group("dp_replicate"))
