"""The ledger of bytes: every collective of one step, with the tensor it moves, how often, and what each rank sends.

One line a collective and axis, for a rank of one pipeline stage. B = micro-batch, S = sequence, H = hidden; sizes count
the full tensor as in `collectives`. Which collectives there are is how `distributed/` runs a model.
"""

import math
from dataclasses import dataclass, field

from distributed.planner.collectives import bytes_sent, collective_s, crossing, spread
from distributed.planner.estimate import Estimator
from distributed.planner.layout import Layout
from distributed.planner.memory import end_units, ends_of, filled, stage_parameters
from distributed.planner.schedules import build_schedule


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


def ledger(estimator: Estimator, layout: Layout, stage: int = 0) -> list[Line]:
    """All collectives of one optimizer step of a rank of pipeline rank `stage`, by axis; tokens go to experts evenly."""
    m = estimator.global_batch // (layout.dp * layout.micro_batch)
    book = _Book(estimator, layout, m, stage, estimator.split_layers(layout)[stage])
    if estimator.model.layers:
        book.tensor()
        book.context()
        book.experts()
        book.pipeline()
    book.data()
    if book.first:
        book.tables()
    book.scalars()
    return book.lines


def _paths(layout: Layout) -> tuple[tuple[int, ...], ...]:
    m = 2 * layout.pp * max(1, layout.virtual)
    return build_schedule(layout.schedule, layout.pp, m, layout.virtual).paths if layout.pp > 1 else ((0,),)


@dataclass
class _Book:
    """One step's lines as they are entered: `m` micro-batches, `layers` on this rank."""

    estimator: Estimator
    layout: Layout
    m: int
    stage: int
    layers: int
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.estimator.model
        self.first, self.last = ends_of(self.layout, self.stage)
        self.moe_layers = self.layers * model.moe_layers / max(1, model.layers)
        # Full and selective recompute run a layer's collectives again in the backward.
        self.again = 0 if self.layout.recompute == "none" else 1
        self.width = self.estimator.precision.activation
        self.tokens = model.sequence / self.layout.cp
        self.whole = self.layout.tp if self.layout.sequence_parallel else 1

    def add(self, axis: str, kind: str, what: str, shape: tuple[float, ...], width: int, ranks: int, stride: int,
            times: float, overlap: str = "none") -> None:  # fmt: skip
        """Enters a collective of `ranks` at distance `stride`; nothing where there is nobody to send to."""
        if ranks <= 1 or times <= 0 or min(shape) <= 0:
            return
        whole = tuple(round(extent) for extent in shape)
        size, cluster = float(width), self.estimator.cluster
        for extent in whole:
            size *= extent
        fan = spread(cluster, ranks, stride)
        self.lines.append(Line(axis, kind, what, whole, width, ranks, times, cluster.levels[crossing(fan)].name,
                               times * bytes_sent(kind, size, ranks), times * collective_s(kind, size, fan, cluster), overlap))  # fmt: skip

    def tensor(self) -> None:
        """Two regions a layer (the platform does not cut experts), and the two ends: embedding's output, head's input, loss."""
        model, layout, m = self.estimator.model, self.layout, self.m
        at = layout.stride("tp")
        hidden = (layout.micro_batch, self.tokens, model.hidden)
        overlap = f"backward {self.estimator.cluster.efficiency.tp_overlap:.0%} behind weight gradients"
        regions = 2 * self.layers - (self.moe_layers if model.platform else 0)
        inner, outer = (2 + self.again) * regions * m, m * (self.first + self.last)
        if layout.sequence_parallel:
            for kind, what in (("all_gather", "input"), ("reduce_scatter", "output")):
                self.add(
                    "tp",
                    kind,
                    f"{what} of attention and of feed-forward",
                    hidden,
                    self.width,
                    layout.tp,
                    at,
                    inner,
                    overlap,
                )
                # Embedding: scatter forward, gather backward; head: the other way round.
                self.add("tp", kind, "ends of the model", hidden, self.width, layout.tp, at, outer)
            self._gradients_in_parts(at)
        else:
            self.add(
                "tp",
                "all_reduce",
                "output of attention and of feed-forward",
                hidden,
                self.width,
                layout.tp,
                at,
                inner,
                overlap,
            )
            self.add("tp", "all_reduce", "ends of the model", hidden, self.width, layout.tp, at, outer)
        copies = layout.tp // model.key_heads
        head = 2 * model.key_width / model.key_heads * (model.hidden + (1 if model.biases else 0))
        self.add("tp", "all_reduce", "gradients of kv heads that ranks share", (self.layers * head,),
                 self.estimator.precision.gradient, copies, at, self._reductions())  # fmt: skip
        if self.last and model.vocab:
            # The largest logit, then the sum of exponentials and the target's logit, in fp32 at least.
            self.add(
                "tp", "all_reduce", "loss", (3, layout.micro_batch, self.tokens), max(4, self.width), layout.tp, at, m
            )

    def _gradients_in_parts(self, at: int) -> None:
        """Under sequence parallel a rank's tokens give a part of the gradients of what is whole on every tensor rank."""
        model, layout, width = self.estimator.model, self.layout, self.estimator.precision.gradient
        shift = model.hidden if model.biases else 0
        inside = float(self.layers * (model.norm_parameters + 2 * shift))
        router = self.moe_layers * model.hidden * model.experts.count if model.experts else 0
        if model.platform:
            inside += router + self.moe_layers * (model.shared_parameters - shift)
        self.add("tp", "all_reduce", "gradients of norms and of biases after a region", (inside,), width, layout.tp, at,
                 self._reductions())  # fmt: skip
        final = model.final_norm_parameters if self.last else 0
        self.add(
            "tp", "all_reduce", "gradients of the final norm", (final,), width, layout.tp, at, self._reductions(True)
        )
        if model.platform and model.experts and not layout.ep_over_tp:
            held = self.moe_layers * model.experts.count / layout.ep * model.expert_parameters
            self.add("tp", "all_reduce", "gradients of experts", (held,), width, layout.tp, at, 1)

    def _reductions(self, ends: bool = False) -> int:
        """How often a step reduces gradients: with every micro-batch where no rank has room for whole ones (stage 2 on).

        Ends of a pipeline keep theirs to the end of the step.
        """
        return self.m if self.layout.zero >= 2 and not (ends and self.layout.pp > 1) else 1

    def context(self) -> None:
        """Tokens swapped for heads inside, keys and values round the ring."""
        model, layout = self.estimator.model, self.layout
        inner, at = layout.ulysses, layout.stride("cp")
        ring = layout.cp // inner
        heads = model.key_heads / min(layout.tp, model.key_heads)
        channels = model.key_width / model.key_heads * max(heads, inner)
        passes = (2 + self.again) * self.layers * self.m
        for what, width in (("queries and outputs", model.query_width / layout.tp), ("keys and values", channels)):
            self.add("cp", "all_to_all", f"{what}, tokens swapped for heads", (layout.micro_batch, self.tokens, width), self.width,
                     inner, at, 2 * passes)  # fmt: skip
        # Forward and backward pass keys and values on r - 1 times; their gradients go all the way home, r times.
        times = ((2 + self.again) * (ring - 1) + ring) * self.layers * self.m
        self.add("cp", "p2p", "keys and values of a ring step", (2, layout.micro_batch, self.tokens, channels), self.width, ring,
                 at * inner, times, "behind attention, what is longer shows")  # fmt: skip

    def experts(self) -> None:
        """Tokens to their experts and back; the counts that go before; what a router sums over parts of a sequence."""
        model, layout = self.estimator.model, self.layout
        if not model.experts:
            return
        e, passes = model.experts, self.moe_layers * self.m
        at = 1 if layout.ep_over_tp else layout.stride("cp" if layout.cp > 1 else "dp")
        pairs, kept = layout.micro_batch * self.tokens * e.top_k / self.whole, 1.0
        if model.platform and e.capacity_factor:
            queue = pairs * layout.ep
            kept = min(1.0, math.ceil(e.capacity_factor * queue / e.count) * e.count / queue)
        routed = (pairs * kept, model.hidden)
        for what in ("dispatch", "combine"):
            self.add(
                "ep",
                "all_to_all",
                f"tokens to experts, {what}",
                routed,
                self.width,
                layout.ep,
                at,
                (2 + self.again) * passes,
            )
        if not model.platform:
            return
        once = (1 + self.again) * passes
        self.add("ep", "all_to_all", "how many tokens go to each expert", (e.count,), 8, layout.ep, at, once)
        if e.capacity_factor:
            self.add(
                "ep",
                "all_gather",
                "choices before an expert's queue",
                (layout.ep, e.top_k, e.count),
                8,
                layout.ep,
                at,
                once,
            )
        parts = layout.cp * self.whole
        self.add("router", "all_reduce", "choices of a sequence's parts", (layout.micro_batch, e.count + 1), max(4, self.width),
                 parts, 1, once)  # fmt: skip
        self.add("tp", "all_reduce", "router's loss", (1,), max(4, self.width), self.whole, 1, once)

    def pipeline(self) -> None:
        """Activations handed on, and gradients handed back."""
        model, layout = self.estimator.model, self.layout
        # Under sequence parallel a tensor rank holds, and sends, its part of the tokens.
        handed = (layout.micro_batch, self.tokens / self.whole, model.hidden)
        at, messages = layout.stride("pp"), self.m * self._messages()
        self.add("pp", "p2p", "activations and their gradients between stages", handed, self.width, layout.pp, at, messages,
                 f"{self.estimator.cluster.efficiency.pp_overlap:.0%} behind computation")  # fmt: skip
        if model.tied and self.first != self.last:
            # Shards of it where ZeRO has left shards.
            each = -(-model.vocab // layout.tp) * model.hidden
            held = -(-each // layout.shards) if layout.zero and model.platform else each
            self.add(
                "pp",
                "p2p",
                "gradient of the tied embedding",
                (held,),
                self.estimator.precision.gradient,
                layout.pp,
                at,
                1,
            )

    def _messages(self) -> float:
        """That this rank sends a micro-batch: a stage's output to another rank's next one, its gradient to the one before."""
        sent, paths = 0, _paths(self.layout)
        for path in paths:
            for number, holder in enumerate(path):
                if holder == self.stage:
                    sent += sum(
                        path[beside] != holder for beside in (number - 1, number + 1) if 0 <= beside < len(path)
                    )
        return sent / len(paths)

    def data(self) -> None:
        """Gradients and parameters; under stage 3 layers are gathered twice a micro-batch, the ends once (a step, in a

        pipeline). A layer's parameters travel together, filled up to a multiple of the shards; experts are one more unit.
        """
        model, layout, p = self.estimator.model, self.layout, self.estimator.precision
        dense, expert = stage_parameters(model, layout, self.layers, False, False)
        overlap = f"{self.estimator.cluster.efficiency.dp_overlap:.0%} behind the backward"
        stride = layout.stride("cp" if layout.cp > 1 else "dp")
        grow = layout.stride("dp") * layout.ep
        if layout.zero == 0:
            whole = dense + sum(end_units(model, layout, self.first, self.last))
            self.add("dp", "all_reduce", "gradients", (whole,), p.gradient, layout.dp * layout.cp, stride, 1, overlap)
        else:
            each = dense / self.layers if self.layers else 0
            self._sharded("layers", self.layers * filled(model, layout, each), stride, False, self._gathers())
            gathers = 1 if layout.pp > 1 else self.m
            ends = sum(filled(model, layout, unit) for unit in end_units(model, layout, self.first, self.last))
            self._sharded("the ends", ends, stride, True, gathers)
        if expert and (model.platform or layout.zero == 0):
            # The data ranks share experts out already: whole where they lie, under every stage.
            self.add(
                "dp of experts",
                "all_reduce",
                "gradients",
                (expert,),
                p.gradient,
                layout.expert_copies,
                grow,
                1,
                overlap,
            )
            self.add("dp of experts", "all_reduce", "gradients over replicas", (expert,), p.gradient, layout.replicas,
                     stride * layout.shards, 1, overlap)  # fmt: skip
        elif expert:
            self._sharded("experts", expert, grow, False, 2 * self.m, "dp of experts", layout.shards // layout.ep)

    def _gathers(self) -> float:
        """How often a step gathers a layer's parameters under stage 3: for each forward, and each part of a backward.

        The first stage's gradient of inputs is no computation of its own: nothing goes further.
        """
        layout = self.layout
        if layout.zero < 3 or layout.pp == 1:
            return 2 * self.m
        order = build_schedule(layout.schedule, layout.pp, self.m, layout.virtual).orders[self.stage]
        return sum(op.kind != "B" or op.stage > 0 for slot in order for op in slot) / layout.chunks

    def _sharded(self, what: str, parameters: float, at: int, ends: bool, gathers: float, axis: str = "dp",
                 ranks: int | None = None) -> None:  # fmt: skip
        layout, p = self.layout, self.estimator.precision
        ranks = layout.shards if ranks is None else ranks
        overlap = f"{self.estimator.cluster.efficiency.dp_overlap:.0%} behind the backward"
        width = p.gradient if layout.zero == 1 else p.parameter
        times = self._reductions(ends)
        self.add(axis, "reduce_scatter", f"gradients of {what}", (parameters,), width, ranks, at, times, overlap)
        self.add(axis, "all_reduce", f"shards of gradients of {what}, over replicas", (parameters / ranks,), width,
                 layout.replicas, at * ranks, times, overlap)  # fmt: skip
        self.add(axis, "all_gather", f"parameters of {what}", (parameters,), p.parameter, ranks, at,
                 gathers if layout.zero == 3 else 1, overlap)  # fmt: skip

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
        self.add("dp", "all_reduce", "token count and loss", (1,), 8, layout.dp * layout.cp, stride, 2)
        self.add("pp", "all_reduce", "loss", (1,), 8, layout.pp, layout.stride("pp"), 1)
        self.add("world", "all_reduce", "norm of the gradient", (1,), 8, layout.world_size, 1, 1)


def bytes_by_axis(lines: list[Line]) -> dict[str, float]:
    """Bytes that the rank sends in a step, by axis."""
    total: dict[str, float] = {}
    for line in lines:
        total[line.axis] = total.get(line.axis, 0.0) + line.bytes_sent
    return total
