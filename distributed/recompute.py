"""Recompute: what a block keeps for its backward. Full keeps its input alone, selective keeps the results of matmuls."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from distributed.models.transformer import Block

MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
"""Dear to compute, so that selective recompute keeps their results; norms, activations and dropout come again for little."""


def recompute_blocks(blocks: Sequence[Block], how: str, kept: Sequence[Any] = MATMULS) -> None:
    """Sets how `blocks` run: "none", "full", or "selective" by operator, keeping what the operators `kept` gave.

    By layer: call it with some of the blocks. Collectives inside a block run again in its backward, on all ranks alike.
    """
    runs: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
        "full": partial(checkpoint, use_reentrant=False, preserve_rng_state=False),
        "selective": partial(
            checkpoint, use_reentrant=False, preserve_rng_state=False,
            context_fn=partial(create_selective_checkpoint_contexts, partial(_policy, frozenset(kept))),
        ),
    }  # fmt: skip
    if how not in ("none", *runs):
        raise ValueError(f"recompute is {how!r}, not none, full or selective")
    for block in blocks:
        if how != "none":
            block.run = runs[how]


def _policy(kept: frozenset[Any], ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE
