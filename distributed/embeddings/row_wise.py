"""A table cut by rows: each rank holds a run of rows; ids travel to their rows' rank and vectors travel back.

Legend: N ids of this rank, U different ones, M ids that came from all ranks, V rows held, D dimensions, R ranks.
"""

import torch
from torch import nn
from torch.nn import functional

from distributed.embeddings.admission import Admission
from distributed.embeddings.initial import check_ids, initial_rows
from distributed.exchange import exchange_counts, exchange_rows
from distributed.groups import Group


class RowWiseTable(nn.Module):
    """Row i of `rows` lies on member i // ceil(rows / R). An id is sent once however often it occurs.

    `weight` is this member's (V, dim) with sparse gradients, which hold the sums over the ids of all members: they are
    divided by the global weight like any gradient of a loss sum, and summed over no member of `group` again.
    """

    def __init__(self, rows: int, dim: int, group: Group, *, seed: int = 0, admit_from: int | None = None):
        super().__init__()
        self.rows, self.dim, self.group = rows, dim, group
        self._block = max(1, -(-rows // group.size))
        self.held = range(min(rows, group.index * self._block), min(rows, (group.index + 1) * self._block))
        self.weight = nn.Parameter(initial_rows(self.held, dim, seed))
        self.admission = None if admit_from is None else Admission(len(self.held), admit_from)

    def forward(self, ids_N: torch.Tensor) -> torch.Tensor:
        """(N, D). Every member of the group must call it, with no ids where it has none."""
        check_ids(ids_N, self.rows, "a table")
        ids_U, place_N, times_U = ids_N.unique(return_inverse=True, return_counts=True)
        sent_R = torch.bincount(ids_U // self._block, minlength=self.group.size)
        send, receive = sent_R.tolist(), exchange_counts(sent_R, self.group).tolist()
        ids_M = self.group.all_to_all(ids_U, send, receive)
        times_M = None if self.admission is None else self.group.all_to_all(times_U, send, receive)
        return exchange_rows(self._look_up(ids_M - self.held.start, times_M), receive, send, self.group)[place_N]

    def _look_up(self, rows_M: torch.Tensor, times_M: torch.Tensor | None) -> torch.Tensor:
        if self.admission is None or times_M is None:
            return functional.embedding(rows_M, self.weight, sparse=True)
        admitted_M = self.admission(rows_M, times_M)
        # Looking the others up and hiding them would give them (zero) gradients, and so optimizer state.
        found_AD = functional.embedding(rows_M[admitted_M], self.weight, sparse=True)
        zeros_MD = self.weight.new_zeros(len(rows_M), self.dim)
        return zeros_MD.index_copy(0, admitted_M.nonzero()[:, 0], found_AD)
