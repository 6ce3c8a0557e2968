"""A parallelized stack cut into pipeline stages: which part a rank keeps, and its gradients under any schedule."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed.errors import LayoutError
from distributed.groups import Mesh
from distributed.models.transformer import Stack, Tokens, through
from distributed.parallelize import Parallelized, ParallelStyle
from distributed.pipeline import (
    linked,
    needs_links,
    run_forwards,
    run_pipeline,
    stage_layers,
    stages_of,
    sum_tied_gradients_,
)
from distributed.planner.schedules import Op, build_schedule
from distributed.sharded_data import ShardedData


class _Stage(nn.Module):
    """Consecutive blocks, after `embed` in the first stage; `loss_sum` follows the last one."""

    def __init__(self, model: Stack, run: range, first: bool, last: bool):
        super().__init__()
        self.blocks = nn.ModuleList(model.blocks[number] for number in run)
        names = {*(model.first_parts if first else ()), *(model.last_parts if last else ())}
        self.parts = nn.ModuleDict({name: getattr(model, name) for name in sorted(names)})
        # Not a child: the model is the first stage's and the last stage's way in and out, not a part of either.
        self._way = (model,)
        self._first = first

    def forward(self, hidden_BLD: torch.Tensor | None, batch: "_Batch"
                ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        if self._first:
            hidden_BLD = self._way[0].embed(batch.tokens, batch.key)
        assert hidden_BLD is not None
        hidden_BLD, own = through(self.blocks, hidden_BLD, batch.tokens, batch.key)
        return (hidden_BLD, own / batch.divisor) if own.requires_grad else hidden_BLD


class _Batch(NamedTuple):
    tokens: Any
    key: int
    divisor: float


class PipelinedTransformer:
    """Keeps this rank's stages of a model that every rank built and parallelized alike; parameters keep global names.

    `costs` of the layers in any unit decide the cut (equal when left out), those of the two ends beside them.
    Gradients of blocks are summed once a step or, under ZeRO 2 and 3, after each micro-batch's backward; those of the two
    ends, which ZeRO 3 gathers for the whole step, once a step. `links`: messages go over a group for each direction, as
    they must over NCCL.
    """

    def __init__(self, parallel: Parallelized, mesh: Mesh, style: ParallelStyle, schedule: str = "1f1b", virtual: int = 1,
                 costs: Sequence[float] | None = None, ends: tuple[float, float] = (0.0, 0.0),
                 links: bool = False):  # fmt: skip
        self.parallel, self._mesh, self._group = parallel, mesh, mesh.group("pp")
        if links or needs_links(self._group):
            self._group = linked(mesh)
        self._name, self._virtual = schedule, virtual
        self._width = parallel.model.sizes.width
        self._shares = mesh.group("tp").size if style.sequence_parallel else 1
        model = parallel.model
        planned = build_schedule(schedule, self._group.size, self._group.size * 2, virtual)
        if style.recompute == "selective" and any(
            op.kind == "B" for order in planned.orders for slot in order for op in slot
        ):
            # What PyTorch's selective recompute keeps it lets go of in the first of the two parts.
            raise LayoutError(f"recompute=selective does not go with {schedule}, whose backward comes in two parts; "
                              "none and full do")  # fmt: skip
        path = planned.paths[0]
        runs = stage_layers(costs or [1.0] * len(model.blocks), len(path), *ends)
        last = len(path) - 1
        self.stages = {
            number: _Stage(model, runs[number], number == 0, number == last)
            for number, holder in enumerate(path)
            if holder == self._group.index
        }
        tied = [name for name in model.first_parts if name in model.last_parts]
        shared = [f"{part}.{name}" for part in tied for name, _ in getattr(model, part).named_parameters()]
        self._holders = sorted({path[0], path[-1]})
        self._drop_what_others_hold(model, [number for stage in self.stages for number in runs[stage]], path)
        self._units = {stage: [f"blocks.{number}" for number in runs[stage]] for stage in self.stages}
        units = {name: model.get_submodule(name) for names in self._units.values() for name in names}
        self._shared: list[str] = []
        if len(self._holders) > 1 and self._group.index in self._holders:
            # On its own: beside other parameters it would lie elsewhere in the first stage's flat buffer than in the last's,
            # be summed over data ranks in another order, and the copies would drift apart by the last bit.
            units.update({name: getattr(model, name) for name in tied})
            self._shared = tied
        held = {name for name, _ in model.named_parameters()}
        placements = {name: place for name, place in parallel.placements.items() if name in held}
        for name in shared:
            if name in placements and self._holders[0] != self._group.index:
                # A tied copy is counted by its first holder alone.
                placements[name] = placements[name].not_counted()
        self.data = ShardedData(model, units, mesh, placements, style.zero, compute=style.compute, ends=self._shared,
                                runs=list(self._units.values()))  # fmt: skip

    def gradients(self, micro_batches: Sequence[Tokens], key: int) -> tuple[float, float]:
        """As `distributed.step.gradients`; every rank of the pipeline is given the same micro-batches."""
        parts = [self.parallel.part(batch) for batch in micro_batches]
        device = self._mesh.rank.device
        count = torch.tensor(float(sum(part.weight for part in parts)), dtype=torch.float64, device=device)
        tokens = self._mesh.data.all_reduce_(count).item()
        divisor = tokens if tokens > 0 else 1.0
        schedule = build_schedule(self._name, self._group.size, len(parts), self._virtual)
        assert stages_of(schedule, self._group.index) == sorted(self.stages)
        self.data.begin(last=False, by_hand=True)
        self.data.gather_ends()
        result = run_pipeline(
            schedule, self.stages, [_Batch(part, key, divisor) for part in parts],
            lambda hidden, batch: self.parallel.model.loss_sum(hidden, batch.tokens) / divisor, self._group, device,
            lambda micro: self._handed_on(parts[micro]), self._before, self._after,
        )  # fmt: skip
        self.data.finish()
        self._sum_tied()
        loss = torch.tensor(result.loss_sum, dtype=torch.float64, device=device)
        return self._mesh.data.all_reduce_(loss).item(), tokens

    def outputs(self, micro_batches: Sequence[Tokens], end: Callable[[torch.Tensor, Any], torch.Tensor]
                ) -> list[torch.Tensor]:  # fmt: skip
        """`end(blocks' output, micro-batch)` of each micro-batch, on the ranks of the last stage; no gradients."""
        parts = [self.parallel.part(batch) for batch in micro_batches]
        schedule = build_schedule(self._name, self._group.size, len(parts), self._virtual)
        self.data.gather_ends()
        return run_forwards(
            schedule, self.stages, [_Batch(part, 0, 1.0) for part in parts],
            lambda hidden, batch: end(hidden, batch.tokens), self._group, self._mesh.rank.device,
        )  # fmt: skip

    def _handed_on(self, part: Tokens) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of hidden states between stages: no message needs to say them."""
        samples, length = part.ids.shape[:2]
        blocks = next(iter(self.stages.values())).blocks
        return (samples, length // self._shares, self._width), next(blocks.parameters()).dtype

    def _before(self, op: Op) -> None:
        if op.kind == "W":
            # The weights' part may run a recomputed forward, which no hook of the blocks announces.
            self.data.gather(self._units[op.stage])

    def _after(self, op: Op) -> None:
        if op.kind in "DW":
            self.data.collect(self._units[op.stage])
        if op.kind != "F":
            self.data.free(self._units[op.stage])

    def _sum_tied(self) -> None:
        """Both holders' gradients, or their shards of them, which lie alike in both."""
        parameters = [(f"{part}.{number}", parameter) for part in self._shared
                      for number, parameter in enumerate(self.data.parameters_of(part))]  # fmt: skip
        sum_tied_gradients_({name: (self._holders, parameter) for name, parameter in parameters}, self._group)

    def _drop_what_others_hold(self, model: Stack, mine: Sequence[int], path: Sequence[int]) -> None:
        for number in range(len(model.blocks)):
            if number not in mine:
                model.blocks[number] = nn.Identity()
        kept = {
            *(model.first_parts if self._group.index == path[0] else ()),
            *(model.last_parts if self._group.index == path[-1] else ()),
        }
        for name in {*model.first_parts, *model.last_parts} - kept:
            setattr(model, name, nn.Identity())
