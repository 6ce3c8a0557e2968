"""Whole tables on different ranks: one all-to-all takes the ids of all tables there, one brings all vectors back."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from distributed.embeddings.initial import check_ids, initial_rows
from distributed.exchange import exchange_rows, gathered
from distributed.groups import Group


@dataclass(frozen=True)
class TableShape:
    """`lookups`: ids per sample, on average."""

    rows: int
    dim: int
    lookups: float = 1.0


def place_tables(shapes: Mapping[str, TableShape], ranks: int) -> dict[str, int]:
    """The rank of each table: the dearest first, each to the rank with the least so far.

    Cost is the elements sent per sample, lookups x dim; ties go by the rows x dim held.
    """
    sent, held = [0.0] * ranks, [0] * ranks
    owner: dict[str, int] = {}
    for name in sorted(shapes, key=lambda name: (-shapes[name].lookups * shapes[name].dim, name)):
        shape = shapes[name]
        rank = min(range(ranks), key=lambda rank: (sent[rank], held[rank], rank))
        owner[name] = rank
        sent[rank] += shape.lookups * shape.dim
        held[rank] += shape.rows * shape.dim
    return owner


class TableWiseTables(nn.Module):
    """Tables by name, of any widths, each on one member of `group`; `weights` holds this member's, with sparse gradients
    that are the sums over the ids of all members."""

    def __init__(self, shapes: Mapping[str, TableShape], group: Group, *, seed: int = 0,
                 owner: Mapping[str, int] | None = None):  # fmt: skip
        super().__init__()
        self.shapes, self.group = dict(shapes), group
        self.owner = dict(owner or place_tables(shapes, group.size))
        # Ids leave in the order of owners, so that each owner's are one run.
        self._order = sorted(self.shapes, key=lambda name: (self.owner[name], name))
        self._mine = [name for name in self._order if self.owner[name] == group.index]
        self.weights = nn.ParameterDict()
        for number, name in enumerate(sorted(self.shapes)):
            if name in self._mine:
                shape = self.shapes[name]
                self.weights[name] = nn.Parameter(initial_rows(range(shape.rows), shape.dim, seed * 1009 + number))

    def forward(self, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Vectors (N, dim of the table) by table; every member must call it, with an empty tensor where it has no ids."""
        different = {}
        for name in self._order:
            check_ids(ids[name], self.shapes[name].rows, f"table {name}")
            different[name] = ids[name].unique(return_inverse=True)
        ids_T = [different[name][0] for name in self._order]
        counts_RT = gathered(torch.tensor([len(part) for part in ids_T], device=ids_T[0].device), self.group).tolist()
        column = {name: at for at, name in enumerate(self._order)}
        ranks, me = self.group.size, self.group.index
        asked = [[counts_RT[source][column[name]] for name in self._mine] for source in range(ranks)]
        send = [self._sum_to(rank, counts_RT[me], column, elements=False) for rank in range(ranks)]
        ids_M = self.group.all_to_all(torch.cat(ids_T), send, [sum(part) for part in asked])
        flat = self._look_up(ids_M, asked)
        sent_back = [sum(n * self.shapes[name].dim for n, name in zip(part, self._mine)) for part in asked]
        come_back = [self._sum_to(rank, counts_RT[me], column, elements=True) for rank in range(ranks)]
        home = exchange_rows(flat, sent_back, come_back, self.group)
        sizes = [len(part) * self.shapes[name].dim for part, name in zip(ids_T, self._order)]
        return {
            name: part.view(-1, self.shapes[name].dim)[different[name][1]]
            for name, part in zip(self._order, home.split(sizes))
        }

    def _sum_to(self, rank: int, counts_T: list[int], column: dict[str, int], elements: bool) -> int:
        return sum(
            counts_T[column[name]] * (self.shapes[name].dim if elements else 1)
            for name in self._order
            if self.owner[name] == rank
        )

    def _look_up(self, ids_M: torch.Tensor, asked: list[list[int]]) -> torch.Tensor:
        """One run of elements per source, its tables in order: (elements,)."""
        if not self._mine:
            # It takes part in the backward too, which only an input with a gradient brings about.
            return torch.zeros(
                0, device=ids_M.device, dtype=torch.get_default_dtype(), requires_grad=torch.is_grad_enabled()
            )
        parts = iter(ids_M.split([count for part in asked for count in part]))
        by_source = [[next(parts) for _ in self._mine] for _ in asked]
        found = []
        for at, name in enumerate(self._mine):
            rows = torch.cat([source[at] for source in by_source])
            vectors = functional.embedding(rows, self.weights[name], sparse=True)
            found.append(vectors.split([source[at] for source in asked]))
        return torch.cat(
            [found[at][source].reshape(-1) for source in range(len(asked)) for at in range(len(self._mine))]
        )
