"""Attention in blocks is attention: any cut, any order, huge gaps, float32 partials; zig-zag work is even."""

import math

import pytest
import torch

from distributed.context_parallel import ContextSplit, blocks
from distributed.dropout import Dropout
from distributed.groups import Group
from distributed.models.attention import attend, attend_backward, merge, visible

B, L, H, K, D = 2, 32, 4, 2, 8


def _inputs(dtype: torch.dtype = torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, L, heads, D, generator=generator, dtype=torch.float64) for heads in (H, K, K))
    slots = torch.arange(L).expand(B, L)
    return q.to(dtype), k.to(dtype), v.to(dtype), visible(slots, slots, slots // 20, slots // 20, True)


def _in_blocks(q, k, v, seen, pieces: int, keep=None):
    """`keep` is the fault: the type that partial results are put in between blocks."""
    out, lse = None, None
    for part in torch.arange(L).chunk(pieces):
        more, more_lse = attend(q, k[:, part], v[:, part], seen[:, :, part])
        out, lse = (more, more_lse) if out is None else merge(out, lse, more, more_lse)
        if keep is not None:
            out, lse = out.to(keep).float(), lse.to(keep).float()
    return out, lse


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_blocks_merged_are_the_whole(pieces: int):
    q, k, v, seen = _inputs()
    whole, lse = attend(q, k, v, seen)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), seen[:, None], enable_gqa=True
    ).transpose(1, 2)
    assert (whole - expected).abs().max() < 1e-12
    merged, merged_lse = _in_blocks(q, k, v, seen, pieces)
    assert (merged - whole).abs().max() < 1e-12 and (merged_lse - lse).abs().max() < 1e-12


def test_the_backward_by_blocks_is_that_of_autograd():
    q, k, v, seen = _inputs()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse = attend(q, k, v, seen)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    expected = torch.autograd.grad(out, (q, k, v), grad)
    delta = (grad * out).sum(-1).detach()
    parts = [attend_backward(q, k[:, p], v[:, p], seen[:, :, p], lse, grad, delta) for p in torch.arange(L).chunk(4)]
    found = (sum(part[0] for part in parts), *(torch.cat([part[i] for part in parts], dim=1) for i in (1, 2)))
    assert max((a - b).abs().max() for a, b in zip(expected, found)) < 1e-12


def test_fault_16_a_gap_of_200_between_blocks_stays_finite():
    out, lse = torch.ones(1, 1, 1, 2), torch.full((1, 1, 1), 200.0)
    for low in (0.0, -math.inf):
        merged, total = merge(torch.zeros_like(out), torch.full_like(lse, low), out, lse)
        assert torch.isfinite(merged).all() and torch.equal(merged, out) and total.item() == 200.0
    nothing, none = merge(out * 0, lse - math.inf, out * 0, lse - math.inf)
    assert torch.equal(nothing, out * 0) and none.item() == -math.inf
    assert not math.isfinite(torch.exp(lse).item()), "a merge that exponentiates the lse itself would overflow"


def test_fault_16_the_error_of_bfloat16_inputs_does_not_grow_with_the_number_of_blocks():
    q, k, v, seen = _inputs(torch.bfloat16)
    exact, _ = attend(q.double(), k.double(), v.double(), seen)

    def error(pieces: int, keep=None) -> float:
        return (_in_blocks(q, k, v, seen, pieces, keep)[0].double() - exact).abs().max().item()

    assert attend(q, k, v, seen)[0].dtype == torch.float32
    assert max(error(pieces) for pieces in (1, 2, 4, 8, 16)) < 1e-5
    assert error(16, torch.bfloat16) > 1e-3, "bfloat16 partials would be seen"


def _split(ranks: int, zigzag: bool, index: int = 0) -> ContextSplit:
    return ContextSplit(Group("inner", (index,), 0), Group("outer", tuple(range(ranks)), index), zigzag)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zigzag_gives_every_rank_equal_causal_work_and_contiguous_does_not(ranks: int):
    def work(zigzag: bool) -> list[int]:
        order = _split(ranks, zigzag).order(64).expand(1, 64)
        context = torch.stack([order, torch.zeros_like(order)]).chunk(ranks, dim=-1)
        return [
            sum(len(range(64 // ranks)[queries]) * len(range(64 // ranks)[keys])
                for theirs in range(ranks) for queries, keys, _ in blocks(context, mine, theirs, True))
            for mine in range(ranks)
        ]  # fmt: skip

    assert len(set(work(True))) == 1
    contiguous = work(False)
    assert max(contiguous) / (sum(contiguous) / ranks) > 1.2 and sum(contiguous) >= sum(work(True))


def test_dropout_depends_on_the_token_and_channel_not_on_how_the_batch_is_cut():
    dropout, hidden = Dropout(0.3, "here"), torch.ones(4, 10, 50)
    slots = torch.arange(40).view(4, 10)
    whole = dropout(hidden, slots, key=5)
    assert torch.equal(dropout(hidden[2:], slots[2:], key=5), whole[2:])
    assert torch.equal(dropout(hidden[:, ::2], slots[:, ::2], key=5), whole[:, ::2])
    for other in (dropout(hidden, slots, key=6), Dropout(0.3, "there")(hidden, slots, key=5)):
        assert 0.3 < (other == whole).float().mean() < 0.7
    assert (whole == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert whole.mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(dropout.eval()(hidden, slots, key=5), hidden)
