"""What a collective sends and how long it takes: ring, tree and hierarchical, alpha + bytes / bandwidth by level.

S is the size of the full tensor in bytes (all-reduce: the tensor; all-gather: the result; reduce-scatter: the input;
all-to-all: one rank's input), n the ranks of the group.
"""

import math
from collections.abc import Sequence

from distributed.planner.machines import Cluster, Level


def bytes_sent(kind: str, size: float, ranks: int) -> float:
    """Bytes each rank sends: all-reduce 2 (n-1)/n S; reduce-scatter, all-gather, all-to-all (n-1)/n S; p2p S."""
    if ranks <= 1:
        return 0.0
    if kind == "p2p":
        return size
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks * size


def spread(cluster: Cluster, ranks: int, stride: int) -> tuple[int, ...]:
    """How a group of `ranks` at distance `stride` lies on the levels: its fan-out per level, whose product is `ranks`.

    8 ranks at stride 2 on nodes of 8: 4 inside a node, 2 nodes.
    """
    fan_outs, left, reach = [], ranks, 1
    for level in cluster.levels:
        domain = level.ranks or stride * ranks
        inside = max(1, min(ranks, domain // stride) // reach) if stride < domain else 1
        inside = min(inside, left)
        fan_outs.append(inside)
        left = math.ceil(left / inside)
        reach *= inside
    fan_outs[-1] *= left
    return tuple(fan_outs)


def crossing(fan_outs: Sequence[int]) -> int:
    """The outermost level that a group uses, as an index into the cluster's levels."""
    return max((index for index, count in enumerate(fan_outs) if count > 1), default=0)


def ring_s(kind: str, size: float, ranks: int, level: Level) -> float:
    """Seconds of a ring: n-1 steps of S/n, twice for an all-reduce."""
    alpha_s, bytes_per_s = level.of(kind)
    return ring_steps(kind, ranks) * alpha_s + bytes_sent(kind, size, ranks) / bytes_per_s


def ring_steps(kind: str, ranks: int) -> int:
    """Messages that follow on each other: n - 1, twice for an all-reduce; one for point to point."""
    return 1 if kind == "p2p" else (2 if kind == "all_reduce" else 1) * (ranks - 1)


def tree_s(size: float, ranks: int, level: Level) -> float:
    """Seconds of an all-reduce over a binary tree: 2 log2 n hops, each rank sends the tensor up and down."""
    return 2 * math.ceil(math.log2(ranks)) * level.alpha_us * 1e-6 + 2 * size / level.bytes_per_s


def collective_s(kind: str, size: float, fan_outs: Sequence[int], cluster: Cluster) -> float:
    """Seconds of one collective of a group that lies on the levels as `fan_outs` says.

    Within one level the faster of ring and tree. Over several, hierarchically: reduce-scatter inside, the outer level on
    the 1/inside part that each rank then holds, all-gather inside. An all-to-all sends to each level what is addressed there.
    Where ranks share cores, each waits for its turn: all of it takes `crowd` times as long.
    """
    return cluster.crowd * _own_cores_s(kind, size, fan_outs, cluster)


def _own_cores_s(kind: str, size: float, fan_outs: Sequence[int], cluster: Cluster) -> float:
    total, part, ranks = 0.0, size, math.prod(fan_outs)
    if ranks <= 1 or size <= 0:
        return 0.0
    if kind == "p2p":
        return ring_s(kind, size, ranks, cluster.levels[crossing(fan_outs)])
    inside = 1
    for level, count in zip(cluster.levels, fan_outs):
        if count == 1:
            continue
        if kind == "all_to_all":
            share = size * inside * (count - 1) / ranks
            alpha_s, bytes_per_s = level.of(kind)
            total += (count - 1) * alpha_s + share / bytes_per_s
        else:
            seconds = ring_s(kind, part, count, level)
            # What was timed is timed whole: which way the library takes is in the figures.
            either = kind == "all_reduce" and not level.measured
            total += min(seconds, tree_s(part, count, level)) if either else seconds
            part /= count
        inside *= count
    return total
