"""Attention over blocks of keys: what one block contributes, how blocks merge, and their backward. No communication.

Legend: B samples, L queries, S keys, H query heads, K key-value heads, G = H / K queries per key-value head, D channels.
Partial results are float32 at least, whatever the inputs: bfloat16 partials would lose a bit with every block.
"""

import math

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that partial results are kept in."""
    return torch.promote_types(dtype, torch.float32)


def visible(query_slots_BL: torch.Tensor, key_slots_BS: torch.Tensor, query_documents_BL: torch.Tensor,
            key_documents_BS: torch.Tensor, causal: bool) -> torch.Tensor:  # fmt: skip
    """(B, L, S): whether a query sees a key: of the same document and, when causal, not later in the sequence.

    A token whose document is written `~d` belongs to document d as a leaf: it sees the others of d, and no token but
    itself sees it. So alternatives that follow one history stand side by side without a mask of their own.
    """
    seen_BLS = _plain(query_documents_BL)[:, :, None] == _plain(key_documents_BS)[:, None, :]
    seen_BLS &= (key_documents_BS >= 0)[:, None, :] | (query_slots_BL[:, :, None] == key_slots_BS[:, None, :])
    return seen_BLS & (query_slots_BL[:, :, None] >= key_slots_BS[:, None, :]) if causal else seen_BLS


def attend(q_BLHD: torch.Tensor, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor, visible_BLS: torch.Tensor
           ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(output (B, L, H, D), log-sum-exp (B, L, H)) of one block; a query that sees nothing has output 0 and lse -inf."""
    scores_BKGLS = _scores(q_BLHD, k_BSKD, visible_BLS)
    lse_BKGL = torch.logsumexp(scores_BKGLS, dim=-1)
    weights_BKGLS = torch.exp(scores_BKGLS - _finite(lse_BKGL)[..., None])
    out_BLKGD = torch.einsum("bkgls,bskd->blkgd", weights_BKGLS, v_BSKD.to(weights_BKGLS.dtype))
    return out_BLKGD.flatten(2, 3), lse_BKGL.permute(0, 3, 1, 2).flatten(2)


def merge(out_BLHD: torch.Tensor, lse_BLH: torch.Tensor, more_BLHD: torch.Tensor, more_lse_BLH: torch.Tensor
          ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Two blocks' results as that of their union. Only differences to the larger lse are exponentiated: none overflows."""
    lse = torch.logaddexp(lse_BLH, more_lse_BLH)
    safe = _finite(lse)
    merged = out_BLHD * torch.exp(lse_BLH - safe)[..., None] + more_BLHD * torch.exp(more_lse_BLH - safe)[..., None]
    return merged, lse


def attend_backward(q_BLHD: torch.Tensor, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor, visible_BLS: torch.Tensor,
                    lse_BLH: torch.Tensor, grad_out_BLHD: torch.Tensor, delta_BLH: torch.Tensor
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """A block's part of the gradients of q, k, v. `lse` and `delta` = sum(grad_out x out) are those of all blocks together.

    Dao et al. 2022, FlashAttention, algorithm 4.
    """
    kv_heads = k_BSKD.shape[2]
    scores_BKGLS = _scores(q_BLHD, k_BSKD, visible_BLS)
    type_ = scores_BKGLS.dtype
    weights = torch.exp(scores_BKGLS - _finite(_grouped(lse_BLH, kv_heads))[..., None])
    grad_out = grad_out_BLHD.unflatten(2, (kv_heads, -1)).to(type_)
    grad_v = torch.einsum("bkgls,blkgd->bskd", weights, grad_out)
    grad_weights = torch.einsum("blkgd,bskd->bkgls", grad_out, v_BSKD.to(type_))
    grad_scores = weights * (grad_weights - _grouped(delta_BLH, kv_heads)[..., None]) / math.sqrt(q_BLHD.shape[-1])
    grad_q = torch.einsum("bkgls,bskd->blkgd", grad_scores, k_BSKD.to(type_)).flatten(2, 3)
    grad_k = torch.einsum("bkgls,blkgd->bskd", grad_scores, q_BLHD.unflatten(2, (kv_heads, -1)).to(type_))
    return grad_q, grad_k, grad_v


def _scores(q_BLHD: torch.Tensor, k_BSKD: torch.Tensor, visible_BLS: torch.Tensor) -> torch.Tensor:
    type_ = wide(q_BLHD.dtype)
    q = q_BLHD.unflatten(2, (k_BSKD.shape[2], -1)).to(type_)
    scores = torch.einsum("blkgd,bskd->bkgls", q, k_BSKD.to(type_)) / math.sqrt(q_BLHD.shape[-1])
    return scores.masked_fill(~visible_BLS[:, None, None], -math.inf)


def _plain(documents: torch.Tensor) -> torch.Tensor:
    return torch.where(documents < 0, ~documents, documents)


def _grouped(per_head_BLH: torch.Tensor, kv_heads: int) -> torch.Tensor:
    return per_head_BLH.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1)


def _finite(lse: torch.Tensor) -> torch.Tensor:
    # A query that sees nothing: exp(-inf - 0) is the 0 that it should be, exp(-inf + inf) is not a number.
    return torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
