"""Experts over data ranks inside pipeline stages: three axes at once, under whole and split backwards."""

import pytest
import torch
from torch import nn

from distributed import ParallelLayout, Rank
from distributed.experts import ExpertLayer, RouterSettings, expert_groups, expert_parameters
from distributed.groups import Mesh
from distributed.pipeline import run_pipeline, stage_layers, stages_of
from distributed.planner.schedules import build_schedule
from tests.distributed.pool import pool

HIDDEN, LAYERS, MICRO = 6, 4, 4
SETTINGS = RouterSettings(4, 2, balance=0.2, z=0.05)


class Mixture(nn.Module):
    """Blocks of a mixture with its residual; the router's losses are the stage's own."""

    def __init__(self, blocks: list[tuple[int, ExpertLayer]], entrance: nn.Linear | None):
        super().__init__()
        self.blocks, self.entrance = nn.ModuleDict({str(index): block for index, block in blocks}), entrance

    def forward(self, activation, batch):
        x = self.entrance(batch) if self.entrance is not None else activation
        own = x.new_zeros(())
        for block in self.blocks.values():
            mixed, loss = block(torch.tanh(x))
            x, own = x + mixed, own + loss
        return x, own


def batches(data: int) -> list[torch.Tensor]:
    """Uneven micro-batches; those of data rank 1 have no row in the third."""
    generator = torch.Generator().manual_seed(data)
    sizes = (5, 3, 0 if data else 4, 7)
    return [torch.randn(size, HIDDEN, generator=generator, dtype=torch.float64) for size in sizes]


def loss(output, batch):
    return (output - 0.3).square().sum()


def made(**groups) -> tuple[list[ExpertLayer], nn.Linear]:
    torch.manual_seed(2)
    return [ExpertLayer(HIDDEN, 5, SETTINGS, **groups).double() for _ in range(LAYERS)], nn.Linear(
        HIDDEN, HIDDEN
    ).double()


def one_process() -> dict[str, torch.Tensor]:
    layers, entrance = made()
    whole = Mixture(list(enumerate(layers)), entrance)
    for data in (0, 1):
        for batch in batches(data):
            output, own = whole(None, batch)
            (loss(output, batch) + own).backward()
    return {name: parameter.grad for name, parameter in whole.named_parameters()}


def parallel(rank: Rank, layout: str, ep: int, schedules: list[str]) -> list[tuple[dict[str, torch.Tensor], list[int]]]:
    mesh = Mesh(ParallelLayout.parse(layout), rank)
    pipe = mesh.group("pp")
    inner, outer = expert_groups(mesh, ep)
    results = []
    for name in schedules:
        layers, entrance = made(ep=inner)
        schedule = build_schedule(name, pipe.size, MICRO)
        runs = stage_layers([1.0] * LAYERS, len(schedule.paths[0]))
        stages = {
            number: Mixture([(layer, layers[layer]) for layer in runs[number]], entrance if number == 0 else None)
            for number in stages_of(schedule, pipe.index)
        }
        run_pipeline(schedule, stages, batches(mesh.data.index), loss, pipe)
        gradients = {}
        for stage in stages.values():
            experts = {id(parameter) for parameter in expert_parameters(stage)}
            for parameter_name, parameter in stage.named_parameters():
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for group in outer if id(parameter) in experts else (mesh.data,):
                    group.all_reduce_(gradient)
                gradients[parameter_name] = gradient
        results.append((gradients, list(layers[0].placement.held(inner.index))))
    return results


@pytest.mark.parametrize(
    ("layout", "ep"), [("pp=2,dp_shard=2", 2), ("pp=2,dp_replicate=2", 1), ("pp=2,cp=2", 2)], ids=str
)
def test_experts_data_and_pipeline_together_give_the_gradients_of_one_process(layout: str, ep: int):
    wanted = one_process()
    everyone = pool().run(parallel, (layout, ep, ["1f1b", "zb-h1", "zb-v"]), 4, timeout_s=60)
    for number in range(3):
        seen = set()
        for of_rank in everyone:
            gradients, held = of_rank[number]
            for name, gradient in gradients.items():
                whole = wanted[name][held] if ".bank." in name else wanted[name]
                assert (gradient - whole).abs().max() < 1e-9, name
                seen.add(name)
        assert seen == set(wanted)
