"""One device, a causal transformer of the behaviour-sequence kind in bf16: tokens/s and MFU, compiled or not, by attention.

The same code runs on a CPU, tiny, so that it is known to run where no GPU is.
"""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.beside_torch.workload import Workload
from distributed.models.attention import attend, visible
from distributed.models.transformer import Tokens
from distributed.planner.machines import load_cluster

GPU = Workload(
    layers=12, width=768, heads=12, kv_heads=12, feed_forward=2048, vocabulary=32768, length=1024, samples=16
)
TINY = Workload(layers=1, width=32, heads=2, kv_heads=2, feed_forward=32, vocabulary=64, length=16, samples=2)


@dataclass(frozen=True)
class Speed:
    """Of one way to run: tokens a second, and the share of the device's bf16 peak that the model's own products make."""

    attention: str
    compiled: bool
    tokens_per_s: float
    mfu: float | None


class EagerAttention(nn.Module):
    """Scores, softmax and sum as operators of their own: what a fused kernel is measured against."""

    def forward(self, q_BLHD: torch.Tensor, k_BLKD: torch.Tensor, v_BLKD: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """(B, L, H, D)."""
        seen_BLL = visible(tokens.slots, tokens.slots, tokens.documents, tokens.documents, True)
        return attend(q_BLHD, k_BLKD, v_BLKD, seen_BLL)[0].to(q_BLHD.dtype)


def speeds(device: str, work: Workload, steps: int, ways: tuple[bool, ...] = (False, True)) -> list[Speed]:
    """Fused and eager attention, each not `compiled` and compiled. Forward, backward and AdamW under bf16 autocast."""
    return [_speed(torch.device(device), work, steps, attention, compiled)
            for attention in ("fused", "eager") for compiled in ways]  # fmt: skip


def _speed(device: torch.device, work: Workload, steps: int, attention: str, compiled: bool) -> Speed:
    model = work.model().to(device)
    if attention == "eager":
        for block in model.blocks:
            block.attention.core = EagerAttention()
    ids_BL = work.tokens().ids.to(device)
    tokens = Tokens.packed(ids_BL, torch.zeros_like(ids_BL))
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.learning_rate, fused=True)
    run = torch.compile(model) if compiled else model
    seconds = []
    for number in range(steps + 3):
        _wait(device)
        begun = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = run(tokens, 0) / tokens.weight
        loss.backward()
        optimizer.step()
        _wait(device)
        if number >= 3:
            seconds.append(time.perf_counter() - begun)
    per_s = tokens.ids.numel() / statistics.median(seconds)
    peak = _peak_flops(device)
    return Speed(attention, compiled, per_s, None if peak is None else per_s * _flops_per_token(work, model) / peak)


def _flops_per_token(work: Workload, model: nn.Module) -> float:
    """Forward and backward: 6 a parameter that multiplies, and 12 L D / 2 a layer for causal scores and their sum."""
    embedding = work.vocabulary * work.width
    multiplying = sum(parameter.numel() for parameter in model.parameters()) - embedding
    return 6.0 * multiplying + 6.0 * work.layers * work.length * work.width


def _peak_flops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower()
    known = next((word for word in ("h200", "h100", "a100") if word in name), None)
    # An H200 multiplies as an H100 does.
    return None if known is None else load_cluster("h100" if known == "h200" else known, 1).tflops["bf16"] * 1e12


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
