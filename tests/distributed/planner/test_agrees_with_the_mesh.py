"""The planner's ranks, groups and judgement of legality are those of the platform's own mesh."""

import pytest

from distributed.mesh import ModelSizes, ParallelLayout, problems
from distributed.planner.descriptions import load_model
from distributed.planner.groups import axis_groups
from distributed.planner.layout import Layout, meshes, objections, parse_layout

LLAMA = load_model("llama3-70b")
SIZES = ModelSizes(64, 8, 80, 128256, 28672, 8192)


@pytest.mark.parametrize("text", ["tp=2,pp=2,dp=2,zero=3", "tp=2,cp=2,pp=2,dp=3,zero=0", "tp=4,pp=4,dp=4,zero=1"])
def test_groups_of_every_axis_hold_the_ranks_that_the_mesh_puts_there(text):
    layout = parse_layout(text)
    mesh = ParallelLayout.parse(layout.mesh)
    assert mesh.world_size == layout.world_size
    for axis in ("tp", "cp", "pp"):
        assert sorted(map(tuple, axis_groups(layout, axis))) == mesh.groups([axis])
    assert sorted(map(tuple, axis_groups(layout, "dp"))) == mesh.groups(["dp_replicate", "dp_shard"])


def test_expert_groups_lie_along_the_sharded_data_and_context_axes():
    layout = Layout(tp=2, cp=2, dp=4, ep=8, zero=3)
    assert sorted(map(tuple, axis_groups(layout, "ep"))) == ParallelLayout.parse(layout.mesh).groups(["dp_shard", "cp"])


def test_every_mesh_that_the_planner_searches_is_legal_on_the_platform():
    looked = list(meshes(LLAMA, 64, 8))
    assert len(looked) > 20
    for layout in looked:
        assert problems(ParallelLayout.parse(layout.mesh), SIZES) == []


@pytest.mark.parametrize("text", ["tp=3,dp=1", "pp=81", "tp=16,cp=1024"])
def test_what_the_platform_refuses_the_planner_refuses(text):
    layout = parse_layout(text)
    assert problems(ParallelLayout.parse(layout.mesh), SIZES)
    assert objections(LLAMA, layout, layout.world_size, 4 * layout.dp)
