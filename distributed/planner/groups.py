"""Which ranks form the groups of each axis, and which nodes each group crosses."""

from distributed.planner.layout import Layout
from distributed.planner.machines import Cluster

AXES = ("tp", "cp", "dp", "pp")


def axis_groups(layout: Layout, axis: str) -> list[list[int]]:
    """Rank lists of all groups of `axis`, in order of their first rank. `ep` groups are runs of ranks along dp x cp."""
    if axis == "ep":
        if layout.ep == 1:
            return [[rank] for rank in range(layout.world_size)]
        joined = _joined(layout)
        return [group[i : i + layout.ep] for group in joined for i in range(0, len(group), layout.ep)]
    stride, size = layout.stride(axis), getattr(layout, axis)
    starts = [rank for rank in range(layout.world_size) if rank // stride % size == 0]
    return [[start + i * stride for i in range(size)] for start in starts]


def _joined(layout: Layout) -> list[list[int]]:
    """Groups over cp and dp together, cp innermost."""
    cp_at, dp_at = layout.stride("cp"), layout.stride("dp")
    starts = [r for r in range(layout.world_size) if r // cp_at % layout.cp == 0 and r // dp_at % layout.dp == 0]
    return [[s + d * dp_at + c * cp_at for d in range(layout.dp) for c in range(layout.cp)] for s in starts]


def nodes_of(group: list[int], per_node: int) -> list[int]:
    """Nodes that a group touches, in order."""
    return sorted({rank // per_node for rank in group})


def placement(layout: Layout, cluster: Cluster, most_groups: int = 64) -> dict[str, dict[str, object]]:
    """Per axis above 1: group size, how many groups, nodes a group crosses, and the groups with their nodes.

    Groups are listed up to `most_groups` an axis.
    """
    found: dict[str, dict[str, object]] = {}
    for axis in (*AXES, "ep"):
        size = getattr(layout, axis)
        if size == 1:
            continue
        groups = axis_groups(layout, axis)
        crossed = [nodes_of(group, cluster.per_node) for group in groups]
        found[axis] = {
            "ranks": size,
            "groups": len(groups),
            "most_nodes": max(len(nodes) for nodes in crossed),
            "listed": [{"ranks": group, "nodes": nodes} for group, nodes in zip(groups, crossed)][:most_groups],
        }
    return found
