"""A rank is put on the CPUs beside its memory and card where the machine tells, and left alone where there is no choice."""

import os
from pathlib import Path

import pytest

from distributed import ParallelLayout, Rank
from distributed.affinity import affinity, memory_nodes, network_nodes, pin, placement
from tests.distributed.pool import pool

ALL = set(range(8))


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """A machine of two memory nodes, with a card beside each and an interface that is no card."""
    for node, cpus in ((0, "0-2,4"), (1, "3,5-7")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for name, node in (("ib0", "0"), ("ib1", "1"), ("virtual", "-1")):
        folder = tmp_path / f"class/net/{name}/device"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    (tmp_path / "class/net/lo").mkdir()
    return tmp_path


def test_the_machine_is_read(two_nodes: Path):
    assert memory_nodes(two_nodes) == {0: {0, 1, 2, 4}, 1: {3, 5, 6, 7}}
    assert network_nodes(two_nodes) == {"ib0": 0, "ib1": 1}


def test_neighbouring_ranks_share_a_node_and_its_card(two_nodes: Path):
    found = [affinity(rank, 4, sys=two_nodes, allowed=ALL) for rank in range(4)]
    assert [one.node for one in found] == [0, 0, 1, 1]
    assert found[0].cpus == (0, 1, 2, 4) and found[3].networks == ("ib1",)
    assert str(found[3]) == "memory node 1, 4 CPUs, beside ib1"


def test_only_cpus_that_the_process_may_use_are_taken(two_nodes: Path):
    assert affinity(0, 2, sys=two_nodes, allowed={1, 3, 7}).cpus == (1,)
    assert affinity(1, 2, sys=two_nodes, allowed={1, 3, 7}).cpus == (3, 7)
    # A process that was put on one node already has no choice left.
    assert affinity(1, 2, sys=two_nodes, allowed={1, 2}).node is None


def pinned(rank: Rank, root: str) -> tuple[set[int], set[int], set[int]]:
    before = os.sched_getaffinity(0)
    where = affinity(rank.index, rank.world_size, sys=Path(root))
    pin(where)
    try:
        return before, set(where.cpus), os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes")
def test_pinning_keeps_the_process_there_and_does_nothing_on_one_node(tmp_path: Path):
    before, _, after = pool().run(pinned, (str(tmp_path),), 1)[0]
    assert after == before, "a machine that tells nothing is left alone"
    mine = sorted(before)
    if len(mine) < 2:
        pytest.skip("one CPU: nothing to pin")
    for node, cpu in enumerate(mine[:2]):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(str(cpu))
    assert [after for _, _, after in pool().run(pinned, (str(tmp_path),), 2)] == [{mine[0]}, {mine[1]}]


def test_the_placement_says_what_crosses_nodes_and_where_this_process_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    text = placement(ParallelLayout(dp_shard=2, tp=2))
    assert "tp=2: inside a node" in text and "dp_shard=2: ACROSS nodes" in text
    assert text.splitlines()[-1].startswith(("memory node", "one memory node"))
