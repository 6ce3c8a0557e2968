"""What the platform's own transformer keeps for its backward, tensor by tensor: eager PyTorch, fused attention of whole

sequences, blocks of a ring under cp. Published frameworks keep other things; their formulas are in `memory`.
Legend: T = tokens of one micro-batch on one rank, t = tp, h = hidden, q and k the widths of queries and of keys on this
rank, f = feed-forward width. Counts are of values of `width` bytes, whole numbers beside them 8 bytes each.
"""

import dataclasses
from collections.abc import Callable

from distributed.planner.layout import Layout
from distributed.planner.models import Model
from distributed.planner.schedules import build_schedule

_WHOLE_NUMBER = 8


def layer_kept_bytes(
    model: Model, layout: Layout, width: int, moe: bool = False, recompute: str | None = None
) -> float:
    """Bytes that one layer keeps of one micro-batch.

    Dense: T (4 h + 2 (1 + h with dropout)) of residuals, scaled norms and masks, divided by t under sequence parallel, the
    norms' outputs 2 T h whole (gathered ones are kept), 2 q + 2 k + heads of attention, 4 f of the feed-forward. Full keeps
    the layer's input, selective also what its products gave.
    """
    mode = recompute or layout.recompute
    h, tokens = model.hidden, layout.micro_batch * model.sequence / layout.cp
    split = layout.tp if layout.sequence_parallel else 1
    # A ring's slots and documents of the whole sequence.
    whole_numbers = 2 * layout.micro_batch * model.sequence if layout.cp > layout.ulysses else 0.0
    if mode != "none":
        products = _products(model, layout, tokens, moe) if mode == "selective" else 0.0
        return width * (tokens * h / split + products) + _WHOLE_NUMBER * whole_numbers
    q, k = _widths(model, layout)
    residual = 4 * h + 2 + (2 * h if model.dropout else 0)
    kept = tokens * (residual / split + 2 * h + 2 * q + 2 * k + model.heads / layout.tp)
    # Heads swapped back for tokens are a tensor of their own.
    kept += tokens * q if layout.ulysses > 1 else 0.0
    # Without a ring attention is fused, behind a mask of who sees whom.
    kept += layout.micro_batch * model.sequence**2 if layout.cp == layout.ulysses > 1 else 0.0
    if not (moe and model.experts):
        kept += tokens * 4 * model.width / layout.tp
        return width * kept + _WHOLE_NUMBER * whole_numbers
    e, mine = model.experts, tokens / split
    # The second norm's output goes to the router as it is, never gathered.
    kept -= (tokens - mine) * h
    kept += mine * (2 * e.count + 1 + e.top_k * (3 * h + 4 * e.ffn + 2) + 4 * e.shared_ffn)
    return width * kept + _WHOLE_NUMBER * (whole_numbers + mine * (1 + 5 * e.top_k))


def _widths(model: Model, layout: Layout) -> tuple[float, float]:
    """(queries, keys) of this rank's heads, keys repeated where Ulysses ranks outnumber them."""
    heads = model.key_heads / min(layout.tp, model.key_heads)
    return model.query_width / layout.tp, model.key_width / model.key_heads * max(
        heads, layout.ulysses if layout.cp > 1 else 1
    )


def _products(model: Model, layout: Layout, tokens: float, moe: bool) -> float:
    """Values that a layer's matrix products give, those of a ring's blocks among them."""
    h = model.hidden
    keys = model.key_width / min(layout.tp, model.key_heads)
    given = tokens * (model.query_width / layout.tp + 2 * keys + h)
    if moe and model.experts:
        e = model.experts
        mine = tokens / (layout.tp if layout.sequence_parallel else 1)
        given += mine * (e.count + e.top_k * (2 * e.ffn + h) + (2 * e.shared_ffn + h if e.shared_ffn else 0))
    else:
        given += tokens * (2 * model.width / layout.tp + h)
    if layout.cp > layout.ulysses:
        ring = layout.cp // layout.ulysses
        blocks = (2 * ring + 1) if model.causal else 4 * ring
        heads = model.heads / layout.tp / layout.ulysses
        half = model.sequence / ring / 2
        given += blocks * layout.micro_batch * heads * half * (half + model.query_width / model.heads)
    return given


def ends_kept_bytes(model: Model, layout: Layout, width: int, first: bool, last: bool) -> tuple[float, float]:
    """Bytes of one micro-batch that (the embedding, the head and loss) keep; rotary angles are of every stage, see below."""
    h, tokens = model.hidden, layout.micro_batch * model.sequence / layout.cp
    split = layout.tp if layout.sequence_parallel else 1
    entry = width * tokens * (h / split if model.dropout else 0) + _WHOLE_NUMBER * tokens if first else 0.0
    head = 0.0
    if last:
        head = width * tokens * ((2 * h + 1) / split + h + model.vocab / layout.tp) + _WHOLE_NUMBER * tokens
    return entry, head


def angles_bytes(model: Model, layout: Layout, width: int) -> float:
    """Cosines and sines of one micro-batch's positions, which all layers of a stage share."""
    return width * layout.micro_batch * model.sequence / layout.cp * model.query_width / model.heads


def put_off_bytes(model: Model, layout: Layout, width: int, moe: bool = False) -> float:
    """Bytes of one layer and micro-batch whose weight gradients are put off: the gradients of what its products gave."""
    tokens = layout.micro_batch * model.sequence / layout.cp
    whole = dataclasses.replace(layout, cp=1, ulysses=1)
    return width * _products(model, whole, tokens, moe)


def kept_bytes(model: Model, layout: Layout, layers: int, rank: int, micro_batches: int, width: int) -> float:
    """Bytes of activations at the peak of a pipeline rank with `layers` layers.

    By the order of its operations: a forward adds what its stage keeps, a whole backward or a weight gradient takes it
    away, and between the two parts of a backward the gradients of what its products gave lie beside it.
    """
    share, chunks = model.moe_layers / model.layers, layout.chunks if layout.pp > 1 else 1

    def layer(of: Callable[..., float]) -> float:
        dense = of(model, layout, width) * (1 - share)
        return layers / chunks * (dense + (of(model, layout, width, True) * share if share else 0.0))

    inside, put_off = layer(layer_kept_bytes), layer(put_off_bytes)
    angles = angles_bytes(model, layout, width)
    if layout.pp == 1:
        return inside + angles + sum(ends_kept_bytes(model, layout, width, True, True))
    # A pipeline is full after 2 p micro-batches: later ones hold no more, but for GPipe, which holds all.
    m = micro_batches if layout.schedule == "gpipe" else min(micro_batches, 4 * layout.pp)
    schedule = build_schedule(layout.schedule, layout.pp, m, layout.virtual)
    last = len(schedule.paths[0]) - 1
    now = most = 0.0
    for op in (op for slot in schedule.orders[rank] for op in slot):
        kept = inside + sum(ends_kept_bytes(model, layout, width, op.stage == 0, op.stage == last))
        # What it handed on is held until its backward; the first stage's gradients of inputs are no part of their own.
        kept += 0.0 if op.stage == last else width * _residual(model, layout)
        more = put_off if op.stage else 0.0
        now += {"F": kept, "D": -kept, "B": more, "W": -kept - more}[op.kind]
        most = max(most, now)
    # A message asked for ahead and one under way on either side.
    most += 4 * width * _residual(model, layout)
    # Angles and the tokens themselves are every micro-batch's, to the end of the step.
    return most + micro_batches * (angles + 5 * _WHOLE_NUMBER * layout.micro_batch * model.sequence / layout.cp)


def _residual(model: Model, layout: Layout) -> float:
    """Values of what a stage hands to the next."""
    split = layout.tp if layout.sequence_parallel else 1
    return layout.micro_batch * model.sequence / layout.cp * model.hidden / split
