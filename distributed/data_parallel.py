"""Replicated data parallelism: equal parameters at the start, and gradients of the global batch on every rank.

Ranks add up *sums* over rows and divide once by the global weight. Averaging each rank's mean would be wrong as soon as
the ranks hold different numbers of rows or labels.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn

from distributed.rank import Rank


def broadcast_parameters(module: nn.Module, rank: Rank) -> None:
    """Gives every rank the first rank's parameters and buffers."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            rank.copy_from_first_(tensor)


class GradientReducer:
    """All-reduces gradients in flat buckets of at most `bucket_bytes` (a larger parameter is a bucket of its own)."""

    def __init__(self, parameters: Iterable[nn.Parameter], rank: Rank, bucket_bytes: int = 4 * 2**20):
        self._rank = rank
        self._buckets: list[list[nn.Parameter]] = []
        room = 0
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            size = parameter.numel() * parameter.element_size()
            if not self._buckets or size > room or parameter.dtype != self._buckets[-1][0].dtype:
                self._buckets.append([])
                room = bucket_bytes
            self._buckets[-1].append(parameter)
            room -= size

    def reduce(self, loss_sum: torch.Tensor, weight: float) -> tuple[float, float]:
        """Turns `.grad` of each rank's loss *sum* into the gradient of the global weighted mean, equal on all ranks.

        Takes this rank's loss sum and its weight. Returns (global mean loss, global weight). A parameter that took no
        part on this rank counts as zero. With no weight anywhere the gradients are zero and the loss is 0.
        """
        totals = torch.stack([loss_sum.detach().double(), loss_sum.new_tensor(weight, dtype=torch.float64)])
        total_loss, total_weight = self._rank.sum_(totals).tolist()
        scale = 1.0 / total_weight if total_weight > 0 else 0.0
        for bucket in self._buckets:
            pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = self._rank.sum_(torch.cat([piece.reshape(-1) for piece in pieces])).mul_(scale)
            for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
                parameter.grad = piece.view_as(parameter)
        return total_loss * scale, total_weight


def clip_gradients_(parameters: Iterable[nn.Parameter], largest_norm: float | None) -> float:
    """Scales gradients so that their global L2 norm is at most `largest_norm`; returns the norm before.

    A norm that is not finite is returned and nothing is scaled: the caller skips the step.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = (
        torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])).item()
        if gradients
        else 0.0
    )
    if largest_norm is not None and math.isfinite(norm) and norm > largest_norm:
        for gradient in gradients:
            gradient.mul_(largest_norm / norm)
    return norm
