"""Dispatch and combine: chosen (token, choice) pairs travel to their experts' ranks by uneven all-to-all, and back.

Legend: N tokens, K choices, P pairs that are kept, D hidden size, E experts, R ranks, L slots a rank.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from distributed.exchange import exchange_counts, exchange_rows, gathered
from distributed.experts.placement import Placement
from distributed.experts.router import Routing
from distributed.groups import Group


@dataclass(frozen=True)
class Kept:
    """Pairs within capacity, sorted by expert: their token, choice and expert, all (P,); `dropped_E` is what was not."""

    tokens_P: torch.Tensor
    choices_P: torch.Tensor
    experts_P: torch.Tensor
    dropped_E: torch.Tensor


def keep_within_capacity(routing: Routing, experts: int, capacity_factor: float | None, queue: Group) -> Kept:
    """Which pairs an expert takes. Without a factor all; with one, each expert takes ceil(factor x pairs / E) of the
    valid pairs of all `queue` members: first choices before second ones, then by member, then by token.

    The queue is over the whole group, so ranks drop what one process with their tokens in a row would drop.
    """
    tokens, top_k = routing.experts_NK.shape
    experts_F = routing.experts_NK.t().reshape(-1)
    valid_F = routing.valid_N.repeat(top_k)
    place_F = torch.arange(tokens * top_k, device=experts_F.device)
    keep_F = valid_F
    if capacity_factor is not None:
        one_hot_FE = torch.nn.functional.one_hot(experts_F, experts) * valid_F.unsqueeze(1)
        counts_KE = one_hot_FE.view(top_k, tokens, experts).sum(1)
        counts_RKE = gathered(counts_KE, queue)
        capacity = math.ceil(capacity_factor * int(counts_RKE.sum()) / experts)
        earlier_choice_KE = counts_RKE.sum(0).cumsum(0) - counts_RKE.sum(0)
        before_KE = earlier_choice_KE + counts_RKE[: queue.index].sum(0)
        own_KNE = one_hot_FE.view(top_k, tokens, experts).cumsum(1) - 1 + before_KE.unsqueeze(1)
        queue_F = own_KNE.reshape(-1, experts).gather(1, experts_F.unsqueeze(1)).squeeze(1)
        keep_F = valid_F & (queue_F < capacity)
    dropped_E = torch.bincount(experts_F[valid_F & ~keep_F], minlength=experts)
    kept_P = place_F[keep_F]
    kept_P = kept_P[experts_F[kept_P].sort(stable=True).indices]
    return Kept(kept_P % tokens, kept_P // tokens, experts_F[kept_P], dropped_E) if tokens else Kept(
        kept_P, kept_P, experts_F[kept_P], dropped_E
    )  # fmt: skip


def through_experts(hidden_ND: torch.Tensor, routing: Routing, kept: Kept, placement: Placement,
                    bank: Callable[[torch.Tensor, list[int]], torch.Tensor], group: Group) -> torch.Tensor:  # fmt: skip
    """(N, D) sums over each token's kept choices of gate x expert; zeros for padding and where all choices were dropped.

    The pairs of an expert with several slots go to them in turn.
    """
    slots_P, order_P = _slots(kept.experts_P, placement, group.index)
    tokens_P, choices_P = kept.tokens_P[order_P], kept.choices_P[order_P]
    local, ranks = placement.slots, group.size
    sent_RL = torch.bincount(slots_P, minlength=ranks * local).view(ranks, local)
    received_RL = exchange_counts(sent_RL, group)
    send, receive = sent_RL.sum(1).tolist(), received_RL.sum(1).tolist()
    arrived_MD = exchange_rows(hidden_ND[tokens_P], send, receive, group)
    # Rows arrive by sender, then slot; the bank wants them by slot, then sender.
    slot_M = torch.arange(local, device=hidden_ND.device).repeat(ranks).repeat_interleave(received_RL.reshape(-1))
    order_M = slot_M.sort(stable=True).indices
    computed_MD = bank(arrived_MD[order_M], received_RL.sum(0).tolist())
    returned_PD = exchange_rows(computed_MD[order_M.argsort()], receive, send, group)
    gates_P1 = routing.gates_NK[tokens_P, choices_P].unsqueeze(1)
    # Gates are float32 at least, and so is the sum of a token's choices.
    sums_ND = gates_P1.new_zeros(hidden_ND.shape).index_add(0, tokens_P, returned_PD * gates_P1)
    return sums_ND.to(hidden_ND.dtype)


def _slots(experts_P: torch.Tensor, placement: Placement, sender: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The slot of each pair, sorted, and the order that sorts them. Senders begin with different slots of an expert."""
    experts = max(placement.expert_S) + 1
    table = [placement.slots_of(expert) for expert in range(experts)]
    copies_E = torch.tensor([len(slots) for slots in table], device=experts_P.device)
    table_EX = torch.zeros(experts, max(map(len, table)), dtype=torch.int64)
    for expert, slots in enumerate(table):
        table_EX[expert, : len(slots)] = torch.tensor(slots)
    counts_E = torch.bincount(experts_P, minlength=experts)
    turn_P = torch.arange(len(experts_P), device=experts_P.device) - (counts_E.cumsum(0) - counts_E)[experts_P] + sender
    slots_P = table_EX.to(experts_P.device)[experts_P, turn_P % copies_E[experts_P]]
    sorted_P = slots_P.sort(stable=True)
    return sorted_P.values, sorted_P.indices
