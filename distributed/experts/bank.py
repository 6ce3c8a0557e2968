"""The experts that one rank holds: gated feed-forward networks of equal shape, applied to runs of rows.

Legend: N rows, D hidden size, F width, L local experts, E all experts.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class ExpertBank(nn.Module):
    """The `held` ones of `experts`: silu(x W_gate) * (x W_up), then W_down, without biases.

    Weights are drawn for all experts and cut, so that every sharding starts at the same numbers from the same seed.
    """

    def __init__(self, hidden: int, width: int, experts: int, held: Sequence[int] | None = None):
        super().__init__()
        mine = list(range(experts) if held is None else held)
        self.gate_up = nn.Parameter((torch.randn(experts, hidden, 2 * width) / hidden**0.5)[mine])
        self.down = nn.Parameter((torch.randn(experts, width, hidden) / width**0.5)[mine])

    def forward(self, rows_ND: torch.Tensor, counts_L: list[int]) -> torch.Tensor:
        """(N, D) rows in runs, `counts_L[i]` for local expert i, to (N, D); an expert without rows gets a zero gradient."""
        outputs = []
        for rows_nD, gate_up_DF, down_FD in zip(rows_ND.split(counts_L), self.gate_up, self.down):
            gate_nF, up_nF = (rows_nD @ gate_up_DF).chunk(2, 1)
            outputs.append((functional.silu(gate_nF) * up_nF) @ down_FD)
        return torch.cat(outputs)
