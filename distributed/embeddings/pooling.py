"""Bags of ids to one vector each, after the vectors have come home: no rank sees a part of a bag, so a mean is a mean."""

import torch


def pooled(vectors_ND: torch.Tensor, bags_N: torch.Tensor, bags: int, mode: str = "sum") -> torch.Tensor:
    """(bags, D) sums or means of the vectors whose `bags_N` is the bag's number; an empty bag is zero."""
    if mode not in ("sum", "mean"):
        raise ValueError(f"pooling is {mode!r}, not sum or mean")
    sums_BD = vectors_ND.new_zeros(bags, vectors_ND.shape[1]).index_add(0, bags_N, vectors_ND)
    if mode == "sum":
        return sums_BD
    return sums_BD / torch.bincount(bags_N, minlength=bags).clamp(min=1).unsqueeze(1)
