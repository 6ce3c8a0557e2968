"""The whole model's state dict from its parts: shards of data ranks, slices of tp and ep, stages of a pipeline."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from distributed.groups import Mesh
from distributed.placement import Placement, gather_whole
from distributed.sharded_data import ShardedData


def whole_state(module: nn.Module, data: ShardedData, placements: Mapping[str, Placement], mesh: Mesh,
                names: Sequence[str]) -> dict[str, torch.Tensor]:  # fmt: skip
    """Every parameter and buffer on the CPU, in the order of `names`, those of the model before it was cut; the same on
    all ranks, which call it together."""
    with torch.no_grad():
        held = data.whole_by_name(gradients=False)
        found = {name: gather_whole(held[name], placements[name]).cpu() for name in sorted(held)}
    buffers = {name: tensor for name, tensor in module.state_dict().items() if name not in held}
    found.update({name: tensor.detach().cpu().clone() for name, tensor in buffers.items()})
    group = mesh.group("pp")
    if group.size > 1:
        stages: list[dict[str, torch.Tensor]] = [{} for _ in range(group.size)]
        dist.all_gather_object(stages, found, group.handle)
        found = {name: tensor for stage in stages for name, tensor in stage.items()}
    return {name: found[name] for name in names}
