"""Context parallelism: the tokens of a sample over ranks. Ring attention, Ulysses, and both at once.

The cp group is `outer` x `inner`: inside `inner` tokens are swapped for heads (Ulysses: all-to-all before and after attention),
around `outer` keys and values travel (ring). inner = 1 is the pure ring, outer = 1 pure Ulysses.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distributed.errors import LayoutError
from distributed.groups import Group, Mesh
from distributed.models.attention import attend, attend_backward, merge, visible, wide
from distributed.models.transformer import Tokens, fused


@dataclass(frozen=True)
class ContextSplit:
    """Which tokens of a sequence each rank of the cp group holds.

    Zig-zag: of 2 x outer chunks a rank has one of the front and its mirror of the back, so that with causal attention all
    have equal work; contiguous gives the last rank almost twice the mean.
    """

    inner: Group
    outer: Group
    zigzag: bool

    @classmethod
    def of(cls, mesh: Mesh, ulysses: int = 1, zigzag: bool = True) -> "ContextSplit":
        """Over the cp axis of `mesh`, with `ulysses` ranks inside. All ranks call it together."""
        inner, outer = mesh.carve(mesh.group("cp"), ulysses)
        return cls(inner, outer, zigzag)

    def order(self, length: int) -> torch.Tensor:
        """(length,) places in the sequence, all parts one behind the other. `LayoutError` when they are not equal."""
        chunks = self.outer.size * (2 if self.zigzag else 1)
        parts = self.outer.size * self.inner.size
        if length % chunks or length % parts:
            raise LayoutError(f"{length} tokens do not divide into {chunks} chunks over cp={parts}")
        places = torch.arange(length)
        if not self.zigzag:
            return places
        pieces = places.chunk(chunks)
        return torch.cat([torch.cat([pieces[i], pieces[chunks - 1 - i]]) for i in range(self.outer.size)])

    def part(self, tokens: Tokens) -> Tokens:
        """This rank's part of whole sequences that every rank of the cp group holds."""
        if self.outer.size * self.inner.size == 1:
            return tokens
        order_S = self.order(tokens.ids.shape[1]).to(tokens.ids.device)
        mine_L = order_S.chunk(self.outer.size * self.inner.size)[self.outer.index * self.inner.size + self.inner.index]
        per_token = {
            field.name: value[:, mine_L]
            for field in dataclasses.fields(tokens)
            if isinstance(value := getattr(tokens, field.name), torch.Tensor) and not field.name.startswith("context_")
        }
        return dataclasses.replace(
            tokens,
            **per_token,
            context_documents=tokens.documents[:, order_S],
            context_slots=tokens.slots[:, order_S],
        )


class ContextAttention(nn.Module):
    """Attention where this rank holds a part of the tokens, as `ContextSplit` cut them."""

    def __init__(self, split: ContextSplit, causal: bool):
        super().__init__()
        self.split, self.causal = split, causal

    def forward(self, q_BLHD: torch.Tensor, k_BLKD: torch.Tensor, v_BLKD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """(B, L, H, D) of the local tokens. `LayoutError` when the heads do not divide over the Ulysses ranks."""
        inner = self.split.inner
        q = _SwapTokensForHeads.apply(q_BLHD, inner)
        k, v = (_SwapTokensForHeads.apply(_enough_heads(x, inner, q_BLHD.shape[2]), inner) for x in (k_BLKD, v_BLKD))
        assert tokens.context_slots is not None
        assert tokens.context_documents is not None
        slots, documents = tokens.context_slots, tokens.context_documents
        if self.split.outer.size == 1:
            # Every token is here, of some heads: there is no ring whose partial results would have to be merged.
            seen = visible(slots, slots, documents, documents, self.causal)
            return _SwapHeadsForTokens.apply(fused(q, k, v, seen, self.causal), inner)
        context = torch.stack([slots, documents]).chunk(self.split.outer.size, dim=-1)
        out = _Ring.apply(q, torch.stack([k, v]), context, self.split.outer, self.causal)
        return _SwapHeadsForTokens.apply(out, inner)


def _enough_heads(x_BLKD: torch.Tensor, group: Group, heads: int) -> torch.Tensor:
    """Key-value heads repeated until each Ulysses rank has one; the backward sums the copies."""
    kv_heads, ranks = x_BLKD.shape[2], group.size
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise LayoutError(f"{heads} heads and {kv_heads} key-value heads do not divide over {ranks} Ulysses ranks")
    return x_BLKD if kv_heads >= ranks else x_BLKD.repeat_interleave(ranks // kv_heads, dim=2)


def _tokens_for_heads(x_BLHD: torch.Tensor, group: Group) -> torch.Tensor:
    if group.size == 1:
        return x_BLHD
    parts_RBLHD = x_BLHD.unflatten(2, (group.size, -1)).movedim(2, 0)
    return group.all_to_all(parts_RBLHD).movedim(0, 1).flatten(1, 2)


def _heads_for_tokens(x_BLHD: torch.Tensor, group: Group) -> torch.Tensor:
    if group.size == 1:
        return x_BLHD
    parts_RBLHD = x_BLHD.unflatten(1, (group.size, -1)).movedim(1, 0)
    return group.all_to_all(parts_RBLHD).movedim(0, 2).flatten(2, 3)


class _SwapTokensForHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _tokens_for_heads(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _heads_for_tokens(grad, ctx.group), None


class _SwapHeadsForTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _heads_for_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _tokens_for_heads(grad, ctx.group), None


class _Ring(torch.autograd.Function):
    """Keys and values go round the group; each rank attends to what is with it and merges by log-sum-exp.

    In the backward they go round once more, with their gradients beside them, which come home after a full round.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, context: tuple[torch.Tensor, ...], group: Group,
                causal: bool) -> torch.Tensor:  # fmt: skip
        out = q.new_zeros(q.shape, dtype=wide(q.dtype))
        lse = out.new_full(q.shape[:-1], float("-inf"))
        passing = kv
        for step in range(group.size):
            following = group.start_shift(passing) if step + 1 < group.size else None
            k, v = passing.unbind(0)
            for mine, theirs, seen in blocks(context, group.index, (group.index - step) % group.size, causal):
                more, more_lse = attend(q[:, mine], k[:, theirs], v[:, theirs], seen)
                out[:, mine], lse[:, mine] = merge(out[:, mine], lse[:, mine], more, more_lse)
            passing = passing if following is None else following.wait()
        ctx.save_for_backward(q, kv, out, lse)
        ctx.context, ctx.group, ctx.causal = context, group, causal
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, kv, out, lse = ctx.saved_tensors
        group = ctx.group
        delta = (grad_out * out).sum(-1)
        grad_q = torch.zeros_like(out)
        passing, grad_passing = kv, torch.zeros_like(kv, dtype=out.dtype)
        for step in range(group.size):
            following = group.start_shift(passing) if step + 1 < group.size else None
            k, v = passing.unbind(0)
            for mine, theirs, seen in blocks(ctx.context, group.index, (group.index - step) % group.size, ctx.causal):
                parts = attend_backward(q[:, mine], k[:, theirs], v[:, theirs], seen, lse[:, mine], grad_out[:, mine],
                                        delta[:, mine])  # fmt: skip
                grad_q[:, mine] += parts[0]
                grad_passing[0][:, theirs] += parts[1]
                grad_passing[1][:, theirs] += parts[2]
            passing = passing if following is None else following.wait()
            grad_passing = group.start_shift(grad_passing).wait()
        return grad_q.to(q.dtype), grad_passing.to(kv.dtype), None, None, None


def blocks(context: tuple[torch.Tensor, ...], mine: int, theirs: int, causal: bool
           ) -> list[tuple[slice, slice, torch.Tensor]]:  # fmt: skip
    """(queries, keys, who sees whom) of the blocks that rank `mine` must compute while it has the keys of rank `theirs`.

    `context[rank]` is (2, B, L) slots and documents. Halves are looked at apart and one that nobody sees is left out: with
    zig-zag and causal attention each rank is left with the same number of blocks.
    """
    found = []
    for queries in _halves(context[mine].shape[-1]):
        for keys in _halves(context[theirs].shape[-1]):
            (q_slots, q_documents), (k_slots, k_documents) = context[mine][..., queries], context[theirs][..., keys]
            if causal and bool((q_slots.amax(1) < k_slots.amin(1)).all()):
                continue
            found.append((queries, keys, visible(q_slots, k_slots, q_documents, k_documents, causal)))
    return found


def _halves(length: int) -> tuple[slice, ...]:
    return (slice(0, length // 2), slice(length // 2, length)) if length > 1 else (slice(0, length),)
