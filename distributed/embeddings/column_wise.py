"""A table cut by columns: each rank holds some dimensions of every row; ids go to all ranks and slices come back.

Legend: N ids of this rank, U different ones, M ids of all ranks, D dimensions, C those held here, R ranks.
"""

import torch
from torch import nn
from torch.nn import functional

from distributed.embeddings.initial import check_ids, initial_rows
from distributed.errors import LayoutError
from distributed.exchange import exchange_counts, exchange_rows
from distributed.groups import Group


class ColumnWiseTable(nn.Module):
    """Member r holds dimensions r C to (r + 1) C of all rows: even work whatever ids are hot.

    `weight` is (rows, C) with sparse gradients that hold the sums over the ids of all members.
    """

    def __init__(self, rows: int, dim: int, group: Group, *, seed: int = 0):
        super().__init__()
        if dim % group.size:
            raise LayoutError(f"{dim} dimensions of a table are no multiple of {group.size} ranks")
        self.rows, self.dim, self.group = rows, dim, group
        local = dim // group.size
        self.held = slice(group.index * local, (group.index + 1) * local)
        self.weight = nn.Parameter(initial_rows(range(rows), dim, seed)[:, self.held].clone())

    def forward(self, ids_N: torch.Tensor) -> torch.Tensor:
        """(N, D). Every member of the group must call it, with no ids where it has none."""
        check_ids(ids_N, self.rows, "a table")
        ids_U, place_N = ids_N.unique(return_inverse=True)
        ranks = self.group.size
        send = [len(ids_U)] * ranks
        receive = exchange_counts(torch.tensor(send, device=ids_N.device), self.group).tolist()
        ids_M = self.group.all_to_all(ids_U.repeat(ranks), send, receive)
        slices_MC = functional.embedding(ids_M, self.weight, sparse=True)
        home_XC = exchange_rows(slices_MC, receive, send, self.group)
        return home_XC.unflatten(0, (ranks, len(ids_U))).transpose(0, 1).flatten(1, 2)[place_N]
