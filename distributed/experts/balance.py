"""What a step routed in the sparse layers of a model, and the router's bias that follows from it."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from distributed.exchange import summed
from distributed.experts.layer import ExpertLayer
from distributed.experts.router import update_balance_bias_
from distributed.groups import Group


class StepLoad(NamedTuple):
    """Choices of one layer in a step on this rank, (E,) each."""

    routed_E: torch.Tensor
    dropped_E: torch.Tensor


def take_load(model: nn.Module) -> dict[str, StepLoad]:
    """The counts of each sparse layer by name, which begin anew."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ExpertLayer):
            found[name] = StepLoad(layer.load.routed_E, layer.load.dropped_E)
            layer.load.clear()
    return found


def balance_(model: nn.Module, load: Mapping[str, StepLoad], *tokens_over: Group) -> None:
    """After a step that was applied: moves the bias of routers that balance by one. `tokens_over` are the groups whose ranks
    have other tokens; all of them call it together."""
    for name, (routed_E, _) in load.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, ExpertLayer)
        if layer.router.settings.bias_step:
            routed_E = routed_E.to(layer.router.balance_bias_E.device)
            for group in tokens_over[:-1]:
                routed_E = summed(routed_E, group)
            update_balance_bias_(layer.router, routed_E, tokens_over[-1])
