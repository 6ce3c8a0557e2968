"""Where experts lie: which expert each slot of each rank holds, with hot experts in several slots, by measured load.

Legend: E experts, S slots in all, R ranks; rank r holds slots r S/R to (r + 1) S/R.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from distributed.errors import LayoutError
from distributed.groups import Group


@dataclass(frozen=True)
class Placement:
    """`expert_S` is the expert of each slot; every expert has at least one."""

    expert_S: tuple[int, ...]
    ranks: int

    def __post_init__(self) -> None:
        if len(self.expert_S) % self.ranks:
            raise LayoutError(f"{len(self.expert_S)} slots of experts are no multiple of ep {self.ranks}")

    @property
    def slots(self) -> int:
        """Slots of one rank."""
        return len(self.expert_S) // self.ranks

    def held(self, rank: int) -> tuple[int, ...]:
        """The experts of one rank's slots."""
        return self.expert_S[rank * self.slots : (rank + 1) * self.slots]

    def slots_of(self, expert: int) -> list[int]:
        """All slots of an expert, in rising order."""
        return [slot for slot, held in enumerate(self.expert_S) if held == expert]

    @property
    def replicated(self) -> list[int]:
        """Experts with more than one slot."""
        return sorted({expert for expert in self.expert_S if self.expert_S.count(expert) > 1})

    def unevenness(self, load_E: Sequence[float]) -> float:
        """Max over mean of the ranks' loads, an expert's load being shared evenly by its slots."""
        shares = [load_E[expert] / self.expert_S.count(expert) for expert in self.expert_S]
        of_rank = [sum(shares[rank * self.slots : (rank + 1) * self.slots]) for rank in range(self.ranks)]
        return max(of_rank) * self.ranks / sum(of_rank) if sum(of_rank) else 1.0


def even_placement(experts: int, ranks: int) -> Placement:
    """Experts in order, one slot each; `LayoutError` when they do not divide."""
    if experts % ranks:
        raise LayoutError(f"{experts} experts are no multiple of ep {ranks}")
    return Placement(tuple(range(experts)), ranks)


def place_by_load(load_E: Sequence[float], ranks: int, slots: int) -> Placement:
    """`slots` per rank: spare ones go, one by one, to the expert with the highest load per slot; then the heaviest slot
    goes to the least loaded rank that has room (DeepSeek-AI 2024, "Expert Parallelism Load Balancer")."""
    experts = len(load_E)
    if slots * ranks < experts:
        raise LayoutError(f"{ranks} ranks x {slots} slots do not hold {experts} experts")
    copies = [1] * experts
    for _ in range(slots * ranks - experts):
        copies[max(range(experts), key=lambda expert: (load_E[expert] / copies[expert], -expert))] += 1
    pieces = sorted(
        ((load_E[expert] / copies[expert], expert) for expert in range(experts) for _ in range(copies[expert])),
        key=lambda piece: (-piece[0], piece[1]),
    )
    carried, held = [0.0] * ranks, [list[int]() for _ in range(ranks)]
    for load, expert in pieces:
        rank = min(
            (rank for rank in range(ranks) if len(held[rank]) < slots),
            key=lambda rank: (carried[rank], len(held[rank]), rank),
        )
        carried[rank] += load
        held[rank].append(expert)
    return Placement(tuple(expert for rank in held for expert in sorted(rank)), ranks)


def moved(tensor: torch.Tensor, old: Placement, new: Placement, group: Group) -> torch.Tensor:
    """This rank's (slots, ...) of a per-expert tensor under `new`, from every rank's under `old`: weights or optimizer
    state alike. An expert with several old slots comes from the first."""
    me = group.index
    routes = [(old.slots_of(expert)[0], slot) for slot, expert in enumerate(new.expert_S)]
    routes.sort(key=lambda route: (route[1] // new.slots, route[0] // old.slots, route[1]))
    mine = [source % old.slots for source, _ in routes if source // old.slots == me]
    send = [sum(s // old.slots == me and t // new.slots == rank for s, t in routes) for rank in range(new.ranks)]
    coming = [(source, slot % new.slots) for source, slot in routes if slot // new.slots == me]
    receive = [sum(source // old.slots == rank for source, _ in coming) for rank in range(old.ranks)]
    arrived = group.all_to_all(tensor.detach()[mine], send, receive)
    placed = torch.empty((new.slots, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    placed[[slot for _, slot in coming]] = arrived
    return placed


def sum_over_replicas_(gradients: Sequence[torch.Tensor], placement: Placement, group: Group) -> None:
    """Gives all slots of an expert the sum of their gradients, in place; bitwise the same in each. (slots, ...) each."""
    hot = placement.replicated
    held = placement.held(group.index)
    here = [(slot, hot.index(expert)) for slot, expert in enumerate(held) if expert in hot]
    if not hot:
        return
    slots, places = [slot for slot, _ in here], [place for _, place in here]
    for gradient in gradients:
        total = gradient.new_zeros((len(hot), *gradient.shape[1:]))
        total.index_add_(0, torch.tensor(places, dtype=torch.int64, device=gradient.device), gradient[slots])
        group.all_reduce_(total)
        gradient[slots] = total[places]
