"""A moving average of the weights, kept where they lie: a shard's average is the shard of the average."""

import contextlib
from collections.abc import Iterator

import torch

from distributed.sharded_data import ShardedData


class MovingAverage:
    """average <- d average + (1 - d) weights after every step, with d = min(decay, (1 + n) / (10 + n)) at step n.

    The rising d forgets the first weights, which a constant one near 1 would hold on to for 1 / (1 - decay) steps.
    `tensors` lie beside `data.parameters()`: a checkpoint keeps them, and `updates` among its facts.
    """

    def __init__(self, data: ShardedData, decay: float):
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"the decay of a moving average is {decay}; it is at least 0 and below 1")
        self._data, self._decay, self.updates = data, decay, 0
        self.tensors = {parameter: parameter.detach().clone() for parameter in data.parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """After the optimizer's step."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(list(self.tensors.values()), [p.detach() for p in self.tensors], 1.0 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Between steps: the model has the averages for weights inside. All ranks enter together."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, average in self.tensors.items():
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)
        self._data.after_step()
