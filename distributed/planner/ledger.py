"""The ledger of bytes: every collective of one step, with the tensor it moves, how often, and what each rank sends.

One line a collective and axis, for a rank of the first pipeline stage (which also holds the entry). B = micro-batch,
S = sequence, H = hidden; sizes count the full tensor as in `collectives`.
"""

from dataclasses import dataclass

from distributed.planner.collectives import bytes_sent, collective_s, crossing, spread
from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout
from distributed.planner.memory import stage_parameters


@dataclass(frozen=True)
class Line:
    """One kind of collective in a step. `tensor_bytes` is S of the formulas, `bytes_sent` per rank and step."""

    axis: str
    collective: str
    what: str
    shape: tuple[int, ...]
    element_bytes: int
    ranks: int
    times: float
    level: str
    bytes_sent: float
    seconds: float
    overlap: str

    @property
    def tensor_bytes(self) -> float:
        """Bytes of the full tensor of one collective."""
        size = float(self.element_bytes)
        for extent in self.shape:
            size *= extent
        return size


def ledger(estimator: Estimator, layout: Layout) -> list[Line]:
    """All collectives of one optimizer step of a first-stage rank, by axis."""
    model, cluster = estimator.model, estimator.cluster
    m = estimator.global_batch // (layout.dp * layout.micro_batch)
    layers = estimator.split_layers(layout)[0]
    e = cluster.efficiency
    lines: list[Line] = []

    def add(axis: str, kind: str, what: str, shape: tuple[float, ...], width: int, ranks: int, stride: int,
            times: float, overlap: str) -> None:  # fmt: skip
        if ranks <= 1 or times <= 0:
            return
        whole = tuple(round(extent) for extent in shape)
        size = float(width)
        for extent in whole:
            size *= extent
        fan = spread(cluster, ranks, stride)
        lines.append(Line(axis, kind, what, whole, width, ranks, times, cluster.levels[crossing(fan)].name,
                          times * bytes_sent(kind, size, ranks), times * collective_s(kind, size, fan, cluster), overlap))  # fmt: skip

    if model.layers:
        tokens = model.sequence / layout.cp
        hidden = (layout.micro_batch, tokens, model.hidden)
        passes = 3 if layout.recompute == "full" else 2
        tp, tp_at = layout.tp, layout.stride("tp")
        hidden_share = f"backward {e.tp_overlap:.0%} behind weight gradients"
        if layout.sequence_parallel:
            add("tp", "all_gather", "input of attention and of feed-forward", hidden, 2, tp, tp_at, 2 * passes * layers * m,
                hidden_share)  # fmt: skip
            add("tp", "reduce_scatter", "output of attention and of feed-forward", hidden, 2, tp, tp_at,
                2 * passes * layers * m, hidden_share)  # fmt: skip
        else:
            add("tp", "all_reduce", "output of attention and of feed-forward", hidden, 2, tp, tp_at,
                2 * passes * layers * m, hidden_share)  # fmt: skip
        keys = model.key_width / min(tp, model.key_heads)
        block = (2, layout.micro_batch, tokens, keys)
        # Forward passes keys and values on cp - 1 times; backward passes their gradients as well.
        add("cp", "p2p", "keys and values of a ring step", block, 2, layout.cp, layout.stride("cp"),
            (layout.cp - 1) * (passes + 1) * layers * m, "behind attention, what is longer shows")  # fmt: skip
        if model.experts:
            moe = layers * model.moe_layers / model.layers
            share = tp if layout.sequence_parallel else 1
            routed = (layout.micro_batch * tokens * model.experts.top_k / share, model.hidden)
            at = layout.stride("dp") if layout.cp == 1 else layout.stride("cp")
            for what in ("dispatch", "combine"):
                add(
                    "ep", "all_to_all", f"tokens to experts, {what}", routed, 2, layout.ep, at, passes * moe * m, "none"
                )
        handed = (layout.micro_batch, tokens, model.hidden / tp)
        add("pp", "p2p", "activations and their gradients between stages", handed, 2, layout.pp, layout.stride("pp"),
            m * _sent_by_first_stage(layout), f"{e.pp_overlap:.0%} behind computation")  # fmt: skip
    _data_parallel(estimator, layout, layers, m, add)
    samples = layout.micro_batch
    rows = sum(table.lookups * table.dim for table in model.tables)
    add("tables", "all_to_all", "pooled rows and their gradients", (samples, rows), 4, layout.world_size, 1,
        2.0 * m if rows else 0, "none")  # fmt: skip
    return lines


def _sent_by_first_stage(layout: Layout) -> int:
    """Messages that a rank of the first stage sends per micro-batch: each chunk's output, each later chunk's gradient."""
    if layout.schedule in ("zb-v", "dualpipe-v"):
        # Chunk 0 forward to the right; the last chunk's gradient back to the right.
        return 2
    if layout.schedule == "dualpipe":
        return 1
    return 2 * layout.virtual - 1


def _data_parallel(estimator: Estimator, layout: Layout, layers: int, m: int, add) -> None:  # type: ignore[no-untyped-def]
    dense, expert = stage_parameters(estimator.model, layout, layers, True, layout.pp == 1)
    p = estimator.precision
    overlap = f"{estimator.cluster.efficiency.dp_overlap:.0%} behind the backward"
    stride = layout.stride("cp" if layout.cp > 1 else "dp")
    groups = [("dp", dense, layout.shards, stride), ("dp of experts", expert, layout.shards // layout.ep,
                                                     layout.stride("dp") * layout.ep)]  # fmt: skip
    for axis, parameters, ranks, at in groups:
        if not parameters:
            continue
        shape = (parameters,)
        if layout.zero == 0:
            add(axis, "all_reduce", "gradients", shape, p.gradient, ranks, at, 1, overlap)
        else:
            width, times = (p.gradient, 1) if layout.zero == 1 else (p.parameter, m)
            add(axis, "reduce_scatter", "gradients", shape, width, ranks, at, times, overlap)
            gathers = 2 * m if layout.zero == 3 else 1
            add(axis, "all_gather", "parameters", shape, p.parameter, ranks, at, gathers, overlap)


def bytes_by_axis(lines: list[Line]) -> dict[str, float]:
    """Bytes that the rank sends in a step, by axis."""
    total: dict[str, float] = {}
    for line in lines:
        total[line.axis] = total.get(line.axis, 0.0) + line.bytes_sent
    return total
