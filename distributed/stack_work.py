"""A stack of blocks as the training loop sees it: rows become sequences, under any axes, with or without a pipeline."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from distributed.experts import StepLoad, balance_, take_load
from distributed.groups import Mesh
from distributed.models.transformer import Stack, Tokens
from distributed.parallelize import Cut, ParallelStyle, parallelize
from distributed.pipelined import PipelinedTransformer
from distributed.sampler import shard
from distributed.sharded_data import ShardedData
from distributed.step import gradients
from distributed.whole_state import whole_state
from distributed.work import data_rank

Batch = Callable[[np.ndarray, int], Tokens]
"""(row indices (B,), place of the first in the global batch) -> their whole sequences, B may be 0."""


class StackWork:
    """Puts `model`, which every rank built alike, on the mesh.

    `batch_of` and `validation_of` make sequences of `sequence` tokens from training and validation rows; `figures(hidden,
    tokens)` is what `Validation` returns. Each data rank cuts its rows into `micro_batches`, which may be uneven or empty.
    `schedule` and `virtual` (stages a rank) are those of a pipeline. `LayoutError` when the layout does not fit.
    """

    def __init__(self, model: Stack, mesh: Mesh, style: ParallelStyle, sequence: int, batch_of: Batch,
                 validation_of: Batch, figures: Callable[[torch.Tensor, Any], torch.Tensor], *,
                 cut_ends: Callable[[Stack, Cut], None] | None = None, micro_batches: int = 1, schedule: str = "1f1b",
                 virtual: int = 1, validation_batch: int = 1024):  # fmt: skip
        self.module, self.mesh, self._sizes = model, mesh, model.sizes
        self._batch_of, self._validation_of, self._figures = batch_of, validation_of, figures
        self._micro_batches, self._validation_batch = micro_batches, validation_batch
        self._names = list(model.state_dict())
        self._parallel = parallelize(model, mesh, style, sequence, cut_ends)
        self._piped: PipelinedTransformer | None = None
        if mesh.layout.pp > 1:
            self._piped = PipelinedTransformer(self._parallel, mesh, style, schedule, virtual)
            self.data = self._piped.data
        else:
            units = {f"blocks.{number}": block for number, block in enumerate(model.blocks)}
            self.data = ShardedData(model, units, mesh, self._parallel.placements, style.zero, compute=style.compute)
        self._rank = data_rank(mesh)
        self._in_parts = style.sequence_parallel and mesh.layout.tp > 1
        self._load: dict[str, StepLoad] = {}
        self._routed = {name: torch.zeros_like(load.routed_E) for name, load in take_load(model).items()}

    def gradients(self, rows_B: np.ndarray, key: int) -> tuple[float, float]:
        """Weights are counted before the first forward, so that no split weighs rows differently."""
        batches = self._batches(rows_B, self._batch_of)
        if self._piped is not None:
            loss, weight = self._piped.gradients(batches, key)
        else:
            loss, weight = gradients(self._parallel, self.data, self.mesh, batches, key)
        self._load = take_load(self.module)
        for name, (routed_E, _) in self._load.items():
            self._routed[name] += routed_E
        return loss, weight

    def after_step(self) -> None:
        """Routers that balance by a bias move it."""
        balance_(self.module, self._load, *self._parallel.tokens_over)

    def figures(self, rows: int) -> torch.Tensor:
        """In batches of `validation_batch` rows, cut like training's."""
        total: torch.Tensor | None = None
        for start in range(0, rows, self._validation_batch):
            batches = self._batches(np.arange(start, min(rows, start + self._validation_batch)), self._validation_of)
            for part_K2 in self._outputs(batches):
                total = part_K2.double() if total is None else total + part_K2.double()
        take_load(self.module)
        return self._everywhere(total)

    def state(self) -> dict[str, torch.Tensor]:
        """From the shards of data ranks, the slices of tp and ep, and the stages."""
        return whole_state(self.module, self.data, self._parallel.placements, self.mesh, self._names)

    def routed(self) -> dict[str, list[int]]:
        """Counted over the ranks that hold other tokens, and over the stages."""
        sizes = self._sizes
        if not sizes.experts:
            return {}
        totals = torch.zeros(sizes.layers, sizes.experts, dtype=torch.int64, device=self.mesh.rank.device)
        for name, counts_E in self._routed.items():
            totals[int(name.split(".")[1])] = counts_E
        self.mesh.group("pp").all_reduce_(self.mesh.data.all_reduce_(totals))
        if self._in_parts:
            self.mesh.group("tp").all_reduce_(totals)
        return {f"blocks.{number}": row for number, row in enumerate(totals.tolist())}

    def taken(self) -> tuple[list[int] | None, int]:
        """Over the micro-batches of the last `gradients`."""
        if not self._load:
            return None, 0
        routed_E, dropped_E = (torch.stack(counts).sum(0) for counts in zip(*self._load.values()))
        return (routed_E - dropped_E).tolist(), int(dropped_E.sum())

    def _batches(self, rows_B: np.ndarray, batch_of: Batch) -> list[Tokens]:
        mine_B = shard(rows_B, self._rank)
        first = sum(len(part) for part in np.array_split(rows_B, self._rank.world_size)[: self._rank.index])
        batches = []
        for piece_B in np.array_split(mine_B, self._micro_batches):
            batches.append(batch_of(piece_B, first))
            first += len(piece_B)
        return batches

    def _outputs(self, batches: list[Tokens]) -> list[torch.Tensor]:
        if self._piped is not None:
            return self._piped.outputs(batches, self._figures)
        with torch.no_grad():
            return [self.module(self._parallel.part(batch), 0, self._figures) for batch in batches]

    def _everywhere(self, total: torch.Tensor | None) -> torch.Tensor:
        """The last stage's sums, over the data ranks, on every rank."""
        group = self.mesh.group("pp")
        holders = group.all_gather(torch.tensor([0 if total is None else len(total)], device=self.mesh.rank.device))
        if total is None:
            total = torch.zeros(int(holders.max()), 2, dtype=torch.float64, device=self.mesh.rank.device)
        return group.all_reduce_(self.mesh.data.all_reduce_(total))
