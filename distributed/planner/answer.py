"""The front door: a question about a model on a cluster, answered as one JSON-able report."""

import dataclasses
import time
from dataclasses import asdict, dataclass
from typing import Any

from distributed.planner.balance import dearest, partition
from distributed.planner.errors import PlanError
from distributed.planner.estimate import Estimate, Estimator
from distributed.planner.flags import training_command
from distributed.planner.groups import placement
from distributed.planner.layout import Layout, nearest_legal, objections, parse_layout
from distributed.planner.ledger import bytes_by_axis, ledger
from distributed.planner.machines import Cluster
from distributed.planner.memory import Precision
from distributed.planner.models import Model
from distributed.planner.search import Found, Limits, search, why_not
from distributed.planner.simulate import Timeline

GIB = 2**30
# Operations that one simulation may have; a longer step is simulated at fewer micro-batches and says how many.
MOST_OPERATIONS = 60_000


@dataclass(frozen=True)
class Question:
    """What is asked. Without `layout` the fastest is searched for; `why_not` names one to compare with it."""

    model: Model
    cluster: Cluster
    global_batch: int
    layout: str = ""
    why_not: str = ""
    limits: Limits = dataclasses.field(default_factory=Limits)
    precision: Precision | None = None


@dataclass(frozen=True)
class Answer:
    """The report, and what the page draws."""

    report: dict[str, Any]
    chosen: Estimate
    timeline: Timeline | None


def answer(question: Question) -> Answer:
    """Answers; `PlanError` with the numbers and the nearest layout when what is asked cannot be."""
    begun = time.perf_counter()
    model, cluster = question.model, question.cluster
    if question.global_batch < 1:
        raise PlanError(f"a global batch of {question.global_batch} holds no sample; at least 1 is needed")
    estimator = Estimator(model, cluster, question.global_batch, question.precision)
    if question.layout:
        chosen = _named(estimator, parse_layout(question.layout))
        chosen, _ = estimator.simulated(chosen, MOST_OPERATIONS)
        found = Found([chosen], 1, 0 if chosen.fits else 1)
    else:
        found = search(estimator, question.limits)
        if not found.best:
            raise PlanError(_nothing_fits(estimator, found))
        # The search ranks by closed formulas; those shown are run through the simulator and ranked again.
        found.best = sorted(
            (estimator.simulated(one, MOST_OPERATIONS)[0] for one in found.best), key=lambda e: e.step_s
        )
        chosen = found.best[0]
    chosen, timeline = estimator.simulated(chosen, MOST_OPERATIONS)
    lines = ledger(estimator, chosen.layout)
    report: dict[str, Any] = {
        "model": {"name": model.name, "parameters": model.parameters, "active_parameters": model.active_parameters,
                  "sequence": model.sequence},
        "cluster": {"name": cluster.name, "accelerators": cluster.gpus, "nodes": -(-cluster.gpus // cluster.per_node),
                    "usable_gib": cluster.usable_bytes / GIB, "sources": cluster.sources},
        "global_batch": question.global_batch,
        "layouts_looked_at": found.looked_at,
        "layouts_too_large": found.too_large,
        "best": [row(estimate, model) for estimate in found.best],
        "chosen": {
            **row(chosen, model),
            "stage_layers": list(chosen.stage_layers),
            "seconds": chosen.seconds,
            "memory_gib_by_stage": [{k: v / GIB for k, v in asdict(stage).items()} for stage in chosen.memory],
            "simulated": _simulated(chosen, timeline),
            "bytes_by_axis": bytes_by_axis(lines),
            "ledger": [{**asdict(line), "shape": list(line.shape)} for line in lines],
            "groups": placement(chosen.layout, cluster),
        },
        "reasons": reasons(estimator, chosen, found, bool(question.layout)),
    }  # fmt: skip
    if model.platform:
        command, unsaid = training_command(model, chosen.layout, chosen.micro_batches)
        report["train"] = {"command": command, "global_batch": question.global_batch, "not_in_the_command": unsaid}
    if question.why_not:
        report["why_not"] = why_not(estimator, parse_layout(question.why_not), found)
    report["seconds_to_answer"] = time.perf_counter() - begun
    return Answer(report, chosen, timeline)


def default_batch(model: Model, accelerators: int) -> int:
    """Samples of a step when none are named: about four million tokens, or 1,024 samples an accelerator without layers.

    A multiple of the accelerators, so that plain data parallel is always legal.
    """
    if not model.layers:
        return 1024 * accelerators
    return accelerators * max(1, round(2**22 / model.sequence / accelerators))


def row(estimate: Estimate, model: Model) -> dict[str, Any]:
    """One line of the table."""
    peak = estimate.peak_memory
    return {
        "layout": str(estimate.layout),
        "mesh": estimate.layout.mesh,
        "step_s": estimate.step_s,
        "samples_per_s": estimate.samples_per_s,
        "tokens_per_s_per_accelerator": estimate.samples_per_s * model.sequence / estimate.layout.world_size,
        "mfu": estimate.mfu,
        "hfu": estimate.hfu,
        "peak_gib": peak.total / GIB,
        "fits": estimate.fits,
        "micro_batches": estimate.micro_batches,
        "bubble": estimate.bubble,
        "bottleneck": estimate.bottleneck,
    }


def _named(estimator: Estimator, layout: Layout) -> Estimate:
    model, cluster, batch = estimator.model, estimator.cluster, estimator.global_batch
    found = objections(model, layout, cluster.gpus, batch)
    if found:
        near = nearest_legal(model, layout, cluster.gpus, batch, cluster.per_node, estimator.fits)
        hint = (
            f"; the nearest that works: {near}" if near else "; no layout of these accelerators works with this batch"
        )
        raise PlanError(f"layout {layout} cannot be: {'; '.join(found)}{hint}")
    return estimator.estimate(layout)


def _nothing_fits(estimator: Estimator, found: Found) -> str:
    model, cluster = estimator.model, estimator.cluster
    usable = cluster.usable_bytes
    if found.too_dear and not found.smallest:
        return f"every layout of {cluster.gpus} accelerators costs more than the limit"
    sentence = f"nothing fits: {model.name} on {cluster.gpus} {cluster.name} was tried in {found.looked_at} layouts"
    if found.smallest:
        need = found.smallest.peak_memory.total
        sentence += (
            f"; the smallest, {found.smallest.layout}, needs {need / GIB:.1f} GiB an accelerator of which {usable / GIB:.1f} "
            f"are usable"
        )
        near = _fewest_that_fit(estimator)
        if near:
            sentence += f"; the nearest that works: {near.layout.world_size} accelerators with {near.layout}"
    return sentence


def _fewest_that_fit(estimator: Estimator) -> Estimate | None:
    """The fewest accelerators, doubling, on which something fits."""
    gpus = estimator.cluster.gpus
    for _ in range(10):
        gpus *= 2
        try:
            cluster = dataclasses.replace(estimator.cluster, gpus=gpus)
            batch = (
                -(-estimator.global_batch // gpus) * gpus if estimator.global_batch % gpus else estimator.global_batch
            )
            found = search(Estimator(estimator.model, cluster, batch, estimator.precision), keep=1)
        except PlanError:
            continue
        if found.best:
            return found.best[0]
    return None


def _simulated(estimate: Estimate, timeline: Timeline | None) -> dict[str, Any]:
    if timeline is None:
        return {}
    return {
        "micro_batches": 1 + max(op.micro for slot in timeline.events[0] for op in slot.ops),
        "makespan_s": timeline.makespan_s,
        "bubble": timeline.bubble_rate,
        "peak_micro_batches": max(timeline.peak_with_weights) / estimate.layout.chunks,
    }


def reasons(estimator: Estimator, chosen: Estimate, found: Found, named: bool) -> list[str]:
    """Why this layout: what the states need, what binds, and what the usual alternatives would do."""
    model, cluster, layout = estimator.model, estimator.cluster, chosen.layout
    p = estimator.precision
    each = p.parameter + p.gradient + p.optimizer
    states = each * (model.parameters - model.table_parameters)
    sentences = [
        f"Parameters, gradients and optimizer take {each} bytes each of {model.parameters / 1e9:.1f} B parameters: "
        f"{states / GIB:,.0f} GiB, against {cluster.usable_bytes / GIB:.1f} usable on one accelerator and "
        f"{cluster.gpus * cluster.usable_bytes / GIB:,.0f} on all {cluster.gpus}.",
        f"Slowest: {chosen.bottleneck}; a step of {chosen.step_s:.3g} s is "
        + ", ".join(
            f"{name} {s / chosen.step_s:.0%}" for name, s in chosen.seconds.items() if s / chosen.step_s >= 0.005
        )
        + ".",
    ]
    if not chosen.fits:
        near = nearest_legal(model, layout, cluster.gpus, estimator.global_batch, cluster.per_node, estimator.fits)
        works = f"the nearest that does: {near}" if near and estimator.fits(near) else "no layout of the same kind does"
        sentences.append(f"It does not fit: the fullest stage needs {chosen.peak_memory.total / GIB:.1f} GiB; {works}.")
    if layout.pp > 1 and model.layers:
        _, _, entry, head = estimator.pieces(layout)
        one = estimator.mean_layer(layout).total
        counts = partition([one] * model.layers, layout.pp, entry.total, head.total)
        worst = dearest([one] * model.layers, counts, entry.total, head.total)
        sentences.append(
            f"The embedding costs {entry.total / one:.2f} and the loss {head.total / one:.2f} of a layer: stages of "
            f"{'-'.join(map(str, chosen.stage_layers if len(chosen.stage_layers) <= 20 else chosen.stage_layers[:20]))} "
            f"layers; the dearest takes {worst * 1e3:.3g} ms a micro-batch."
        )
    if not named:
        sentences += _alternatives(estimator, chosen, found)
    return sentences


def _alternatives(estimator: Estimator, chosen: Estimate, found: Found) -> list[str]:
    gpus, node = estimator.cluster.gpus, min(estimator.cluster.per_node, estimator.cluster.gpus)
    wishes = [
        Layout(dp=gpus, zero=3),
        Layout(tp=node, dp=gpus // node, zero=1),
        Layout(tp=node, dp=gpus // node, zero=3),
    ]
    mine = chosen.layout
    told = []
    for wish in wishes:
        same = (wish.tp, wish.pp, wish.dp, wish.zero) == (mine.tp, mine.pp, mine.dp, mine.zero)
        if not same and not objections(estimator.model, wish, gpus, estimator.global_batch):
            told += why_not(estimator, wish, found)
    return told
