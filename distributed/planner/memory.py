"""Bytes that one rank of one pipeline stage holds: model states under ZeRO, activations in flight, buffers.

Legend: T = micro-batch x sequence / cp, the tokens of one micro-batch on one rank; t = tp; bytes are of bf16/fp16 values.
"""

from dataclasses import dataclass

from distributed.planner.activations import kept_bytes, layer_kept_bytes
from distributed.planner.layout import Layout
from distributed.planner.models import Model


@dataclass(frozen=True)
class Precision:
    """Bytes a parameter: the working copy, its gradient, and the optimizer's (Adam: fp32 copy and two moments, K = 12).

    `activation`: bytes of a value that is sent between ranks.
    """

    parameter: int = 2
    gradient: int = 4
    optimizer: int = 12
    activation: int = 2

    @classmethod
    def of(cls, dtype: str) -> "Precision":
        """Mixed precision for the lower types; one type for all, and Adam's two moments, in fp32 and fp64."""
        width = {"fp32": 4, "fp64": 8}.get(dtype)
        return cls(width, width, 2 * width, width) if width else cls()


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one rank; `total` is their sum."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers


def zero_states(dense: float, expert: float, layout: Layout, precision: Precision) -> tuple[float, float, float]:
    """(parameters, gradients, optimizer) in bytes of a rank whose tensor and expert shards hold that many parameters.

    Stage 1 spreads the optimizer, 2 the gradients too, 3 the parameters too; dense ones over dp x cp, experts over
    dp x cp / ep (Rajbhandari et al. 2019).
    """

    def spread(bytes_each: int, from_stage: int) -> float:
        whole = layout.zero < from_stage
        return bytes_each * (
            dense / (1 if whole else layout.shards) + expert / (1 if whole else layout.shards // layout.ep)
        )

    return spread(precision.parameter, 3), spread(precision.gradient, 2), spread(precision.optimizer, 1)


def stage_parameters(
    model: Model, layout: Layout, layers: int, first: bool, last: bool, moe_layers: int | None = None
) -> tuple[float, float]:
    """(dense, expert) parameters that a rank of a stage of `layers` layers holds before ZeRO.

    Matrices are split over tp, kv heads repeat where tp exceeds them, norms and the biases of row-split matrices are
    whole. A tied embedding is held by the first and by the last stage.
    """
    t, h = layout.tp, model.hidden
    moe = model.moe_layers * layers / max(model.layers, 1) if moe_layers is None else moe_layers
    keys = model.key_width / min(t, model.key_heads) if model.layers else 0
    q = model.query_width / t
    attention = h * (q + 2 * keys) + q * h + (q + 2 * keys + h if model.biases else 0)

    def feed_forward(width: float) -> float:
        return (model.up_matrices + 1) * h * width / t + (model.up_matrices * width / t + h if model.biases else 0)

    dense = layers * (attention + model.norm_parameters) + (layers - moe) * feed_forward(model.width)
    expert = 0.0
    if model.experts:
        e = model.experts
        shared = model.shared_parameters if model.platform else feed_forward(e.shared_ffn) if e.shared_ffn else 0
        dense += moe * (h * e.count + shared)
        # The platform leaves experts whole over tp.
        expert = moe * e.count / layout.ep * (model.expert_parameters if model.platform else feed_forward(e.ffn))
    vocabulary = -(-model.vocab // t) * h
    if first and model.layers:
        dense += vocabulary + (model.sequence * h if model.learned_positions else 0)
    if last and model.layers:
        tied_elsewhere = model.tied and first
        dense += (0 if tied_elsewhere else vocabulary) + model.final_norm_parameters
    if first:
        dense += model.mlp_parameters
    return dense, expert


def end_units(model: Model, layout: Layout, first: bool, last: bool) -> list[float]:
    """Parameters of the ends that a rank holds, by what travels together: a tied embedding in two stages lies apart."""
    both, _ = stage_parameters(model, layout, 0, first, last)
    shared = model.platform and model.tied and first != last
    table = -(-model.vocab // layout.tp) * model.hidden if shared else 0
    return [part for part in (table, both - table) if part]


def filled(model: Model, layout: Layout, parameters: float) -> float:
    """The platform's flat buffers are filled up to a multiple of the shards."""
    n = layout.shards
    return -(-round(parameters) // n) * n if model.platform and layout.zero else parameters


def held_states(
    model: Model, layout: Layout, layers: int, stage: int, precision: Precision
) -> tuple[float, float, float]:
    """(parameters, gradients, optimizer) in bytes of a rank of pipeline rank `stage`, as the platform holds them.

    Exact: each layer and end is a buffer of its own, filled up to the shards. Experts are shared out over the data ranks
    already and stay whole. Gradients are those between micro-batches: shards from stage 2 on.
    """
    first, last = ends_of(layout, stage)
    each, _ = stage_parameters(model, layout, 1, False, False, 1 if model.experts else 0)
    _, expert = stage_parameters(model, layout, layers, False, False)
    units = [each] * layers + end_units(model, layout, first, last)
    whole, whole_filled = sum(units), sum(filled(model, layout, unit) for unit in units)
    shard = whole_filled / layout.shards if layout.zero else whole
    return (
        precision.parameter * ((shard if layout.zero == 3 else whole_filled) + expert),
        precision.gradient * ((shard if layout.zero >= 2 else whole) + expert),
        precision.optimizer * (shard + expert),
    )


def ends_of(layout: Layout, stage: int) -> tuple[bool, bool]:
    """Whether a pipeline rank holds (the first, the last) stage of the model; both lie on rank 0 of a V."""
    if layout.pp > 1 and layout.schedule in ("zb-v", "dualpipe-v"):
        return stage == 0, stage == 0
    return stage == 0, stage == layout.pp - 1


def table_bytes(model: Model, layout: Layout) -> float:
    """Embedding tables, spread by rows over all ranks: fp32 rows and one fp32 moment a row (row-wise Adagrad)."""
    return sum(4.0 * table.rows * (table.dim + 1) for table in model.tables) / layout.world_size


def layer_activation_bytes(model: Model, layout: Layout, moe: bool = False, recompute: str | None = None) -> float:
    """Bytes that one layer keeps for the backward of one micro-batch.

    For a plain transformer with dropout and without flash attention: none s b h (34 + 5 a s / h); TP
    s b h (10 + 24/t + 5 a s / (h t)); with SP all of it / t; selective drops 5 a s; full 2 s b h (Korthikanti et al. 2022).
    """
    mode = recompute or layout.recompute
    t, h = layout.tp, model.hidden
    tokens = layout.micro_batch * model.sequence / layout.cp
    whole = t if layout.sequence_parallel else 1
    if mode == "full":
        return 2.0 * tokens * h / whole
    # Inputs of both norms, of attention and of the feed-forward; one-byte dropout masks after each half.
    replicated = (8.0 + (2.0 if model.dropout else 0.0)) * h
    split = 2.0 * model.query_width * 2 + 2.0 * 2 * model.key_width * max(1, t // max(1, model.key_heads))
    if model.flash:
        split += 4.0 * model.heads
    elif mode == "none":
        split += (5.0 if model.dropout else 2.0) * model.heads * model.sequence
    halves = model.up_matrices + 1
    if moe and model.experts:
        e = model.experts
        factor = e.top_k * (e.capacity_factor or 1.0)
        split += factor * (2.0 * halves * e.ffn + 4.0 * h * t) + 2.0 * halves * e.shared_ffn
        replicated += 4.0 * e.count
    else:
        split += 2.0 * halves * model.width
    return tokens * (replicated / whole + split / t)


def in_flight(schedule: str, pp: int, stage: int, micro_batches: int, virtual: int = 1) -> float:
    """Micro-batches whose activations a stage's rank holds at its peak, in units of the rank's whole share of layers."""
    m, left = micro_batches, pp - stage
    if pp == 1:
        return min(m, 1) if schedule != "gpipe" else m
    held = {
        "gpipe": m,
        "1f1b": left,
        "interleaved": (2 * (left - 1) + (virtual - 1) * pp + 1) / virtual,
        "zb-h1": pp,
        "zb-h2": 2 * pp - 1,
        "zb-v": pp,
        "dualpipe": pp + 1,
        "dualpipe-v": pp + 0.5,
    }[schedule]
    return min(m, held)


def stage_memory(model: Model, layout: Layout, layers: int, stage: int, micro_batches: int,
                 precision: Precision | None = None) -> StageMemory:  # fmt: skip
    """Bytes at the peak of a rank of pipeline stage `stage` that holds `layers` layers.

    DualPipe holds two copies of the model. Full recompute adds the working set of the one layer that is being rerun.
    """
    precision = precision or Precision()
    p, copies = layout.pp, 2 if layout.schedule == "dualpipe" and layout.pp > 1 else 1
    first, last = ends_of(layout, stage)
    dense, expert = stage_parameters(model, layout, layers, first, last)
    if model.platform:
        parameters, gradients, optimizer = held_states(model, layout, layers, stage, precision)
    else:
        parameters, gradients, optimizer = zero_states(copies * dense, copies * expert, layout, precision)
    held = in_flight(layout.schedule, p, stage, micro_batches, layout.virtual)
    activations = buffers = 0.0
    tokens = layout.micro_batch * model.sequence / layout.cp
    if model.layers and model.platform:
        activations, buffers = _platform_activations(model, layout, layers, stage, micro_batches, precision)
    elif model.layers:
        moe_share = model.moe_layers / model.layers
        one = (1 - moe_share) * layer_activation_bytes(model, layout)
        one += moe_share * layer_activation_bytes(model, layout, True) if moe_share else 0.0
        activations = held * layers * one
        if layout.recompute != "none":
            again = layer_activation_bytes(model, layout, bool(moe_share), "none") - one
            activations += max(0.0, again)
        whole = layout.tp if layout.sequence_parallel else 1
        if first and model.dropout:
            activations += held * tokens * model.hidden / whole
        if last:
            # Final norm's and head's inputs, and the loss in fp32.
            activations += tokens * (4.0 * model.hidden / whole + 4.0 * model.vocab / layout.tp)
        buffers += 2.0 * tokens * model.hidden * (1 if layout.tp > 1 else 0)
        buffers += 4.0 * tokens * model.hidden / whole * (1 if p > 1 else 0)
        if layout.cp > 1:
            buffers += 2 * 2 * 2.0 * tokens * model.key_width / min(layout.tp, model.key_heads)
        if layout.zero == 3:
            # Two layers are gathered at a time: the one at work and the one prefetched.
            buffers += 2 * precision.parameter * (dense + expert) / max(layers, 1)
    if first:
        samples = layout.micro_batch
        activations += samples * 4.0 * sum(table.lookups * table.dim for table in model.tables)
        activations += samples * 4.0 * sum(mlp.rows * mlp.copies * sum(mlp.widths) for mlp in model.mlps)
    tables = table_bytes(model, layout)
    return StageMemory(parameters + tables, gradients, optimizer, activations, buffers)


def _platform_activations(model: Model, layout: Layout, layers: int, stage: int, micro_batches: int, precision: Precision
                          ) -> tuple[float, float]:  # fmt: skip
    """(activations, buffers) as `activations` counts them; the layer that is run again, and two gathered ones, beside."""
    width, moe = precision.activation, bool(model.moe_layers)
    kept = kept_bytes(model, layout, layers, stage, micro_batches, width)
    if layout.recompute != "none":
        kept += layer_kept_bytes(model, layout, width, moe, "none") - layer_kept_bytes(model, layout, width, moe)
    each, _ = stage_parameters(model, layout, 1, False, False)
    tokens = layout.micro_batch * model.sequence / layout.cp
    ring = 4 * width * tokens * model.key_width / min(layout.tp, model.key_heads) if layout.cp > layout.ulysses else 0.0
    return kept, ring + (2 * precision.parameter * each if layout.zero == 3 else 0.0)
