"""Sharded checkpoints by global name: saved under one layout, loaded under any other, optimizer state included."""

from distributed.checkpoint.store import load_checkpoint, save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
