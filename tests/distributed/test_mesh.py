"""A layout says what it means and who is with whom, or says why it cannot be."""

import dataclasses
import importlib
import time

import pytest
import torch
import torch.distributed as dist

from distributed import LayoutError, ParallelLayout, Rank, RankFailed
from distributed.groups import Mesh
from distributed.mesh import AXES, ModelSizes, nearest_legal, refuse_unless_legal
from tests.distributed.pool import joined, pool

SIZES = ModelSizes(heads=4, kv_heads=2, layers=2, vocabulary=64, feed_forward=32, sequence=16, experts=4)


def test_a_text_becomes_a_layout_and_back():
    layout = ParallelLayout.parse("dp_replicate=4,tp=2")
    assert layout.world_size == 8 and str(layout) == "dp_replicate=4,tp=2"
    assert ParallelLayout.parse("").world_size == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dp_replicate=0", "axis dp_replicate is 0"),
        ("dp_replicate", "is not AXIS=RANKS"),
        ("ep=2", "is not AXIS=RANKS"),
        ("dp_replicate=two", "not a whole number"),
        ("dp_replicate=2,dp_replicate=2", "twice"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_a_sentence(text: str, sentence: str):
    with pytest.raises(LayoutError, match=sentence):
        ParallelLayout.parse(text)


def test_a_layout_of_another_world_size_is_refused_with_both_numbers():
    with pytest.raises(LayoutError, match="has 2 ranks, but 3 were started"):
        ParallelLayout.parse("dp_replicate=2").check(3)


def test_what_cannot_use_an_axis_says_which_it_can():
    with pytest.raises(LayoutError, match="axis tp=2 is not built yet for the ranker; .* dp_replicate"):
        ParallelLayout(tp=2).only("dp_replicate", what="the ranker")


def test_rank_and_coordinate_are_each_others_inverse_and_tp_neighbours_are_adjacent():
    layout = ParallelLayout(pp=2, dp_replicate=3, dp_shard=2, cp=2, tp=2)
    for rank in range(layout.world_size):
        assert layout.rank_at(layout.coordinate(rank)) == rank
    assert layout.coordinate(1) == {"pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 1}
    assert layout.members(0, ["tp"]) == (0, 1) and layout.members(0, ["pp"]) == (0, 24)
    with pytest.raises(LayoutError, match="ranks 0 to 47; there is no rank 48"):
        layout.coordinate(48)


def test_the_groups_along_any_axes_hold_every_rank_once():
    layout = ParallelLayout(pp=2, dp_replicate=2, cp=2, tp=2)
    for axes in (["tp"], ["dp_replicate", "cp"], ["pp", "tp"], AXES):
        assert sorted(rank for group in layout.groups(axes) for rank in group) == list(range(16))


def test_the_placement_says_which_axes_leave_a_node():
    text = ParallelLayout(dp_replicate=2, tp=4).placement(4)
    assert "tp=4: inside a node" in text and "dp_replicate=2: ACROSS nodes" in text
    assert "node 1: 4: dp_replicate1 tp0" in text


@pytest.mark.parametrize(
    ("layout", "sizes", "ep", "numbers"),
    [
        (ParallelLayout(tp=3), SIZES, 1, "4 heads do not divide over tp=3"),
        (ParallelLayout(tp=6), ModelSizes(12, 4, 2, 60, 30, 16), 1, "4 key-value heads and tp=6"),
        (
            ParallelLayout(tp=4),
            dataclasses.replace(SIZES, fused_qkv=True),
            1,
            "2 key-value heads of fused projections .* tp=4",
        ),
        (ParallelLayout(cp=3), SIZES, 1, "16 tokens do not divide into 2 x cp=6"),
        (ParallelLayout(pp=4), SIZES, 1, "2 layers are fewer than pp=4"),
        (ParallelLayout(dp_shard=3), SIZES, 3, "4 experts do not divide over ep=3"),
        (ParallelLayout(dp_shard=2), SIZES, 4, "ep=4 does not divide dp_shard x cp = 2"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_refused_with_both_numbers(layout, sizes, ep, numbers):
    with pytest.raises(LayoutError, match=numbers):
        refuse_unless_legal(layout, sizes, ep)


def test_the_nearest_legal_layout_is_named():
    wish = ParallelLayout(tp=8)
    near, _ = nearest_legal(wish, SIZES)
    assert near.world_size == 8 and near.tp == 4
    with pytest.raises(LayoutError, match=f"nearest legal layout is {near}"):
        refuse_unless_legal(wish, SIZES)
    refuse_unless_legal(near, SIZES)
    # Fewer key-value heads than tensor ranks is legal: they are replicated.
    refuse_unless_legal(ParallelLayout(tp=4), SIZES)


def test_experts_may_lie_over_tp_where_they_are_asked_to():
    with pytest.raises(LayoutError, match="ep=4 does not divide dp_shard x cp = 2"):
        refuse_unless_legal(ParallelLayout(dp_shard=2, tp=2), SIZES, 4)
    refuse_unless_legal(ParallelLayout(dp_shard=2, tp=2), SIZES, 4, ep_over_tp=True)
    with pytest.raises(LayoutError, match="ep=4 does not divide dp_shard x cp x tp = 2"):
        refuse_unless_legal(ParallelLayout(dp_replicate=2, tp=2), SIZES, 4, ep_over_tp=True)


def sums_along_axes(rank: Rank, layout: ParallelLayout) -> list[float]:
    mesh = Mesh(layout, rank)
    inner, outer = mesh.carve(mesh.data, 2)
    groups = (mesh.group("tp"), mesh.group("dp_shard", "cp"), mesh.data, mesh.world, inner, outer)
    return [group.all_reduce_(torch.tensor(float(2**rank.index))).item() for group in groups]


def test_each_group_reaches_the_ranks_of_the_layout_and_no_other():
    layout = ParallelLayout(dp_replicate=2, dp_shard=2, tp=2)
    for rank, sums in enumerate(pool().run(sums_along_axes, (layout,), 8)):
        data = layout.members(rank, ["dp_replicate", "dp_shard"])
        half = data[:2] if rank in data[:2] else data[2:]
        across = data[0::2] if rank in data[0::2] else data[1::2]
        lists = [layout.members(rank, ["tp"]), layout.members(rank, ["dp_shard"]), data, range(8), half, across]
        assert sums == [float(sum(2**member for member in members)) for members in lists]


class _OtherOrder(ParallelLayout):
    """The fault: groups numbered with tp outermost."""

    def coordinate(self, rank: int) -> dict[str, int]:
        return {**dict.fromkeys(AXES, 0), "dp_replicate": rank % self.dp_replicate, "tp": rank // self.dp_replicate}

    def rank_at(self, coordinate) -> int:
        return coordinate["tp"] * self.dp_replicate + coordinate["dp_replicate"]


def one_rank_in_another_order(rank: Rank) -> None:
    Mesh((_OtherOrder if rank.index == 1 else ParallelLayout)(dp_replicate=2, tp=2), rank)


def test_groups_built_in_another_order_than_the_mesh_are_named_at_start_up_not_waited_for():
    begun = time.monotonic()
    with pytest.raises(RankFailed, match=r"ranks disagree on group .*: rank \d says .* rank \d says"):
        pool().run(one_rank_in_another_order, (), 4)
    assert time.monotonic() - begun < 10


def one_rank_stays_away(rank: Rank) -> None:
    if rank.index != 1:
        rank.sum_(torch.zeros(1))
    else:
        time.sleep(6)


def test_a_hang_is_a_failure_with_a_name():
    with pytest.raises(RankFailed, match="rank 0 of 2 failed: .*[Tt]imed out"):
        pool().run(one_rank_stays_away, (), 2, timeout_s=2)
    assert pool().run(ranks, (), 2) == [0, 1], "the pool did not recover"


def joins_nobody(rank: Rank) -> None:
    with joined(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), 0, 2, 1.0):
        pass


def test_a_rank_that_could_not_join_once_is_replaced():
    # PyTorch numbers groups: it would look for the others under a number that they do not have.
    with pytest.raises(RankFailed, match="rank 0 of 1 failed: could not join the others"):
        pool().run(joins_nobody, (), 1)
    assert pool().run(ranks, (), 2) == [0, 1]


class _NotHere:
    """Its pickle names a module that no rank has."""

    def __reduce__(self):
        return importlib.import_module, ("no_such_module",)


def test_a_job_that_a_rank_cannot_load_is_said_and_the_pool_goes_on():
    with pytest.raises(RankFailed, match="rank 0 of 2 could not load its job: .*no_such_module"):
        pool().run(ranks, (_NotHere(),), 2)
    assert pool().run(ranks, (), 2) == [0, 1]


def ranks(rank: Rank, *_: object) -> int:
    return rank.index
