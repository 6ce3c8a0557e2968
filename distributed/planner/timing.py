"""Seconds of one layer, of the ends, of one optimizer step: products on an efficiency curve, element-wise work on memory
bandwidth, collectives on their levels.

Legend: T = tokens of one micro-batch on one rank, t = tp, h = hidden, f = feed-forward width, q and k the widths of
queries and of keys, s = sequence.
"""

from dataclasses import dataclass

from distributed.planner.collectives import collective_s, spread
from distributed.planner.layout import Layout
from distributed.planner.machines import Cluster
from distributed.planner.models import Model

# Bytes that element-wise kernels of the backward move for each byte that the forward's move: they read the incoming
# gradient and the saved input where the forward reads one tensor.
BACKWARD_TRAFFIC = 1.5


@dataclass(frozen=True)
class PassTimes:
    """Seconds of forward, of the gradient of inputs, and of the gradient of weights; `exposed` is communication in F + B.

    `again` is the part of the backward that recomputes.
    """

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0
    exposed: float = 0.0
    again: float = 0.0

    @property
    def total(self) -> float:
        """Forward and whole backward."""
        return self.forward + self.backward_input + self.backward_weight

    def __add__(self, other: "PassTimes") -> "PassTimes":
        return PassTimes(*(a + b for a, b in zip(self._values(), other._values())))

    def __mul__(self, times: float) -> "PassTimes":
        return PassTimes(*(a * times for a in self._values()))

    def _values(self) -> tuple[float, ...]:
        return self.forward, self.backward_input, self.backward_weight, self.exposed, self.again


def matmul_s(rows: float, inner: float, columns: float, cluster: Cluster, dtype: str) -> float:
    """Seconds of (rows, inner) x (inner, columns): the slower of arithmetic on the efficiency curve and of memory."""
    if min(rows, inner, columns) <= 0:
        return 0.0
    e = cluster.efficiency
    share = e.matmul / (1 + e.half_size * (1 / rows + 1 / inner + 1 / columns))
    arithmetic = 2.0 * rows * inner * columns / (cluster.peak(dtype) * share)
    width = {"fp32": 4.0, "fp64": 8.0, "fp8": 1.5}.get(dtype, 2.0)
    return max(arithmetic, elementwise_s(width * (rows * inner + inner * columns + rows * columns), cluster))


def elementwise_s(bytes_moved: float, cluster: Cluster) -> float:
    """Seconds of kernels bound by memory."""
    return bytes_moved / (cluster.memory_gb_per_s * 1e9 * cluster.efficiency.memory)


def attention_core_s(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Seconds of scores, softmax and weighted values of one layer, forward.

    Without flash attention the whole square is computed and passes through memory: both products write or read it once,
    softmax reads and writes it, dropout reads, writes and keeps a mask. Flash attention computes the causal half.
    """
    tokens = layout.micro_batch * model.sequence / layout.cp
    flops = 4.0 * tokens * model.sequence * model.query_width / layout.tp
    arithmetic = cluster.peak(cluster.training_dtype) * cluster.efficiency.attention
    if model.flash:
        return 0.5 * flops / arithmetic
    square = tokens * model.sequence * model.heads / layout.tp
    products = max(flops / arithmetic, elementwise_s(4.0 * square, cluster))
    return products + elementwise_s((4.0 + (5.0 if model.dropout else 0.0)) * square, cluster)


def layer_times(
    model: Model, layout: Layout, cluster: Cluster, moe: bool = False, dtype: str | None = None
) -> PassTimes:
    """One transformer layer, one micro-batch, on one rank."""
    kind = dtype or cluster.training_dtype
    t, h, q, k = layout.tp, model.hidden, model.query_width, model.key_width
    tokens = layout.micro_batch * model.sequence / layout.cp
    keys = k / min(t, model.key_heads)
    products = [(tokens, h, q / t + 2 * keys), (tokens, q / t, h)]
    repeats = [1.0, 1.0]
    if moe and model.experts:
        e = model.experts
        rows = tokens * e.top_k * layout.ep / e.count
        products += [(rows, h, model.up_matrices * e.ffn / t), (rows, e.ffn / t, h), (tokens, h, e.count)]
        repeats += [e.count / layout.ep, e.count / layout.ep, 1.0]
        if e.shared_ffn:
            products += [(tokens, h, model.up_matrices * e.shared_ffn / t), (tokens, e.shared_ffn / t, h)]
            repeats += [1.0, 1.0]
        wide = e.top_k * e.ffn + e.shared_ffn
    else:
        products += [(tokens, h, model.up_matrices * model.width / t), (tokens, model.width / t, h)]
        repeats += [1.0, 1.0]
        wide = model.width
    forward_gemm = sum(n * matmul_s(*shape, cluster, kind) for n, shape in zip(repeats, products))
    input_gemm = sum(n * matmul_s(r, c, i, cluster, kind) for n, (r, i, c) in zip(repeats, products))
    weight_gemm = sum(n * matmul_s(i, r, c, cluster, kind) for n, (r, i, c) in zip(repeats, products))
    core = attention_core_s(model, layout, cluster)
    core_backward = core * (2.5 if model.flash else 2.0)
    whole = t if layout.sequence_parallel else 1
    replicated = (20.0 + (2.0 if model.dropout else 0.0)) * h / whole
    split = (4.0 * (q + 2 * k) + 4.0 * q + 2.0 * (model.up_matrices + 1) * wide) / t
    if kind == "fp8":
        # Every product's input is read for its largest value, read again and written as fp8; so are the weights.
        inputs = tokens * sum(n * shape[1] for n, shape in zip(repeats, products) if shape[0] == tokens)
        split += 5.0 * (inputs + sum(n * i * c for n, (_, i, c) in zip(repeats, products))) / tokens
    moved = elementwise_s(tokens * (replicated + split), cluster)
    tp_s, other_s = _layer_communication_s(model, layout, cluster, moe, tokens)
    hidden = min(cluster.efficiency.tp_overlap * tp_s, weight_gemm)
    forward = forward_gemm + core + moved + tp_s + other_s
    backward = input_gemm + core_backward + BACKWARD_TRAFFIC * moved + tp_s - hidden + other_s
    again = {"none": 0.0, "full": forward, "selective": core}[layout.recompute]
    exposed = 2 * (tp_s + other_s) - hidden + (tp_s + other_s if layout.recompute == "full" else 0.0)
    return PassTimes(forward, backward + again, weight_gemm, exposed, again)


def _layer_communication_s(
    model: Model, layout: Layout, cluster: Cluster, moe: bool, tokens: float
) -> tuple[float, float]:
    """Seconds of (tensor-parallel, context- and expert-parallel) communication of one layer's forward."""
    t, size = layout.tp, 2.0 * tokens * model.hidden
    tp_s = 2 * collective_s("all_reduce", size, spread(cluster, t, layout.stride("tp")), cluster) if t > 1 else 0.0
    other = 0.0
    if layout.cp > 1:
        # Keys and values travel round the ring while the previous ones are attended to; what is longer than that shows.
        kv = 2 * 2.0 * tokens * model.key_width / min(t, model.key_heads)
        step = collective_s("p2p", kv, spread(cluster, layout.cp, layout.stride("cp")), cluster)
        ring = (layout.cp - 1) * step
        other += max(0.1 * ring, ring - attention_core_s(model, layout, cluster))
    if moe and model.experts and layout.ep > 1:
        factor = model.experts.top_k * (model.experts.capacity_factor or 1.0)
        fan = spread(cluster, layout.ep, layout.stride("dp") if layout.cp == 1 else layout.stride("cp"))
        other += 2 * collective_s("all_to_all", size * factor / (t if layout.sequence_parallel else 1), fan, cluster)
    return tp_s, other


def head_times(model: Model, layout: Layout, cluster: Cluster) -> PassTimes:
    """Final norm, logits and loss in fp32 of one micro-batch, on the last stage."""
    if not model.layers or not model.vocab:
        return PassTimes()
    kind = cluster.training_dtype
    tokens, columns = layout.micro_batch * model.sequence / layout.cp, model.vocab / layout.tp
    loss = elementwise_s(tokens * columns * 16.0, cluster)
    product = matmul_s(tokens, model.hidden, columns, cluster, kind)
    return PassTimes(product + loss, product + loss, matmul_s(model.hidden, tokens, columns, cluster, kind))


def entry_times(model: Model, layout: Layout, cluster: Cluster) -> PassTimes:
    """Token embedding, embedding tables (two all-to-alls of the pooled rows) and MLPs of one micro-batch, first stage."""
    times = outside_layers_times(model, layout, cluster)
    if model.layers:
        tokens = layout.micro_batch * model.sequence / layout.cp
        moved = elementwise_s(6.0 * tokens * model.hidden, cluster)
        times += PassTimes(moved, moved, 0.0)
    return times


def outside_layers_times(model: Model, layout: Layout, cluster: Cluster, dtype: str | None = None) -> PassTimes:
    """Embedding tables and MLPs of one micro-batch."""
    samples, kind = layout.micro_batch, dtype or cluster.training_dtype
    times = PassTimes()
    rows = sum(table.lookups * table.dim for table in model.tables) * samples * 4.0
    if rows:
        fan = spread(cluster, layout.world_size, 1)
        sent = collective_s("all_to_all", rows, fan, cluster)
        moved = elementwise_s(3.0 * rows, cluster)
        times += PassTimes(moved + sent, 2 * moved + sent, 0.0, 2 * sent)
    for mlp in model.mlps:
        for inner, columns in zip(mlp.widths, mlp.widths[1:]):
            rows = samples * mlp.rows
            one = mlp.copies * matmul_s(rows, inner, columns, cluster, kind)
            times += PassTimes(one, one, mlp.copies * matmul_s(inner, rows, columns, cluster, kind))
    return times


def optimizer_s(parameters: float, cluster: Cluster) -> float:
    """Adam over the rank's share: reads gradient, master copy and moments, writes the latter three and the bf16 copy."""
    return elementwise_s((4.0 + 12.0 + 12.0 + 2.0) * parameters, cluster)
