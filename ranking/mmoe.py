"""The multi-gate mixture of experts; a plain module that knows nothing of parallelism.

What ranks exchange stands as a module of its own, identity here: `enter_experts`, `leave_experts`, `own_gates`, `sum_mixture`.
Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts".
Legend: B rows, M numeric inputs, C categories, D model inputs, E experts, H expert outputs, T tasks.
"""

import math

import torch
from torch import nn
from torch.nn import functional


class MMoE(nn.Module):
    """Experts shared by all tasks; each task has its gate over the experts, its tower, and a linear path to the inputs.

    The linear path makes a logistic regression the least that a task can be, which matters for the rare ones.
    `prior_logits_T`: the logit of each task's label rate.
    """

    def __init__(self, numeric: int, slots_C: list[int], tasks: int, *, experts: int, expert_width: int,
                 tower_width: int, embedding_dim: int, prior_logits_T: torch.Tensor):  # fmt: skip
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, embedding_dim) for size in slots_C)
        for embedding in self.embeddings:
            nn.init.normal_(embedding.weight, std=0.1)
        inputs = numeric + embedding_dim * len(slots_C)
        self.expert_in = _Stacked(experts, inputs, expert_width)
        self.expert_out = _Stacked(experts, expert_width, max(1, expert_width // 2))
        self.gates = nn.Linear(inputs, tasks * experts)
        nn.init.zeros_(self.gates.bias)
        self.tower_in = _Stacked(tasks, max(1, expert_width // 2), tower_width)
        self.tower_out = _Stacked(tasks, tower_width, 1)
        self.linear = nn.Linear(inputs, tasks)
        # It begins at the label rates and with quiet towers, so that the first steps are not spent on the intercepts.
        nn.init.zeros_(self.linear.weight)
        with torch.no_grad():
            self.linear.bias.copy_(prior_logits_T)
            self.tower_out.weight.mul_(0.1)
        self.enter_experts: nn.Module = nn.Identity()
        self.leave_experts: nn.Module = nn.Identity()
        self.own_gates: nn.Module = nn.Identity()
        self.sum_mixture: nn.Module = nn.Identity()
        self._shape = (tasks, experts)

    def forward(self, numeric_BM: torch.Tensor, slots_BC: torch.Tensor) -> torch.Tensor:
        """Logits (B, T)."""
        inputs_BD = self._inputs(numeric_BM, slots_BC)
        hidden_EBW = functional.relu(self.expert_in(self.enter_experts(inputs_BD.unsqueeze(0))))
        experts_EBH = self.leave_experts(functional.relu(self.expert_out(hidden_EBW)))
        mixed_TBH = torch.einsum("bte,ebh->tbh", self.own_gates(self._gates(inputs_BD)), experts_EBH)
        mixed_TBH = self.sum_mixture(mixed_TBH)
        towers_TB1 = self.tower_out(functional.relu(self.tower_in(mixed_TBH)))
        return towers_TB1.squeeze(2).transpose(0, 1) + self.linear(inputs_BD)

    def gate_shares(self, numeric_BM: torch.Tensor, slots_BC: torch.Tensor) -> torch.Tensor:
        """How much of each expert each task takes, (B, T, E), summing to 1 over E."""
        return self._gates(self._inputs(numeric_BM, slots_BC))

    def _inputs(self, numeric_BM: torch.Tensor, slots_BC: torch.Tensor) -> torch.Tensor:
        return torch.cat([numeric_BM, *(embed(slots_BC[:, c]) for c, embed in enumerate(self.embeddings))], dim=1)

    def _gates(self, inputs_BD: torch.Tensor) -> torch.Tensor:
        return functional.softmax(self.gates(inputs_BD).unflatten(1, self._shape), dim=2)


class _Stacked(nn.Module):
    """`count` linear layers applied at once: (count or 1, B, in) -> (count, B, out)."""

    def __init__(self, count: int, inputs: int, outputs: int):
        super().__init__()
        bound = math.sqrt(2.0 / inputs)
        self.weight = nn.Parameter(torch.randn(count, inputs, outputs) * bound)
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.matmul(inputs, self.weight) + self.bias


def masked_log_loss(logits_BT: torch.Tensor, labels_BT: torch.Tensor, weights_B: torch.Tensor) -> torch.Tensor:
    """Weighted sums over rows of the log loss, per task (T,); a NaN label adds nothing and has no gradient. Of the labels' type."""
    known_BT = torch.isfinite(labels_BT)
    losses_BT = functional.binary_cross_entropy_with_logits(
        logits_BT.to(labels_BT.dtype), torch.where(known_BT, labels_BT, 0.0), reduction="none"
    )
    return (torch.where(known_BT, losses_BT, 0.0) * weights_B.unsqueeze(1)).sum(dim=0)
