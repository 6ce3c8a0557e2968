"""Every schedule's order of operations, executed with real modules, gives the gradients of one plain backward."""

import pytest
import torch
from torch import nn

from distributed.planner.schedules import build_schedule
from distributed.planner.simulate import StageCost, simulate


def run_in_order(schedule, stages, inputs):
    """Executes the simulated order; F keeps a detached input, B gives its gradient only, W the weights' only."""
    events = simulate(schedule, [StageCost(1.0, 1.1, 0.7)] * len(stages)).events
    slots = sorted((event for rank in events for event in rank), key=lambda event: (event.start, event.end))
    entered, left, handed, per_path = {}, {}, {}, len(inputs) // len(schedule.paths)
    for op in [op for event in slots for op in event.ops]:
        key, last = (op.micro, op.stage, op.path), len(stages) - 1
        stage = stages[op.stage]
        if op.kind == "F":
            came = (
                inputs[op.path * per_path + op.micro]
                if op.stage == 0
                else left[op.micro, op.stage - 1, op.path].detach()
            )
            entered[key] = came.clone().requires_grad_()
            left[key] = stage(entered[key])
            if op.stage == last:
                left[key] = left[key].square().sum()
            continue
        gradient = None if op.stage == last else handed[op.micro, op.stage + 1, op.path]
        if op.kind in "BD":
            (handed[key],) = torch.autograd.grad(left[key], entered[key], gradient, retain_graph=True)
        if op.kind in "WD":
            for parameter, piece in zip(
                stage.parameters(), torch.autograd.grad(left[key], list(stage.parameters()), gradient)
            ):
                parameter.grad = piece if parameter.grad is None else parameter.grad + piece
            del left[key]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8)])
def test_the_order_computes_every_gradient_once(name, ranks, micro_batches):
    schedule = build_schedule(name, ranks, micro_batches, 2)
    torch.manual_seed(7)
    stages = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double() for _ in schedule.paths[0]]
    inputs = [torch.randn(3, 6, dtype=torch.float64) for _ in range(micro_batches)]
    whole = nn.Sequential(*stages)
    whole(torch.cat(inputs)).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in whole.parameters()]
    whole.zero_grad()
    run_in_order(schedule, stages, inputs)
    for parameter, gradient in zip(whole.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-12)
