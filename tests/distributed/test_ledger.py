"""The ledger counts what was sent, kind by kind, to the byte of the formulas, whoever sent it."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distributed import ParallelLayout, Rank
from distributed.groups import Mesh
from distributed.ledger import Ledger, Line
from tests.distributed.pool import pool


def on_ranks(worker, arguments, nproc):
    """Patient: on a busy machine ranks take their time to start."""
    return pool().run(worker, arguments, nproc, timeout_s=60.0)


RANKS = 3


def every_kind(rank: Rank) -> list[Line]:
    x, n = torch.ones(6), RANKS
    sends = [[1, 2, 3], [4, 0, 2], [0, 0, 1]]
    mine, theirs = sends[rank.index], [row[rank.index] for row in sends]
    with Ledger() as ledger:
        dist.all_reduce(x.clone())
        dist.all_reduce(x.clone(), async_op=True).wait()
        dist.all_gather_single(torch.empty(6 * n), x)
        dist.reduce_scatter_single(torch.empty(2), x)
        dist.broadcast(x, 0)
        dist.all_to_all_single(torch.empty(sum(theirs), 5), torch.ones(sum(mine), 5), theirs, mine)
        dist.all_to_all_single(torch.empty(6), x)
        dist.barrier()
        work = dist.isend(x.double(), (rank.index + 1) % n)
        dist.recv(torch.empty(6, dtype=torch.float64), (rank.index - 1) % n)
        work.wait()
    return ledger.lines()


def test_each_kind_sends_the_bytes_of_its_formula():
    uneven = [2 + 3, 4 + 2, 0]
    for rank, lines in enumerate(on_ranks(every_kind, (), RANKS)):
        seen = {line.kind: (line.calls, line.tensor_bytes, round(line.bytes_sent, 6)) for line in lines}
        rows = [6, 6, 1][rank]
        assert seen == {
            "all_reduce": (2, 48, 2 * 24 * 2 * 2 / 3),
            "all_gather": (1, 72, 48),
            "reduce_scatter": (1, 24, 16),
            "broadcast": (1, 24, 16),
            "all_to_all": (2, rows * 20 + 24, uneven[rank] * 20 + 16),
            "barrier": (1, 0, 0),
            "send": (1, 48, 48),
            "recv": (1, 48, 0),
        }
        assert all(line.axis == "world" and line.ranks == RANKS for line in lines)
        assert all(line.seconds > 0 for line in lines if line.kind != "send")


def by_axis(rank: Rank) -> tuple[dict[str, float], str]:
    mesh = Mesh(ParallelLayout(dp_shard=2, tp=2), rank)
    with Ledger(mesh.handles()) as ledger:
        mesh.group("tp").all_reduce_(torch.ones(100))
        for _ in range(3):
            mesh.group("dp_shard").all_gather(torch.ones(50))
        mesh.world.reduce_scatter(torch.ones(40))
        mesh.group("cp").all_reduce_(torch.ones(9))
    return ledger.by_axis(), ledger.table()


def test_bytes_are_counted_by_mesh_axis_and_groups_of_one_count_nothing():
    for sent, table in on_ranks(by_axis, (), 4):
        assert sent["tp"] == 400 and sent["dp_shard"] == 3 * 200
        assert sorted(sent.values()) == [120, 400, 600]
        assert table.count("\n") == 3


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))

    @staticmethod
    def backward(ctx, gradient):
        return functional.wait_tensor(functional.all_reduce(gradient, "sum", dist.group.WORLD))


def foreign(rank: Rank) -> tuple[Line, Line, Line]:
    torch.manual_seed(0)
    network = nn.Linear(50, 8)
    wrapped = DistributedDataParallel(network)
    with Ledger() as one:
        wrapped(torch.ones(4, 50)).sum().backward()
    x = torch.ones(10, requires_grad=True)
    with Ledger() as two:
        SlowBackward.apply(x * 2).sum().backward()
        functional.all_to_all_single(torch.ones(4, 3), [2, 2], [2, 2], dist.group.WORLD).sum()
    return one.line("world", "all_reduce"), two.line("world", "all_reduce"), two.line("world", "all_to_all")


def test_what_pytorch_sends_is_counted_too_in_the_backward_as_well():
    for replicated, functional_ones, exchanged in on_ranks(foreign, (), 2):
        # All gradients once, in whatever buckets; 2 (n-1)/n = 1.
        assert replicated.bytes_sent == (50 * 8 + 8) * 4
        assert (functional_ones.calls, functional_ones.bytes_sent) == (2, 80) and functional_ones.seconds > 0
        assert (exchanged.calls, exchanged.bytes_sent) == (1, 2 * 3 * 4)
