"""Seconds of the platform's own transformer on a calibrated machine: what a rank computes, counted, times what was measured.

Calibration counts its sweeps with the same functions, so a machine's constants and their use cannot drift apart.
Legend: T = tokens of one micro-batch on one rank, t = tp, h = hidden, s = sequence.
"""

from dataclasses import dataclass

from distributed.planner.collectives import collective_s, spread
from distributed.planner.layout import Layout
from distributed.planner.machines import Cluster, Kernels
from distributed.planner.models import Model
from distributed.planner.timing import PassTimes, matmul_s


@dataclass(frozen=True)
class Work:
    """What one rank computes in one layer's forward: `products` as (how many, rows, inner, columns) and the elements that

    `Kernels` prices. The backward has every product twice. A score is one of 64 channels; its products are in its price.
    """

    products: tuple[tuple[float, float, float, float], ...]
    values: float
    scores: float
    routed: float


def attended_share(model: Model, layout: Layout) -> float:
    """Share of the square of scores that counts: all of it where a rank has whole sequences, whatever its kernel leaves out.

    Of a ring of r, blocks that nobody sees are left out; halves of each rank's tokens are looked at apart. Zig-zag: 3 of 4
    blocks of its own, 2 of 4 of each other rank's, (2r + 1) / 4r; contiguous: the last rank sees all but one of its own.
    """
    ring = layout.cp // layout.ulysses
    if ring == 1 or not model.causal:
        return 1.0
    return (2 * ring + 1) / (4 * ring) if layout.zigzag else (4 * ring - 1) / (4 * ring)


def layer_work(model: Model, layout: Layout, moe: bool = False) -> Work:
    """Counts of one layer and one micro-batch."""
    t, h, b = layout.tp, model.hidden, layout.micro_batch
    tokens = b * model.sequence / layout.cp
    q, keys = model.query_width / t, model.key_width / min(t, model.key_heads)
    products = [(1.0, tokens, h, q), (2.0, tokens, h, keys), (1.0, tokens, q, h)]
    ring = layout.cp // layout.ulysses
    heads, channels = model.heads / t / layout.ulysses, model.query_width / model.heads
    share, queries = attended_share(model, layout), model.sequence / ring
    scores = b * heads * queries * model.sequence * share * channels / 64
    whole = t if layout.sequence_parallel else 1
    values = tokens * (10 * h / whole + 8 * (q + keys))
    routed = 0.0
    if moe and model.experts:
        e = model.experts
        mine = tokens / whole
        rows = mine * e.top_k * layout.ep / e.count
        held = e.count / layout.ep
        products += [(held, rows, h, model.up_matrices * e.ffn), (held, rows, e.ffn, h), (1.0, mine, h, e.count)]
        if e.shared_ffn:
            products += [(1.0, mine, h, model.up_matrices * e.shared_ffn), (1.0, mine, e.shared_ffn, h)]
        routed = mine * e.top_k * (h + e.ffn)
    else:
        products += [(model.up_matrices, tokens, h, model.width / t), (1.0, tokens, model.width / t, h)]
        values += tokens * 3 * model.width / t
    return Work(tuple(products), values, scores, routed)


def products_s(products: tuple[tuple[float, float, float, float], ...], cluster: Cluster, dtype: str) -> float:
    """Seconds of the products, each as often as it is there."""
    return sum(n * matmul_s(rows, inner, columns, cluster, dtype) for n, rows, inner, columns in products)


def layer_times(model: Model, layout: Layout, cluster: Cluster, width: int, moe: bool = False,
                dtype: str | None = None) -> PassTimes:  # fmt: skip
    """One layer, one micro-batch, one rank; values of `width` bytes are sent.

    In a pipeline a rank's times are its own core's: who waits for a core is a matter of the simulation.
    """
    k, kind = _kernels(cluster), dtype or cluster.training_dtype
    work, ring = layer_work(model, layout, moe), layout.cp > layout.ulysses
    crowd = cluster.crowd if layout.pp == 1 else 1.0
    gemm = products_s(work.products, cluster, kind)
    forward = 1e-9 * (work.values * k.value_forward_ns + work.routed * k.routed_forward_ns) + 1e-6 * k.layer_forward_us
    backward = (
        1e-9 * (work.values * k.value_backward_ns + work.routed * k.routed_backward_ns) + 1e-6 * k.layer_backward_us
    )
    if work.routed:
        forward, backward = forward + 1e-6 * k.sparse_forward_us, backward + 1e-6 * k.sparse_backward_us
    attention = 1e-9 * work.scores * (k.ring_forward_ns if ring else k.score_forward_ns)
    attention_backward = 1e-9 * work.scores * (k.ring_backward_ns if ring else k.score_backward_ns)
    sent_forward, sent_backward = layer_communication_s(model, layout, cluster, width, moe, crowd * attention)
    first = crowd * (gemm + forward + attention) + sent_forward
    # Selective recompute keeps the results of products and runs the rest again.
    again = {"none": 0.0, "full": first, "selective": crowd * (forward + attention) + sent_forward}[layout.recompute]
    parts = k.split if layout.schedule.startswith(("zb-", "dualpipe")) and layout.pp > 1 else 1.0
    inputs = parts * crowd * (gemm + backward + attention_backward) + sent_backward
    exposed = sent_forward * (2 if again else 1) + sent_backward
    return PassTimes(
        first, inputs + again, parts * crowd * gemm, exposed, max(0.0, again - sent_forward if again else 0.0)
    )


def layer_communication_s(model: Model, layout: Layout, cluster: Cluster, width: int, moe: bool, attention_s: float
                          ) -> tuple[float, float]:  # fmt: skip
    """Seconds of (forward, backward) communication of one layer that computing does not hide."""
    t, b = layout.tp, layout.micro_batch
    tokens = b * model.sequence / layout.cp
    size = width * tokens * model.hidden
    forward = backward = 0.0
    if t > 1:
        fan = spread(cluster, t, layout.stride("tp"))
        kinds = ("all_gather", "reduce_scatter") if layout.sequence_parallel else ("all_reduce",)
        region = sum(collective_s(kind, size, fan, cluster) for kind in kinds)
        regions = 1 if moe and model.experts else 2
        forward, backward = regions * region, regions * region
    if layout.cp > 1:
        more = _context_s(model, layout, cluster, width, tokens, attention_s)
        forward, backward = forward + more[0], backward + more[1]
    if moe and model.experts and layout.ep > 1:
        fan = spread(cluster, layout.ep, layout.stride("dp") if layout.cp == 1 else layout.stride("cp"))
        routed = size * model.experts.top_k / (t if layout.sequence_parallel else 1)
        exchange = collective_s("all_to_all", routed, fan, cluster)
        forward += 2 * exchange + collective_s("all_to_all", 8.0 * model.experts.count, fan, cluster)
        backward += 2 * exchange
    return forward, backward


def _context_s(model: Model, layout: Layout, cluster: Cluster, width: int, tokens: float, attention_s: float
               ) -> tuple[float, float]:  # fmt: skip
    inner, ring, at = layout.ulysses, layout.cp // layout.ulysses, layout.stride("cp")
    q, keys = model.query_width / layout.tp, model.key_width / min(layout.tp, model.key_heads)
    keys *= max(1.0, inner / max(1.0, model.key_heads / layout.tp))
    fan = spread(cluster, inner, at)
    swaps = 2 * collective_s("all_to_all", width * tokens * q, fan, cluster)
    swaps += 2 * collective_s("all_to_all", width * tokens * keys, fan, cluster)
    if ring == 1:
        return swaps, swaps
    step = collective_s("p2p", 2 * width * tokens * keys, spread(cluster, ring, at * inner), cluster)
    # The next keys are under way while the present ones are attended to; gradients are waited for at every step.
    keys_s = max(0.1 * (ring - 1) * step, (ring - 1) * step - attention_s)
    return swaps + keys_s, swaps + keys_s + ring * step


def end_times(model: Model, layout: Layout, cluster: Cluster, width: int, dtype: str | None = None
              ) -> tuple[PassTimes, PassTimes]:  # fmt: skip
    """(embedding; final norm, logits and loss) of one micro-batch."""
    k, kind = _kernels(cluster), dtype or cluster.training_dtype
    crowd = cluster.crowd if layout.pp == 1 else 1.0
    tokens = layout.micro_batch * model.sequence / layout.cp
    columns, size = model.vocab / layout.tp, width * tokens * model.hidden
    fan = spread(cluster, layout.tp, layout.stride("tp"))
    kinds = ("all_gather", "reduce_scatter") if layout.sequence_parallel else ("all_reduce", None)
    gather, scatter = (0.0 if one is None else collective_s(one, size, fan, cluster) for one in kinds)
    product = matmul_s(tokens, model.hidden, columns, cluster, kind)
    logits = 0.5e-9 * tokens * columns * k.logit_ns + 0.25e-6 * k.end_us
    loss = 2 * collective_s("all_reduce", 4.0 * tokens, fan, cluster)
    entry = crowd * 0.25e-6 * k.end_us
    # The embedding's output is summed over tensor ranks forward; the head's input gathers forward, is summed backward.
    summed = scatter if layout.sequence_parallel else gather
    gathered = gather if layout.sequence_parallel else 0.0
    return (
        PassTimes(entry + summed, entry + gathered, 0.0, summed + gathered),
        PassTimes(crowd * (product + logits) + gathered + loss, crowd * (product + logits) + summed, crowd * product,
                  gathered + loss + summed),
    )  # fmt: skip


def update_s(parameters: float, cluster: Cluster) -> float:
    """The gradient's norm, clipping and AdamW over this rank's parameters."""
    k = _kernels(cluster)
    return cluster.crowd * (1e-6 * k.update_us + 1e-9 * k.update_ns * parameters)


def scalars_s(layout: Layout, cluster: Cluster) -> float:
    """The token count, the loss and the gradient's norm of a step."""
    data = collective_s("all_reduce", 8.0, spread(cluster, layout.shards, layout.stride("dp")), cluster)
    whole = collective_s("all_reduce", 8.0, spread(cluster, layout.world_size, 1), cluster)
    stages = collective_s("all_reduce", 8.0, spread(cluster, layout.pp, layout.stride("pp")), cluster)
    return 2 * data + whole + stages


def _kernels(cluster: Cluster) -> Kernels:
    assert cluster.kernels is not None, "only a calibrated cluster times the platform's own layers"
    return cluster.kernels
