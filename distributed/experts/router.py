"""The router: which experts each token goes to, with what weight, and the losses that keep it balanced.

Legend: N tokens of this rank, D hidden size, E experts, K choices a token, S segments (sequences).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from distributed.exchange import summed
from distributed.groups import Group


@dataclass(frozen=True)
class RouterSettings:
    """`score` "softmax" (Switch, Mixtral) or "sigmoid" (DeepSeek-V3). `normalise`: the K gates of a token sum to 1.

    `balance` and `z` weigh the two losses; `bias_step` is how far a step moves an expert's selection bias (0: no bias).
    """

    experts: int
    top_k: int = 2
    score: str = "softmax"
    normalise: bool = True
    balance: float = 0.01
    z: float = 0.0
    bias_step: float = 0.0

    def __post_init__(self) -> None:
        if self.score not in ("softmax", "sigmoid"):
            raise ValueError(f"router score is {self.score!r}, not softmax or sigmoid")
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"a token cannot go to {self.top_k} of {self.experts} experts")


@dataclass(frozen=True)
class Routing:
    """`experts_NK` and `gates_NK` of each token, `valid_N` false for padding. `routed_E`: valid choices, before any drop.

    `loss` is this rank's part of weight x loss, a *sum*: the balance loss over segments plus the z-loss over tokens. The
    parts of all ranks and micro-batches add up to the same total however the batch is cut; `.loss` already has weights in.
    """

    experts_NK: torch.Tensor
    gates_NK: torch.Tensor
    valid_N: torch.Tensor
    routed_E: torch.Tensor
    loss: torch.Tensor


class Router(nn.Module):
    """Scores by a linear layer without bias. `balance_bias_E` shifts the choice alone, never the gates.

    Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts".
    """

    def __init__(self, hidden: int, settings: RouterSettings):
        super().__init__()
        self.settings = settings
        self.weight = nn.Parameter(torch.randn(settings.experts, hidden) / hidden**0.5)
        self.register_buffer("balance_bias_E", torch.zeros(settings.experts))

    def forward(self, hidden_ND: torch.Tensor, valid_N: torch.Tensor, segments_N: torch.Tensor, segments: int,
                split: Group) -> Routing:  # fmt: skip
        """Routes valid tokens. `segments_N` numbers each token's sequence below `segments`; members of `split` hold parts
        of the same sequences (the cp group; alone when sequences are whole)."""
        settings = self.settings
        # In bf16 near ties would fall this way or that; logits and losses are float32 at least.
        exact = torch.promote_types(hidden_ND.dtype, torch.float32)
        logits_NE = functional.linear(hidden_ND.to(exact), self.weight.to(exact))
        if settings.score == "softmax":
            scores_NE = logits_NE.softmax(1)
            shares_NE = scores_NE
        else:
            scores_NE = logits_NE.sigmoid()
            shares_NE = scores_NE / scores_NE.sum(1, keepdim=True)
        choice_NE = (scores_NE + self.balance_bias_E).detach()
        # Stable: tied experts are taken in order, in the recomputed forward as in the first.
        experts_NK = choice_NE.sort(dim=1, descending=True, stable=True).indices[:, : settings.top_k]
        gates_NK = scores_NE.gather(1, experts_NK)
        if settings.normalise:
            gates_NK = gates_NK / gates_NK.sum(1, keepdim=True)
        chosen_NE = torch.zeros_like(logits_NE).scatter_(1, experts_NK, 1.0) * valid_N.unsqueeze(1)
        loss = _balance(shares_NE * valid_N.unsqueeze(1), chosen_NE, valid_N, segments_N, segments, split, settings)
        if settings.z:
            loss = loss + settings.z * (logits_NE.logsumexp(1).square() * valid_N).sum()
        return Routing(experts_NK, gates_NK, valid_N, chosen_NE.sum(0).long(), loss)


def _balance(shares_NE: torch.Tensor, chosen_NE: torch.Tensor, valid_N: torch.Tensor, segments_N: torch.Tensor,
             segments: int, split: Group, settings: RouterSettings) -> torch.Tensor:  # fmt: skip
    """Sum over segments of E sum_e f_e P_e: f_e the share of the segment's choices, P_e its mean score of expert e.

    Fedus et al. 2021, eq. 4, taken per sequence (DeepSeek-AI 2024), so that cutting the batch changes nothing. Where a
    sequence is cut over `split`, its counts are summed there; each member then holds the P of its own tokens.
    """
    if not settings.balance:
        return shares_NE.sum() * 0.0
    facts_NX = torch.cat([chosen_NE, valid_N.unsqueeze(1).to(chosen_NE)], 1)
    facts_SX = summed(facts_NX.new_zeros(segments, facts_NX.shape[1]).index_add_(0, segments_N, facts_NX), split)
    tokens_S1 = facts_SX[:, -1:].clamp(min=1.0)
    frequency_SE = facts_SX[:, :-1] / (tokens_S1 * settings.top_k)
    mean_SE = shares_NE.new_zeros(segments, settings.experts).index_add(0, segments_N, shares_NE) / tokens_S1
    return settings.balance * settings.experts * (frequency_SE * mean_SE).sum()


def update_balance_bias_(router: Router, routed_E: torch.Tensor, data: Group) -> None:
    """After a step: raises the bias of experts below the mean load and lowers it above; `routed_E` is this rank's count
    over the step's micro-batches, and stays as it is; `data` are the ranks with other tokens."""
    load_E = summed(routed_E, data).to(router.balance_bias_E.dtype)
    router.balance_bias_E += router.settings.bias_step * torch.sign(load_E.mean() - load_E)
