"""One layout's estimate: stages, memory, time and where the time goes."""

import dataclasses
from dataclasses import dataclass, field

from distributed.buckets import BUCKET_BYTES
from distributed.planner import running
from distributed.planner.collectives import collective_s, spread
from distributed.planner.crowded import simulate_crowded
from distributed.planner.layout import Layout
from distributed.planner.machines import Cluster
from distributed.planner.memory import Precision, StageMemory, stage_memory, stage_parameters
from distributed.planner.models import Model
from distributed.planner.schedules import Schedule, build_schedule
from distributed.planner.simulate import StageCost, Timeline, closed_bubble_s, simulate
from distributed.planner.timing import (
    PassTimes,
    entry_times,
    head_times,
    layer_times,
    optimizer_s,
    outside_layers_times,
)


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step by where they go (`seconds`), memory by stage, and what follows from both."""

    layout: Layout
    micro_batches: int
    stage_layers: tuple[int, ...]
    stage_times: tuple[PassTimes, ...]
    memory: tuple[StageMemory, ...]
    seconds: dict[str, float]
    samples: int
    model_flops: float
    executed_flops: float
    peak_flops: float
    usable_bytes: float
    bubble: float = field(default=0.0)

    @property
    def step_s(self) -> float:
        """One optimizer step."""
        return sum(self.seconds.values())

    @property
    def peak_memory(self) -> StageMemory:
        """The fullest stage."""
        return max(self.memory, key=lambda stage: stage.total)

    @property
    def fits(self) -> bool:
        """Whether the fullest stage fits."""
        return self.peak_memory.total <= self.usable_bytes

    @property
    def mfu(self) -> float:
        """Model FLOPs over what all accelerators could do in the time."""
        return self.model_flops / (self.step_s * self.peak_flops)

    @property
    def hfu(self) -> float:
        """Executed FLOPs, recomputation included, over the same."""
        return self.executed_flops / (self.step_s * self.peak_flops)

    @property
    def samples_per_s(self) -> float:
        """Samples of the global batch a second."""
        return self.samples / self.step_s

    @property
    def bottleneck(self) -> str:
        """The largest consumer of time besides useful computation, with its share."""
        name, seconds = max(((n, s) for n, s in self.seconds.items() if n != "compute"), key=lambda pair: pair[1])
        share = seconds / self.step_s
        return f"{name} {share:.0%}" if share > 0.05 else "compute"


class Estimator:
    """Estimates layouts of one model on one cluster at one global batch; times of equal layers are kept.

    The platform's own models compute in fp32 unless `dtype` says otherwise; on a calibrated cluster they are timed by what
    was measured there (`running`).
    """

    def __init__(self, model: Model, cluster: Cluster, global_batch: int, precision: Precision | None = None,
                 dtype: str | None = None):  # fmt: skip
        self.model, self.cluster, self.global_batch = model, cluster, global_batch
        self.dtype = dtype or ("fp32" if model.platform else None)
        self.precision = precision or Precision.of(self.dtype or cluster.training_dtype)
        self.measured = model.platform and cluster.kernels is not None
        self._layers: dict[tuple, tuple[PassTimes, PassTimes, PassTimes, PassTimes]] = {}
        self._flops: dict[str, float] = {}

    def pieces(self, layout: Layout) -> tuple[PassTimes, PassTimes, PassTimes, PassTimes]:
        """Times of (a dense layer, a layer with experts, the entry, the head) of one micro-batch."""
        key = (layout.tp, layout.cp, layout.ep, layout.micro_batch, layout.recompute, layout.sequence_parallel,
               layout.stride("dp") if layout.ep > 1 else 0, layout.stride("cp"), layout.world_size, layout.ulysses,
               layout.zigzag, layout.pp > 1, layout.schedule if self.measured else "")  # fmt: skip
        found = self._layers.get(key)
        if found is None:
            found = self._measured_pieces(layout) if self.measured else None
        if found is None:
            model, cluster = self.model, self.cluster
            dense = layer_times(model, layout, cluster, False, self.dtype) if model.layers else PassTimes()
            moe = layer_times(model, layout, cluster, True, self.dtype) if model.experts else PassTimes()
            found = dense, moe, entry_times(model, layout, cluster), head_times(model, layout, cluster)
        self._layers[key] = found
        return found

    def _measured_pieces(self, layout: Layout) -> tuple[PassTimes, PassTimes, PassTimes, PassTimes]:
        width = self.precision.activation
        dense, moe = (
            running.layer_times(self.model, layout, self.cluster, width, sparse, self.dtype) for sparse in (False, True)
        )
        entry, head = running.end_times(self.model, layout, self.cluster, width, self.dtype)
        beside = outside_layers_times(self.model, layout, self.cluster, self.dtype)
        return dense, moe, entry + beside * (self.cluster.crowd if layout.pp == 1 else 1.0), head

    def mean_layer(self, layout: Layout) -> PassTimes:
        """A layer of average cost."""
        dense, moe, _, _ = self.pieces(layout)
        share = self.model.moe_layers / self.model.layers if self.model.layers else 0.0
        return dense * (1 - share) + moe * share if share else dense

    def split_layers(self, layout: Layout) -> tuple[int, ...]:
        """Layers of each rank's stages, the costs of the two ends counted: the least largest stage.

        With equal layers between two ends the optimum is found directly; `balance.partition` solves the general case.
        """
        p, layers = layout.pp, self.model.layers
        if p == 1:
            return (layers,)
        _, _, entry, head = self.pieces(layout)
        one = self.mean_layer(layout).total
        if layout.schedule in ("zb-v", "dualpipe-v"):
            return _two_ends(layers, p, one, entry.total + head.total, 0.0)
        return _two_ends(layers, p, one, entry.total, head.total)

    def estimate(self, layout: Layout) -> Estimate:
        """The whole estimate of a legal layout."""
        model, p = self.model, layout.pp
        m = self.global_batch // (layout.dp * layout.micro_batch)
        counts = self.split_layers(layout)
        stages = self.stage_times(layout, counts)
        memory = tuple(
            stage_memory(model, layout, counts[i], i, m, self.precision)
            if i in (0, 1, p - 1) or counts[i] != counts[i - 1] else None
            for i in range(p)
        )  # fmt: skip
        # Stages between equal neighbours hold no more than the one before: in flight falls along the pipeline.
        filled: list[StageMemory] = []
        for stage in memory:
            filled.append(stage if stage is not None else filled[-1])
        seconds, bubble = self._seconds(layout, stages, m, counts)
        if layout.recompute not in self._flops:
            self._flops[layout.recompute] = model.training_flops(self.global_batch, layout.recompute)
        if "none" not in self._flops:
            self._flops["none"] = model.training_flops(self.global_batch)
        dtype = self.dtype if self.measured and self.dtype else self.cluster.training_dtype
        peak = layout.world_size * self.cluster.peak(dtype)
        return Estimate(layout, m, counts, stages, tuple(filled), seconds, self.global_batch, self._flops["none"],
                        self._flops[layout.recompute], peak, self.cluster.usable_bytes, bubble)  # fmt: skip

    def stage_times(self, layout: Layout, counts: tuple[int, ...]) -> tuple[PassTimes, ...]:
        """Each rank's times for one micro-batch."""
        _, _, entry, head = self.pieces(layout)
        one, p = self.mean_layer(layout), layout.pp
        if p == 1:
            return (one * counts[0] + entry + head,)
        v_shaped = layout.schedule in ("zb-v", "dualpipe-v")
        by_count = {count: one * count for count in set(counts)}
        stages = [by_count[count] for count in counts]
        stages[0] = stages[0] + entry
        stages[0 if v_shaped else -1] = stages[0 if v_shaped else -1] + head
        return tuple(stages)

    def fits(self, layout: Layout) -> bool:
        """Whether a legal layout's fullest stage fits."""
        return self.estimate(layout).fits

    def simulated(self, estimate: Estimate, most_operations: int) -> tuple[Estimate, Timeline | None]:
        """The estimate with its bubble replaced by a simulation of its unequal stages, operation by operation.

        Unchanged when there is one stage; at more than `most_operations` the bubble is that of fewer micro-batches, which
        fill and drain the pipeline alike.
        """
        layout, m = estimate.layout, estimate.micro_batches
        if layout.pp == 1:
            return estimate, None
        most = max(2 * layout.pp, most_operations // (3 * layout.pp * layout.chunks))
        shown = m if m <= most else most // (2 * layout.pp) * 2 * layout.pp
        schedule = build_schedule(layout.schedule, layout.pp, shown, layout.virtual)
        costs = self.chunk_costs(layout, estimate.stage_layers, schedule)
        if self.measured:
            cores = (self.cluster.cores or layout.world_size) * layout.pp / layout.world_size / self.cluster.threads
            timeline = simulate_crowded(schedule, costs, cores, self.p2p_s(layout))
        else:
            timeline = simulate(schedule, costs, 0.0)
        work = shown * self._stage_s(estimate.stage_times)
        bubble = max(0.0, max(timeline.spans_s) - work)
        total = estimate.micro_batches / shown * work + bubble
        return dataclasses.replace(estimate, seconds={**estimate.seconds, "pipeline bubble": bubble},
                                   bubble=bubble / total), timeline  # fmt: skip

    def chunk_costs(self, layout: Layout, counts: tuple[int, ...], schedule: Schedule) -> list[StageCost]:
        """Times of every stage of the model: its share of its rank's layers, and the ends where they are."""
        _, _, entry, head = self.pieces(layout)
        one, path, costs = self.mean_layer(layout), schedule.paths[0], []
        for stage, rank in enumerate(path):
            times = one * (counts[rank] / layout.chunks)
            if stage == 0:
                times = times + entry
            if stage == len(path) - 1:
                times = times + head
            costs.append(StageCost(times.forward, times.backward_input, times.backward_weight))
        return costs

    def p2p_s(self, layout: Layout) -> float:
        """Seconds of handing one micro-batch's activations to the next stage."""
        if layout.pp == 1:
            return 0.0
        tokens = layout.micro_batch * self.model.sequence / layout.cp
        split = layout.tp if layout.sequence_parallel or not self.measured else 1
        size = self.precision.activation * tokens * self.model.hidden / split
        return collective_s("p2p", size, spread(self.cluster, layout.pp, layout.stride("pp")), self.cluster)

    def _seconds(
        self, layout: Layout, stages: tuple[PassTimes, ...], m: int, counts: tuple[int, ...]
    ) -> tuple[dict[str, float], float]:
        p = layout.pp
        slowest = max(stages, key=lambda stage: stage.total)
        work = m * self._stage_s(stages)
        mean = sum(stage.total for stage in stages) / p
        bubble = _bubble_s(layout, slowest) if p > 1 else 0.0
        # The pipeline's fill passes through every stage, not only through the slowest.
        bubble *= mean / slowest.total if slowest.total else 1.0
        handed = 2 * m * layout.chunks * self.p2p_s(layout) * (1 - self.cluster.efficiency.pp_overlap) if p > 1 else 0.0
        # The simulation hands over by itself; messages come while other micro-batches are computed.
        handed = 0.0 if self.measured else handed
        dense, expert = stage_parameters(self.model, layout, max(counts), True, p == 1)
        dp_s = self.data_parallel_s(layout, dense, expert, m)
        budget = m * (slowest.backward_input + slowest.backward_weight)
        hidden = min(self.cluster.efficiency.dp_overlap * dp_s, budget)
        states = layout.shards if layout.zero else 1
        held = dense / states + expert / (states / layout.ep if layout.zero and not self.model.platform else 1)
        update = optimizer_s(held, self.cluster)
        if self.measured:
            update = running.update_s(held, self.cluster) + running.scalars_s(layout, self.cluster)
        exposed = m * slowest.exposed
        seconds = {
            "compute": work - exposed - m * slowest.again,
            "recompute": m * slowest.again,
            "communication inside layers": exposed,
            "pipeline bubble": bubble,
            "pipeline transfers": handed,
            "data-parallel communication": dp_s - hidden,
            "optimizer": update,
        }
        return seconds, bubble / (work + bubble) if work else 0.0

    def _stage_s(self, stages: tuple[PassTimes, ...]) -> float:
        """Seconds of a micro-batch in the slowest stage; on shared cores at least those of a mean stage that waits its turn."""
        slowest, mean = max(stage.total for stage in stages), sum(stage.total for stage in stages) / len(stages)
        crowded = self.measured and len(stages) > 1
        return max(slowest, mean * self.cluster.crowd) if crowded else slowest

    def data_parallel_s(self, layout: Layout, dense: float, expert: float, m: int) -> float:
        """Seconds of gradient and parameter traffic of a step before any overlap.

        Stages 0 and 1 accumulate whole gradients and move 2 Psi once. From stage 2 on no rank has room for them: every
        micro-batch's gradients are reduced, in the working precision; stage 3 also gathers for forward and for backward.
        """
        cluster, n = self.cluster, layout.shards
        if n == 1:
            return 0.0
        # The platform sends a layer at a time, and each message waits for its start.
        units = -(-self.model.layers // layout.pp) + 1 if self.measured else 1
        fan = spread(cluster, n, layout.stride("cp" if layout.cp > 1 else "dp"))
        grown = spread(cluster, max(1, n // layout.ep), layout.stride("dp") * layout.ep)
        seconds = 0.0
        for parameters, lie in ((dense, fan), (expert, grown)):
            grads, values = (
                width * parameters / units for width in (self.precision.gradient, self.precision.parameter)
            )
            if layout.zero == 0 or (self.measured and parameters is expert):
                # Layers that are small travel together there; the ends by themselves.
                sent = self.precision.gradient * parameters
                calls = min(units, 1 + max(1, round(sent / BUCKET_BYTES))) if layout.zero == 0 else units
                seconds += calls * collective_s("all_reduce", sent / calls, lie, cluster)
                continue
            gathers = 2 * m if layout.zero == 3 else 1
            if layout.zero == 1:
                seconds += units * collective_s("reduce_scatter", grads, lie, cluster)
            else:
                seconds += m * units * collective_s("reduce_scatter", values, lie, cluster)
            seconds += gathers * units * collective_s("all_gather", values, lie, cluster)
        return seconds


def _bubble_s(layout: Layout, stage: PassTimes) -> float:
    """Idle seconds of a rank by the closed formula; never below zero."""
    cost = StageCost(stage.forward, stage.backward_input, stage.backward_weight)
    return max(0.0, closed_bubble_s(layout.schedule, layout.pp, cost, layout.virtual))


def _two_ends(layers: int, p: int, one: float, first: float, last: float) -> tuple[int, ...]:
    """Layers per stage that minimise the largest cost when stage 0 also pays `first` and the last stage `last`."""
    one = one or 1.0
    best, least = None, float("inf")
    even = -(-layers // p)
    for head in range(max(0, even - int(first / one) - 2), even + 1):
        for tail in range(max(0, even - int(last / one) - 2), even + 1):
            middle = layers - head - tail
            inner = p - 2
            if middle < 0 or (inner == 0 and middle) or (inner and middle < inner):
                continue
            widest = -(-middle // inner) if inner else 0
            cost = max(head * one + first, tail * one + last, widest * one)
            if cost < least - 1e-15:
                best, least = (head, middle, tail), cost
    if best is None:
        return tuple(layers // p + (1 if i < layers % p else 0) for i in range(p))
    head, middle, tail = best
    inner = p - 2
    spread_out = [middle // inner + (1 if i < middle % inner else 0) for i in range(inner)] if inner else []
    return (head, *spread_out, tail)
