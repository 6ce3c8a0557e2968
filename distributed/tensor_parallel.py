"""Tensor and sequence parallelism: what is sent where a split region begins and ends, and the modules inside it.

A layer has two regions, attention and MLP. Without sequence parallelism a region begins with `Enter` (identity; the backward
sums over tp) and ends with a row-split linear (sums over tp; the backward is the identity): two collectives forward and two
backward a layer. With it, norms, dropout and residual run on 1/tp of the tokens, `Enter` gathers tokens and the row-split
linear scatters the sum: as many collectives of the same bytes.

Where things run: norm before `Enter`, on the residual's tokens; the bias of a column-split linear is split like its output;
that of a row-split linear is added once, after the sum, on the residual's tokens; dropout after it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from distributed.groups import Group
from distributed.models.transformer import NO_TARGET

_SEQUENCE_DIM = 1


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.all_reduce_(grad.clone(memory_format=torch.contiguous_format)), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Group) -> torch.Tensor:
        return group.all_reduce_(tensor.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _gather_tokens(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _scatter_tokens(grad, ctx.group), None


class _ScatterTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _scatter_tokens(tensor, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _gather_tokens(grad, ctx.group), None


def _gather_tokens(tensor_BLD: torch.Tensor, group: Group) -> torch.Tensor:
    gathered_LBD = group.all_gather(tensor_BLD.transpose(0, _SEQUENCE_DIM))
    # One copy in the samples' order; else each product that reads them makes its own and keeps it for the backward.
    return gathered_LBD.transpose(0, _SEQUENCE_DIM).contiguous()


def _scatter_tokens(tensor_BLD: torch.Tensor, group: Group) -> torch.Tensor:
    return group.reduce_scatter(tensor_BLD.transpose(0, _SEQUENCE_DIM)).transpose(0, _SEQUENCE_DIM)


class Enter(nn.Module):
    """Where a split region begins. `sequence`: what comes in holds 1/tp of the tokens."""

    def __init__(self, group: Group, sequence: bool):
        super().__init__()
        self.group, self.sequence = group, sequence

    def forward(self, hidden_BLD: torch.Tensor) -> torch.Tensor:
        """All tokens on every rank."""
        return (_GatherTokens if self.sequence else _Copy).apply(hidden_BLD, self.group)


def leave(partial_BLD: torch.Tensor, group: Group, sequence: bool) -> torch.Tensor:
    """Where a split region ends: the ranks' partial results summed, all tokens or (sequence) this rank's part of them."""
    return (_ScatterTokens if sequence else _Sum).apply(partial_BLD, group)


class Total(nn.Module):
    """A loss of which each rank has its own tokens' part: the sum on all; the backward goes to each one's part."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        return _Sum.apply(loss, self.group)


class RowLinear(nn.Module):
    """A linear split along its inputs, at the end of a region. The bias is whole and added once, after the sum."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, group: Group, sequence: bool):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.group, self.sequence = group, sequence

    def forward(self, hidden_BLF: torch.Tensor) -> torch.Tensor:
        """(B, L, D) or, with sequence parallelism, (B, L / tp, D)."""
        out_BLD = leave(F.linear(hidden_BLF, self.weight), self.group, self.sequence)
        return out_BLD if self.bias is None else out_BLD + self.bias


class VocabularyEmbedding(nn.Module):
    """An embedding split along the vocabulary: a rank gives its own entries' vectors and zeros for the others'."""

    def __init__(self, weight: torch.Tensor, group: Group, sequence: bool):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.group, self.sequence = group, sequence

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """(B, L, D) or, with sequence parallelism, (B, L / tp, D)."""
        local_BL, mine_BL = _local(ids_BL, self.weight.shape[0], self.group)
        return leave(F.embedding(local_BL, self.weight) * mine_BL[..., None], self.group, self.sequence)


class VocabularyBags(VocabularyEmbedding):
    """The same for tokens of several ids each, whose vectors are added up before anything is sent."""

    def forward(self, ids_BLX: torch.Tensor) -> torch.Tensor:
        """(B, L, D) or, with sequence parallelism, (B, L / tp, D)."""
        local_BLX, mine_BLX = _local(ids_BLX, self.weight.shape[0], self.group)
        vectors_BLXD = F.embedding(local_BLX, self.weight) * mine_BLX[..., None]
        return leave(vectors_BLXD.sum(2), self.group, self.sequence)


class GatherAlike(nn.Module):
    """All tokens on every rank where what follows is computed by each rank alike: the backward keeps the own tokens' part.

    (`Enter` adds the ranks' gradients up, which is right where each computes a part.)
    """

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, hidden_BLD: torch.Tensor) -> torch.Tensor:
        """(B, L / tp, D) to (B, L, D)."""
        return _GatherAlike.apply(hidden_BLD, self.group)


class _GatherAlike(_GatherTokens):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.chunk(ctx.group.size, dim=_SEQUENCE_DIM)[ctx.group.index].contiguous(), None


class VocabularyCrossEntropySum(nn.Module):
    """Cross-entropy over logits split along the vocabulary; only (B, L) numbers are exchanged, never the logits."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, logits_BLV: torch.Tensor, targets_BL: torch.Tensor) -> torch.Tensor:
        """The sum over tokens that have a target, equal on all ranks of the group."""
        return _VocabularyCrossEntropy.apply(logits_BLV, targets_BL, self.group)


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BLV: torch.Tensor, targets_BL: torch.Tensor, group: Group) -> torch.Tensor:
        wide = logits_BLV.to(torch.promote_types(logits_BLV.dtype, torch.float32))
        largest_BL = group.all_reduce_(wide.amax(-1), "max")
        exponentials = (wide - largest_BL[..., None]).exp_()
        local_BL, mine_BL = _local(targets_BL, wide.shape[-1], group)
        at_target_BL = wide.gather(-1, local_BL[..., None])[..., 0] * mine_BL
        sums_BL, at_target_BL = group.all_reduce_(torch.stack([exponentials.sum(-1), at_target_BL])).unbind(0)
        kept_BL = targets_BL != NO_TARGET
        ctx.save_for_backward(exponentials.div_(sums_BL[..., None]), local_BL, mine_BL, kept_BL)
        ctx.logits_type = logits_BLV.dtype
        return ((sums_BL.log() + largest_BL - at_target_BL) * kept_BL).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        probabilities, local_BL, mine_BL, kept_BL = ctx.saved_tensors
        weights_BL = kept_BL * grad
        # Logits are the largest tensors there are: one new one, and no one-hot beside it.
        grad_BLV = probabilities * weights_BL[..., None]
        grad_BLV.scatter_add_(-1, local_BL[..., None], -(weights_BL * mine_BL)[..., None])
        return grad_BLV.to(ctx.logits_type), None, None


def _local(ids_BL: torch.Tensor, size: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """(row in this rank's `size` entries, 0 where it is another's; whether it is this rank's)."""
    local_BL = ids_BL - group.index * size
    mine_BL = (local_BL >= 0) & (local_BL < size)
    return torch.where(mine_BL, local_BL, 0), mine_BL
