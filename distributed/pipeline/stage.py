"""One stage's work on micro-batches: forward, whole backward, or backward in two parts, the weights' part later.

The split backward is PyTorch's own (`torch.distributed.pipelining`), after Qi et al. 2023, "Zero Bubble Pipeline
Parallelism".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import _backward as split_backward

Loss = Callable[[torch.Tensor, Any], torch.Tensor]
"""(output of the last stage, micro-batch) -> loss *sum*; sums of micro-batches add up however uneven they are."""


@dataclass
class _Held:
    """What a forward keeps for its backward."""

    entered: torch.Tensor | None
    outputs: list[torch.Tensor]
    """The output (or, in the last stage, the loss), then the stage's own loss if it has one."""


@dataclass
class _Deferred:
    """What an input gradient keeps for the weights' gradient: PyTorch's groups, or the whole backward where no input
    needs a gradient."""

    groups: list[dict[str, Any]]
    whole: tuple[list[torch.Tensor], list[torch.Tensor | None]] | None


class StageWork:
    """Runs `module(activation, micro_batch)`; the first stage gets None, the last one's output goes through `loss`.

    All parameters that the output or the loss depends on must be the module's own, or the split backward misses them.
    A module may return (output, loss of its own), such as a router's; own losses are sums too and are added. Parameters
    collect gradients in `.grad`.
    """

    def __init__(self, module: nn.Module, first: bool, loss: Loss | None):
        self.module, self._first, self._loss = module, first, loss
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._held: dict[int, _Held] = {}
        self._deferred: dict[int, _Deferred] = {}
        self.loss_sum = 0.0

    @property
    def held(self) -> int:
        """Micro-batches whose activations are kept for a backward."""
        return len(self._held)

    @property
    def deferred(self) -> int:
        """Micro-batches whose weight gradients are still to come."""
        return len(self._deferred)

    def forward(self, micro: int, activation: torch.Tensor | None, batch: Any) -> torch.Tensor | None:
        """The activation for the next stage; None from the last one."""
        if activation is not None:
            activation = activation.detach().requires_grad_()
        answer = self.module(activation, batch)
        output, *own = answer if isinstance(answer, tuple) else (answer,)
        if self._loss is not None:
            output = self._loss(output, batch)
        if output._is_view():
            # The split backward lets go of the output in place, which a view does not allow.
            output = output.clone()
        scalars = [*own, output] if self._loss is not None else own
        self.loss_sum += sum(float(scalar.detach()) for scalar in scalars)
        self._held[micro] = _Held(activation, [output, *own])
        return None if self._loss is not None else output.detach()

    def backward(self, micro: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The whole backward: collects weight gradients, returns that of the stage's input."""
        held = self._held.pop(micro)
        roots, gradients = self._roots(held, gradient)
        torch.autograd.backward(roots, gradients)
        return None if held.entered is None else _filled(held.entered.grad, held.entered)

    def backward_input(self, micro: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient of the stage's input alone; the weights' part waits for `backward_weight`."""
        held = self._held.pop(micro)
        roots, gradients = self._roots(held, gradient)
        if held.entered is None:
            self._deferred[micro] = _Deferred([], (roots, gradients))
            return None
        filled = [torch.ones_like(root) if given is None else given for root, given in zip(roots, gradients)]
        (entered,), groups = split_backward.stage_backward_input(roots, filled, [held.entered], iter(self._parameters))
        # A group that no gradient reached has none to give.
        self._deferred[micro] = _Deferred([group for group in groups if group.get("grads") is not None], None)
        return _filled(entered, held.entered)

    def backward_weight(self, micro: int) -> None:
        """Collects the weight gradients that `backward_input` left."""
        deferred = self._deferred.pop(micro)
        if deferred.whole is not None:
            torch.autograd.backward(*deferred.whole)
        else:
            split_backward.stage_backward_weight(iter(self._parameters), deferred.groups)

    def _roots(
        self, held: _Held, gradient: torch.Tensor | None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        output, *own = held.outputs
        pairs = [(output, gradient), *((scalar, None) for scalar in own)]
        kept = [(root, given) for root, given in pairs if root.requires_grad]
        return [root for root, _ in kept], [given for _, given in kept]


def _filled(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
