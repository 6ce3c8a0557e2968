"""Search over all legal layouts: enumerate, estimate, prune by memory, order by throughput; and why not another one."""

import dataclasses
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimate, Estimator
from distributed.planner.layout import SCHEDULES, Layout, divisors, meshes, nearest_legal, objections
from distributed.planner.machines import Cluster
from distributed.planner.memory import stage_memory


@dataclass(frozen=True)
class Limits:
    """What a search may choose from. Without `micro_batches`: powers of two up to eight sequences or 65,536 tokens.

    `dollars_per_step` and the cluster's hourly price limit the cost; 0 is no limit.
    """

    schedules: tuple[str, ...] = ("1f1b", "interleaved", "zb-h1", "zb-v")
    micro_batches: tuple[int, ...] = ()
    recompute: tuple[str, ...] = ("none", "selective", "full")
    zero: tuple[int, ...] = (1, 2, 3)
    largest_virtual: int = 8
    dollars_per_step: float = 0.0


def limits_from(cluster: Cluster, schedules: str | None = None, most_dollars: float | None = None) -> Limits:
    """Limits from texts; `PlanError` on an unknown schedule, or a limit in dollars where accelerators have no price."""
    names = Limits.schedules if schedules is None else schedules_from(schedules)
    if most_dollars is None:
        return Limits(schedules=names)
    if not 0 < most_dollars < math.inf:
        raise PlanError(f"a limit of {most_dollars:g} dollars a step leaves nothing; a finite number above 0 is needed")
    if not cluster.dollars_per_hour:
        raise PlanError(
            f"{cluster.name} has no dollars_per_hour, so that a limit of {most_dollars:g} dollars says nothing"
        )
    return Limits(schedules=names, dollars_per_step=most_dollars)


def schedules_from(text: str) -> tuple[str, ...]:
    """Schedules of a comma-separated text; `PlanError` on one that is not known, or on none at all."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    unknown = [name for name in names if name not in SCHEDULES]
    if unknown or not names:
        raise PlanError(f"no schedule {(unknown or [text])[0]!r}; known: {', '.join(SCHEDULES)}")
    return names


@dataclass
class Found:
    """The best estimate of each mesh, fastest first, and how many layouts were looked at, too large, too dear."""

    best: list[Estimate] = field(default_factory=list)
    looked_at: int = 0
    too_large: int = 0
    too_dear: int = 0
    smallest: Estimate | None = None


def search(estimator: Estimator, limits: Limits | None = None, keep: int = 10) -> Found:
    """The `keep` fastest meshes (tp, cp, pp, dp, ep), each with its fastest recipe that fits.

    Recipes are micro-batch, ZeRO stage, recompute, schedule and, where it matters, the order of the axes. `PlanError`
    when nothing is legal.
    """
    limits, found = limits or Limits(), Found()
    model, cluster = estimator.model, estimator.cluster
    ranked: list[tuple[float, int, Estimate]] = []
    for number, mesh in enumerate(meshes(model, cluster.gpus, cluster.per_node)):
        best = _best_recipe(estimator, mesh, limits, found)
        if best is not None:
            entry = (best.samples_per_s, -number, best)
            if len(ranked) < keep:
                heapq.heappush(ranked, entry)
            else:
                heapq.heappushpop(ranked, entry)
    found.best = [estimate for _, _, estimate in sorted(ranked, key=lambda entry: entry[:2], reverse=True)]
    if not found.looked_at:
        raise PlanError(
            f"no layout of {cluster.gpus} accelerators is legal for {model.name} with a global batch of "
            f"{estimator.global_batch}; a batch that is a multiple of {cluster.gpus} always allows plain data parallel"
        )
    return found


def _best_recipe(estimator: Estimator, mesh: Layout, limits: Limits, found: Found) -> Estimate | None:
    best: Estimate | None = None
    price = estimator.cluster.dollars_per_hour * estimator.cluster.gpus / 3600
    for layout in recipes(estimator, mesh, limits):
        found.looked_at += 1
        micro_batches = estimator.global_batch // (layout.dp * layout.micro_batch)
        # The first stage holds the most micro-batches: when it does not fit, nothing else needs computing.
        layers = estimator.split_layers(layout)[0]
        first = stage_memory(estimator.model, layout, layers, 0, micro_batches, estimator.precision)
        if first.total > estimator.cluster.usable_bytes:
            found.too_large += 1
            if found.smallest is None or first.total < found.smallest.peak_memory.total:
                found.smallest = estimator.estimate(layout)
            continue
        estimate = estimator.estimate(layout)
        if not estimate.fits:
            found.too_large += 1
            continue
        if limits.dollars_per_step and price * estimate.step_s > limits.dollars_per_step:
            found.too_dear += 1
            continue
        if best is None or estimate.step_s < best.step_s:
            best = estimate
    return best


def recipes(estimator: Estimator, mesh: Layout, limits: Limits) -> Iterator[Layout]:
    """Every legal recipe of one mesh."""
    model, batch = estimator.model, estimator.global_batch
    if batch % mesh.dp:
        return
    per_rank = batch // mesh.dp
    zeros = limits.zero if mesh.shards > 1 else (0,)
    # Without the square in memory there is nothing that selective recompute would save; the platform's keeps products alone.
    modes = [mode for mode in limits.recompute if model.layers or mode == "none"]
    modes = [mode for mode in modes if mode != "selective" or not model.flash or model.platform]
    orders = ["tp-cp-dp-pp"]
    if mesh.pp > 1 and mesh.dp > 1 and mesh.tp * mesh.cp < estimator.cluster.per_node:
        orders.append("tp-cp-pp-dp")
    most = max(8, 65_536 // model.sequence) if model.sequence > 1 or not model.layers else 8
    for micro in limits.micro_batches or tuple(2**power for power in range(most.bit_length())):
        if per_rank % micro:
            continue
        for schedule, virtual in _schedules(model.layers, mesh, limits):
            first = dataclasses.replace(mesh, micro_batch=micro, schedule=schedule, virtual=virtual)
            if objections(model, first, mesh.world_size, batch):
                continue
            for zero in zeros if schedule in ("1f1b", "interleaved") else [z for z in zeros if z < 3]:
                for mode in modes:
                    if mode == "selective" and model.platform and schedule.startswith(("zb-", "dualpipe")):
                        continue
                    for order in orders:
                        yield dataclasses.replace(first, zero=zero, recompute=mode, order=order)


def _schedules(layers: int, mesh: Layout, limits: Limits) -> Iterator[tuple[str, int]]:
    if mesh.pp == 1:
        yield "1f1b", 1
        return
    for schedule in limits.schedules:
        if schedule != "interleaved":
            yield schedule, 1
            continue
        most = layers // mesh.pp
        for virtual in divisors(most, limits.largest_virtual)[-2:]:
            if virtual > 1:
                yield schedule, virtual


def why_not(estimator: Estimator, wish: Layout, found: Found) -> list[str]:
    """Sentences on a layout that the user names: illegal, too large, or slower than the best, and by what."""
    model, cluster = estimator.model, estimator.cluster
    reasons = objections(model, wish, cluster.gpus, estimator.global_batch)
    if reasons:
        near = nearest_legal(model, wish, cluster.gpus, estimator.global_batch, cluster.per_node, estimator.fits)
        return [f"{wish} cannot be: {'; '.join(reasons)}."] + ([f"The nearest that can: {near}."] if near else [])
    estimate = estimator.estimate(wish)
    peak = estimate.peak_memory
    if not estimate.fits:
        parts = ("parameters", "gradients", "optimizer", "activations", "buffers")
        largest = max(parts, key=lambda part: getattr(peak, part))
        return [
            f"{wish} does not fit: {peak.total / 2**30:.1f} GiB on the fullest stage, {cluster.usable_bytes / 2**30:.1f} "
            f"usable; the largest part is {largest} with {getattr(peak, largest) / 2**30:.1f} GiB."
        ]
    if not found.best:
        return [f"{wish} fits and takes {estimate.step_s:.3g} s a step."]
    best = found.best[0]
    if estimate.step_s <= best.step_s:
        return [f"{wish} is the fastest that was found: {estimate.step_s:.3g} s a step."]
    more = {name: estimate.seconds[name] - best.seconds[name] for name in estimate.seconds}
    name, extra = max(more.items(), key=lambda pair: pair[1])
    return [
        f"{wish} takes {estimate.step_s:.3g} s a step, {estimate.step_s / best.step_s - 1:.1%} more than {best.layout} "
        f"({best.step_s:.3g} s); most of the difference is {name}, {extra:+.3g} s."
    ]
