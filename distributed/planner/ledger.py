"""The ledger of bytes: every collective of one step, with the tensor it moves, how often, and what each rank sends.

One line a collective and axis, for a rank of the first pipeline stage (which also holds the entry). B = micro-batch,
S = sequence, H = hidden; sizes count the full tensor as in `collectives`.
"""

from dataclasses import dataclass, field

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
    m = estimator.global_batch // (layout.dp * layout.micro_batch)
    book = _Book(estimator, layout, m, estimator.split_layers(layout)[0])
    if estimator.model.layers:
        book.tensor()
        book.context_and_experts()
        book.pipeline()
    book.data()
    book.tables()
    book.scalars()
    return book.lines


@dataclass
class _Book:
    """One step's lines as they are entered: `m` micro-batches, `layers` on this rank."""

    estimator: Estimator
    layout: Layout
    m: int
    layers: int
    lines: list[Line] = field(default_factory=list)

    def add(self, axis: str, kind: str, what: str, shape: tuple[float, ...], width: int, ranks: int, stride: int,
            times: float, overlap: str = "none") -> None:  # fmt: skip
        """Enters a collective of `ranks` at distance `stride`; nothing where there is nobody to send to."""
        if ranks <= 1 or times <= 0:
            return
        whole = tuple(round(extent) for extent in shape)
        size, cluster = float(width), self.estimator.cluster
        for extent in whole:
            size *= extent
        fan = spread(cluster, ranks, stride)
        self.lines.append(Line(axis, kind, what, whole, width, ranks, times, cluster.levels[crossing(fan)].name,
                               times * bytes_sent(kind, size, ranks), times * collective_s(kind, size, fan, cluster), overlap))  # fmt: skip

    def tensor(self) -> None:
        """Two regions a layer, and the two ends: the embedding's output, the head's input, the loss."""
        model, layout, m = self.estimator.model, self.layout, self.m
        width, at, last = self.estimator.precision.activation, layout.stride("tp"), layout.pp == 1
        tokens = model.sequence / layout.cp
        hidden = (layout.micro_batch, tokens, model.hidden)
        again = 1 if layout.recompute == "full" else 0
        overlap = f"backward {self.estimator.cluster.efficiency.tp_overlap:.0%} behind weight gradients"
        inner = (4 + 2 * again) * self.layers * m
        ends = m * (2 if last else 1)
        if layout.sequence_parallel:
            for kind, what in (("all_gather", "input"), ("reduce_scatter", "output")):
                regions = f"{what} of attention and of feed-forward"
                self.add("tp", kind, regions, hidden, width, layout.tp, at, inner, overlap)
                # Embedding: scatter forward, gather backward; head: the other way round.
                self.add("tp", kind, "ends of the model", hidden, width, layout.tp, at, ends)
            shifts = 2 * model.hidden if model.biases else 0
            whole = self.layers * (model.norm_parameters + shifts) + (model.final_norm_parameters if last else 0)
            # Where gradients are not kept whole, they are summed with every micro-batch.
            self.add("tp", "all_reduce", "gradients of norms and of biases after a region", (whole,),
                     self.estimator.precision.gradient, layout.tp, at, m if layout.zero >= 2 else 1)  # fmt: skip
        else:
            regions = "output of attention and of feed-forward"
            self.add("tp", "all_reduce", regions, hidden, width, layout.tp, at, inner, overlap)
            self.add("tp", "all_reduce", "ends of the model", hidden, width, layout.tp, at, ends)
        if last and model.vocab:
            # The largest logit, then the sum of exponentials and the target's logit, in fp32 at least.
            self.add("tp", "all_reduce", "loss", (3, layout.micro_batch, tokens), max(4, width), layout.tp, at, m)

    def context_and_experts(self) -> None:
        """Keys and values round the ring; tokens to their experts and back."""
        model, layout, m = self.estimator.model, self.layout, self.m
        width, cp = self.estimator.precision.activation, layout.cp
        tokens, again = model.sequence / cp, 1 if layout.recompute == "full" else 0
        ring_again = 0 if layout.recompute == "none" else 1
        keys = model.key_width / min(layout.tp, model.key_heads)
        # Forward and backward pass keys and values on cp - 1 times; their gradients go all the way home, cp times.
        times = ((2 + ring_again) * (cp - 1) + cp) * self.layers * m
        self.add("cp", "p2p", "keys and values of a ring step", (2, layout.micro_batch, tokens, keys), width, cp,
                 layout.stride("cp"), times, "behind attention, what is longer shows")  # fmt: skip
        if model.experts:
            share = layout.tp if layout.sequence_parallel else 1
            routed = (layout.micro_batch * tokens * model.experts.top_k / share, model.hidden)
            at = layout.stride("dp") if cp == 1 else layout.stride("cp")
            exchanges = (2 + again) * self.layers * model.moe_layers / model.layers * m
            for what in ("dispatch", "combine"):
                self.add("ep", "all_to_all", f"tokens to experts, {what}", routed, width, layout.ep, at, exchanges)

    def pipeline(self) -> None:
        """Activations handed on, and gradients handed back."""
        model, layout = self.estimator.model, self.layout
        # Under sequence parallel a tensor rank holds, and sends, its part of the tokens.
        split = layout.tp if layout.sequence_parallel else 1
        handed = (layout.micro_batch, model.sequence / layout.cp / split, model.hidden)
        at, messages = layout.stride("pp"), self.m * _sent_by_first_stage(layout)
        self.add("pp", "p2p", "activations and their gradients between stages", handed, self.estimator.precision.activation,
                 layout.pp, at, messages, f"{self.estimator.cluster.efficiency.pp_overlap:.0%} behind computation")  # fmt: skip
        if model.tied and layout.schedule not in ("zb-v", "dualpipe-v"):
            self.add("pp", "p2p", "gradient of the tied embedding", (-(-model.vocab // layout.tp), model.hidden),
                     self.estimator.precision.gradient, layout.pp, at, 1)  # fmt: skip

    def data(self) -> None:
        """Gradients and parameters; under stage 3 layers are gathered twice a micro-batch, the ends once."""
        model, layout, m, p = self.estimator.model, self.layout, self.m, self.estimator.precision
        dense, expert = stage_parameters(model, layout, self.layers, True, layout.pp == 1)
        ends, _ = stage_parameters(model, layout, 0, True, layout.pp == 1)
        overlap = f"{self.estimator.cluster.efficiency.dp_overlap:.0%} behind the backward"
        stride = layout.stride("cp" if layout.cp > 1 else "dp")
        for axis, parameters, once, ranks, at in (
            ("dp", dense, ends, layout.shards, stride),
            ("dp of experts", expert, 0.0, layout.shards // layout.ep, layout.stride("dp") * layout.ep),
        ):
            if not parameters:
                continue
            if layout.zero == 0:
                self.add(axis, "all_reduce", "gradients", (parameters,), p.gradient, ranks, at, 1, overlap)
                continue
            width, times = (p.gradient, 1) if layout.zero == 1 else (p.parameter, m)
            self.add(axis, "reduce_scatter", "gradients", (parameters,), width, ranks, at, times, overlap)
            if layout.zero < 3:
                self.add(axis, "all_gather", "parameters", (parameters,), p.parameter, ranks, at, 1, overlap)
            else:
                self.add(
                    axis,
                    "all_gather",
                    "parameters of layers",
                    (parameters - once,),
                    p.parameter,
                    ranks,
                    at,
                    2 * m,
                    overlap,
                )
                self.add(axis, "all_gather", "parameters of the ends", (once,), p.parameter, ranks, at, m, overlap)

    def tables(self) -> None:
        """Pooled rows of the embedding tables, and their gradients back."""
        model = self.estimator.model
        rows = sum(table.lookups * table.dim for table in model.tables)
        self.add("tables", "all_to_all", "pooled rows and their gradients", (self.layout.micro_batch, rows), 4,
                 self.layout.world_size, 1, 2.0 * self.m if rows else 0)  # fmt: skip

    def scalars(self) -> None:
        """Token count and loss over the data ranks, the gradient's norm over all; fp64."""
        layout = self.layout
        stride = layout.stride("cp" if layout.cp > 1 else "dp")
        self.add("dp", "all_reduce", "token count and loss", (1,), 8, layout.shards, stride, 2)
        self.add("pp", "all_reduce", "loss", (1,), 8, layout.pp, layout.stride("pp"), 1)
        self.add("world", "all_reduce", "norm of the gradient", (1,), 8, layout.world_size, 1, 1)


def _sent_by_first_stage(layout: Layout) -> int:
    """Messages that a rank of the first stage sends per micro-batch: each chunk's output, each later chunk's gradient."""
    if layout.schedule in ("zb-v", "dualpipe-v"):
        # Chunk 0 forward to the right; the last chunk's gradient back to the right.
        return 2
    if layout.schedule == "dualpipe":
        return 1
    return 2 * layout.virtual - 1


def bytes_by_axis(lines: list[Line]) -> dict[str, float]:
    """Bytes that the rank sends in a step, by axis."""
    total: dict[str, float] = {}
    for line in lines:
        total[line.axis] = total.get(line.axis, 0.0) + line.bytes_sent
    return total
