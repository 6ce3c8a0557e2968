"""Adagrad for sharded tables with one number of state per row, kept beside the row and touched only with it.

Row-wise Adagrad as in FBGEMM and TorchRec: state += mean over the row of g^2, weight -= rate x g / (sqrt(state) + eps).
"""

from collections.abc import Iterable

import torch
from torch import nn

from distributed.groups import Group


class RowWiseAdagrad(torch.optim.Optimizer):
    """Takes sparse gradients; rows without one keep weight and state bitwise.

    `columns` is the group over which the rows' dimensions are cut (column-wise tables): the mean is over the whole row.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, eps: float = 1e-8,
                 columns: Group | None = None):  # fmt: skip
        super().__init__(list(parameters), {"lr": learning_rate, "eps": eps})
        self._columns = columns

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of the rows that have gradients."""
        for settings in self.param_groups:
            for parameter in settings["params"]:
                if parameter.grad is not None:
                    self._update(parameter, settings["lr"], settings["eps"])

    def _update(self, parameter: nn.Parameter, learning_rate: float, eps: float) -> None:
        state_V = self.state[parameter].setdefault("square_V", parameter.new_zeros(len(parameter)))
        gradient = parameter.grad.coalesce()
        rows_U, values_UD = gradient.indices()[0], gradient.values()
        squares_U, width = values_UD.square().sum(1), values_UD.shape[1]
        if self._columns is not None and self._columns.size > 1:
            squares_U = self._columns.all_reduce_(squares_U)
            width *= self._columns.size
        state_V.index_add_(0, rows_U, squares_U / width)
        scale_U1 = learning_rate / (state_V[rows_U].sqrt() + eps).unsqueeze(1)
        parameter.index_add_(0, rows_U, -values_UD * scale_U1)
