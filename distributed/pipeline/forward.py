"""Forwards alone through a pipeline: what the last stage makes of micro-batches, without gradients."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from distributed.groups import Group
from distributed.pipeline.messages import Messages, needed, produced
from distributed.planner.schedules import Schedule


def run_forwards(schedule: Schedule, stages: Mapping[int, nn.Module], batches: Sequence[Any],
                 end: Callable[[torch.Tensor, Any], torch.Tensor], group: Group,
                 device: torch.device | None = None) -> list[torch.Tensor]:  # fmt: skip
    """`end(output of the last stage, micro-batch)` of every micro-batch, in order, on the rank that holds the last stage;
    nothing on the others. The arguments are those of `run_pipeline`; losses of the stages' own are left out."""
    # Forwards wait for forwards alone, so that they can keep the order that they have in the schedule.
    alone = dataclasses.replace(
        schedule,
        orders=tuple(tuple((op,) for slot in order for op in slot if op.kind == "F") for order in schedule.orders),
    )
    last = len(schedule.paths[0]) - 1
    mail = Messages(alone, group, device or torch.device("cpu"))
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for (op,) in alone.orders[group.index]:
            key = needed(op, last)
            given = None if key is None else mail.take(key, op.stage - 1)
            answer = stages[op.stage](given, batches[op.micro])
            output = answer[0] if isinstance(answer, tuple) else answer
            sent = produced(op, last)
            if sent is None:
                found[op.micro] = end(output, batches[op.micro])
            else:
                mail.put(sent, output)
    mail.finish()
    return [found[micro] for micro in sorted(found)]
