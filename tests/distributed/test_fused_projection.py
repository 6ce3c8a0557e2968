"""A fused projection is the separate ones with their rows interleaved, and stays so when its rows are cut over ranks."""

import dataclasses

import pytest
import torch

from distributed import ParallelLayout, Rank, RankFailed
from distributed.groups import Mesh
from distributed.models.transformer import Attention, Tokens, Transformer, rotated
from distributed.parallelize import ParallelStyle, parallelize
from tests.distributed.parity import SEQUENCE, SIZES, batch, build
from tests.distributed.pool import pool

FUSED = dataclasses.replace(SIZES, fused_qkv=True)
DEEP = SIZES.width // SIZES.heads


def with_rows(by_head: bool) -> Transformer:
    """A fused model of the separate one's numbers: each head's rows together, or all queries, all keys, all values."""
    separate, fused = build(SIZES), build(FUSED)
    state = separate.state_dict()
    for number in range(SIZES.layers):
        for kind in ("weight", "bias"):
            parts = [state.pop(f"blocks.{number}.attention.{part}.{kind}") for part in ("wq", "wk", "wv")]
            if by_head:
                rows = torch.cat([part.unflatten(0, (SIZES.kv_heads, -1)) for part in parts], dim=1).flatten(0, 1)
            else:
                rows = torch.cat(parts)
            state[f"blocks.{number}.attention.wqkv.{kind}"] = rows
    fused.load_state_dict(state)
    return fused


class _OneAfterTheOther(Attention):
    """The fault: rows are all queries, then all keys, then all values, which a cut of the rows tears apart."""

    def forward(self, hidden_BLD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        rows = self.wqkv(self.enter(hidden_BLD)).unflatten(-1, (-1, DEEP))
        heads = rows.shape[2] * self.queries // (self.queries + 2)
        q, k, v = rows.split([heads, (rows.shape[2] - heads) // 2, (rows.shape[2] - heads) // 2], dim=2)
        return self.wo(self.core(rotated(q, tokens), rotated(k, tokens), v, tokens).flatten(2))


def loss(rank: Rank, torn: bool) -> float:
    model = with_rows(by_head=not torn)
    if torn:
        for block in model.blocks:
            block.attention.__class__ = _OneAfterTheOther
    mesh = Mesh(ParallelLayout(tp=rank.world_size), rank)
    parallel = parallelize(model, mesh, ParallelStyle(), SEQUENCE)
    return parallel.model(parallel.part(batch(0)), 0).item()


def test_rows_of_a_head_lie_together_so_that_a_cut_keeps_heads_whole():
    separate = build(SIZES)(batch(0), 0).item()
    for torn in (False, True):
        assert loss(Rank(), torn) == pytest.approx(separate, abs=1e-9)
        cut = pool().run(loss, (torn,), 2)[0]
        assert (abs(cut - separate) < 1e-9) == (not torn)


def test_fewer_fused_heads_than_ranks_are_refused_with_both_numbers():
    with pytest.raises(RankFailed, match="2 key-value heads of fused projections do not divide over tp=4"):
        pool().run(loss, (False,), 4)
