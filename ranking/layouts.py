"""How a ranker lies over ranks: the axes and how they are used, refused before any process starts where they cannot be."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import BadInput
from distributed import LayoutError, ParallelLayout
from distributed.given import given_world_size
from distributed.mesh import ModelSizes, refuse_unless_legal
from distributed.parallelize import ParallelStyle
from distributed.planner.errors import PlanError
from distributed.planner.schedules import build_schedule

RECOMPUTE = ("none", "full", "selective")


@dataclass(frozen=True)
class TrainingLayout:
    """`zero` None: 1 where dp_shard is above 1, else 0. `micro_batches` of each data rank; `schedule` and `virtual` (stages a
    rank) are those of a pipeline, `ep_over_tp` as in `ParallelStyle`, `ulysses` the ranks of cp that swap tokens for heads;
    the rest of cp is a ring."""

    axes: ParallelLayout = dataclasses.field(default_factory=ParallelLayout)
    ep: int = 1
    ep_over_tp: bool = False
    zero: int | None = None
    micro_batches: int = 1
    schedule: str = "1f1b"
    virtual: int = 1
    recompute: str = "none"
    ulysses: int = 1

    def __post_init__(self) -> None:
        for name in ("ep", "micro_batches", "virtual", "ulysses"):
            if getattr(self, name) < 1:
                raise LayoutError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.zero not in (None, 0, 1, 2, 3):
            raise LayoutError(f"zero is {self.zero}, not 0, 1, 2 or 3")
        if self.recompute not in RECOMPUTE:
            raise LayoutError(f"recompute is {self.recompute!r}, not {', '.join(RECOMPUTE)}")
        if self.zero and self.axes.dp_shard * self.axes.cp == 1:
            raise LayoutError(f"zero={self.zero} has nothing to shard over: dp_shard x cp of layout {self.axes} is 1")
        if self.ep_over_tp and (self.ep == 1 or self.axes.tp == 1):
            raise LayoutError(f"ep_over_tp lays experts over tp ranks too, but ep={self.ep} and tp={self.axes.tp}; "
                              "both must be above 1")  # fmt: skip

    @property
    def zero_stage(self) -> int:
        """The stage that is used."""
        return self.zero if self.zero is not None else int(self.axes.dp_shard > 1)

    @property
    def style(self) -> ParallelStyle:
        """As `distributed.parallelize` takes it."""
        return ParallelStyle(zero=self.zero_stage, recompute=self.recompute, ep=self.ep, ep_over_tp=self.ep_over_tp,
                             ulysses=self.ulysses)  # fmt: skip

    def __str__(self) -> str:
        usual = TrainingLayout(self.axes)
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name != "axes" and getattr(self, field.name) != getattr(usual, field.name)
        ]
        return ", ".join([str(self.axes), *changed])

    def refuse_unless_mmoe(self, experts: int) -> None:
        """`LayoutError` unless an MMoE of `experts` experts can lie so."""
        axes = self.axes
        for axis, lacks in (("cp", "no sequence"), ("pp", "no layers")):
            if getattr(axes, axis) > 1:
                raise LayoutError(
                    f"{axis}={getattr(axes, axis)}: the mmoe model has {lacks} to cut; use --model sequence"
                )
        self._refuse_unused(("schedule", "virtual", "recompute", "ulysses", "ep_over_tp"),
                            "the mmoe model has no layers and no sequence; use --model sequence")  # fmt: skip
        if axes.tp > 1 and self.ep > 1:
            raise LayoutError(f"tp={axes.tp} with ep={self.ep}: the experts of the mmoe model lie over one of the two")
        if experts % axes.tp:
            fits = max(size for size in range(1, axes.tp + 1) if experts % size == 0 and axes.world_size % size == 0)
            near = dataclasses.replace(axes, tp=fits, dp_shard=axes.dp_shard * axes.tp // fits) if axes.tp % fits == 0 else (
                ParallelLayout(dp_shard=axes.world_size // fits, tp=fits)
            )  # fmt: skip
            raise LayoutError(f"{experts} experts do not divide over tp={axes.tp}; the nearest legal layout is {near}")
        if experts % self.ep or axes.dp_shard % self.ep:
            raise LayoutError(
                f"ep={self.ep} must divide {experts} experts and dp_shard={axes.dp_shard}; "
                f"the nearest legal is ep={math.gcd(math.gcd(experts, axes.dp_shard), self.ep)}"
            )

    def refuse_unless_sequence(self, sizes: ModelSizes) -> None:
        """`LayoutError` unless a sequence ranker of `sizes` can lie so."""
        axes = self.axes
        refuse_unless_legal(axes, sizes, self.ep, self.ep_over_tp)
        if axes.cp % self.ulysses or sizes.heads // axes.tp % self.ulysses:
            raise LayoutError(
                f"ulysses={self.ulysses} must divide cp={axes.cp} and the {sizes.heads // axes.tp} heads of a tp rank; "
                f"the nearest legal is ulysses={math.gcd(math.gcd(axes.cp, sizes.heads // axes.tp), self.ulysses)}"
            )
        if axes.pp == 1:
            self._refuse_unused(("schedule", "virtual"), "there is no pipeline without pp above 1")
        else:
            if (self.schedule == "interleaved") != (self.virtual > 1):
                raise LayoutError(f"schedule={self.schedule} with virtual={self.virtual}: interleaved needs virtual of at "
                                  "least 2, and no other schedule takes it")  # fmt: skip
            # Asked first: the schedule of a huge number of stages is never built.
            if sizes.layers < axes.pp * self.virtual:
                raise self._too_few(sizes.layers, axes.pp * self.virtual)
            try:
                schedule = build_schedule(self.schedule, axes.pp, self.micro_batches, self.virtual)
            except PlanError as error:
                raise LayoutError(f"pp={axes.pp}, schedule {self.schedule}: {error}") from None
            stages = len(schedule.paths[0])
            if len(schedule.paths) > 1:
                raise LayoutError(f"{self.schedule} holds every stage twice; dualpipe-v does the same with one")
            if sizes.layers < stages:
                raise self._too_few(sizes.layers, stages)
            in_parts = any(op.kind == "B" for order in schedule.orders for slot in order for op in slot)
            if in_parts and self.recompute == "selective":
                raise LayoutError(f"recompute=selective does not go with {self.schedule}, whose backward comes in two "
                                  "parts; none and full do")  # fmt: skip

    def refuse_more_pieces_than(self, batch_size: int) -> None:
        """`LayoutError` unless a data rank can have a row of a global batch of `batch_size` for each of its micro-batches."""
        ranks = self.axes.dp_replicate * self.axes.dp_shard
        most = -(-batch_size // ranks)
        if self.micro_batches > most:
            raise LayoutError(f"micro_batches={self.micro_batches}, but {ranks} data rank(s) share a batch of {batch_size}: "
                              f"there can be at most {most}")  # fmt: skip

    def _too_few(self, layers: int, stages: int) -> LayoutError:
        return LayoutError(f"{layers} layers are fewer than the {stages} stages of schedule {self.schedule} with "
                           f"pp={self.axes.pp}")  # fmt: skip

    def _refuse_unused(self, names: Sequence[str], why: str) -> None:
        usual = TrainingLayout(self.axes)
        for name in names:
            if getattr(self, name) != getattr(usual, name):
                raise LayoutError(f"{name}={getattr(self, name)}: {why}")


def asked_layout(axes: str | None, nproc: int, **how: Any) -> TrainingLayout:
    """The layout of the command line for `nproc` ranks, or for those that torchrun started; `axes` None: all ranks along
    dp_replicate. `BadInput` in one sentence when it is none."""
    try:
        world_size = given_world_size(nproc)
        parsed = ParallelLayout.parse(f"dp_replicate={world_size}" if axes is None else axes)
        parsed.check(world_size)
        return TrainingLayout(parsed, **how)
    except LayoutError as error:
        raise BadInput(str(error)) from None
