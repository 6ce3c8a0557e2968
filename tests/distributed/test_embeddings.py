"""Sharded tables are the unsharded table: vectors, gradients, optimizer state and admission, whatever the ranks' ids."""

import pytest
import torch
from torch.nn import functional

from distributed import LayoutError, ParallelLayout, Rank
from distributed.embeddings import (
    Admission,
    ColumnWiseTable,
    RowWiseAdagrad,
    RowWiseTable,
    TableShape,
    TableWiseTables,
    place_tables,
    pooled,
)
from distributed.embeddings.initial import initial_rows
from distributed.exchange import alone
from distributed.groups import Group, Mesh
from distributed.ledger import Ledger
from tests.distributed.pool import pool

ROWS, DIM, STEPS = 23, 8, 4
SHAPES = {"post": TableShape(13, 4, 2.0), "author": TableShape(7, 6), "city": TableShape(3, 2)}


def on_ranks(worker, arguments, nproc):
    """Patient: on a busy machine ranks take their time to start."""
    return pool().run(worker, arguments, nproc, timeout_s=60.0)


def ids_of(rank: int, step: int, rows: int) -> torch.Tensor:
    """Uneven, with repeats within and between ranks; rank 1 has none in step 1."""
    if (rank, step) == (1, 1):
        return torch.zeros(0, dtype=torch.int64)
    generator = torch.Generator().manual_seed(10 * rank + step)
    return (torch.rand(5 + 3 * rank, generator=generator) ** 2 * rows).long()


def bags_of(ids_N: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(ids_N)) // 3


def objective(vectors_ND: torch.Tensor, ids_N: torch.Tensor) -> torch.Tensor:
    """A loss sum that uses vectors alone and in bags by mean."""
    weights_N1 = torch.linspace(0.5, 2.0, len(ids_N), dtype=vectors_ND.dtype).unsqueeze(1)
    means_BD = pooled(vectors_ND, bags_of(ids_N), len(ids_N) // 3 + 1, "mean")
    return ((vectors_ND + 1).square() * weights_N1).sum() + (means_BD + 0.5).pow(3).sum()


def one_table(rank: Rank, kind: str, ranks: int, fault: str = "") -> dict:
    """Some steps of row-wise Adagrad; alone it plays all ranks one after the other."""
    torch.set_default_dtype(torch.float64)
    try:
        if rank.world_size > 1:
            group = Mesh(ParallelLayout(dp_shard=ranks), rank).data
            players = [rank.index]
        else:
            group, players = alone(), list(range(ranks))
        admit = 3 if kind == "admission" else None
        table = (
            ColumnWiseTable(ROWS, DIM, group) if kind == "columns" else RowWiseTable(ROWS, DIM, group, admit_from=admit)
        )
        columns = group if kind == "columns" and fault != "row state of its columns alone" else None
        optimizer = RowWiseAdagrad(table.parameters(), 0.1, columns=columns)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            ids = [ids_of(player, step, ROWS) for player in players]
            vectors_ND = table(torch.cat(ids))
            for part, vectors in zip(ids, vectors_ND.split([len(part) for part in ids])):
                total = objective(vectors, part)
                total.backward(retain_graph=True)
            if fault == "gradient divided by world size":
                table.weight.grad = table.weight.grad / ranks
            assert table.weight.grad.is_sparse
            gradient = table.weight.grad.to_dense()
            optimizer.step()
        state_V = optimizer.state[table.weight]["square_V"]
        answer = {"held": table.held, "weight": table.weight.detach(), "gradient": gradient, "state": state_V,
                  "vectors": vectors_ND.detach(), "touched": int((state_V > 0).sum())}  # fmt: skip
        if admit:
            answer |= {"seen": table.admission.seen_V, "admitted": table.admission.admitted}
        return answer
    finally:
        torch.set_default_dtype(torch.float32)


def apart(found: dict, whole: dict, kind: str) -> float:
    rows = found["held"]
    cut = (slice(None), rows) if kind == "columns" else slice(rows.start, rows.stop)
    state = whole["state"] if kind == "columns" else whole["state"][cut]
    return max(
        float((found["weight"] - whole["weight"][cut]).abs().max()),
        float((found["gradient"] - whole["gradient"][cut]).abs().max()),
        float((found["state"] - state).abs().max()),
    )


@pytest.mark.parametrize(
    ("kind", "ranks"), [("rows", 2), ("rows", 4), ("columns", 2), ("columns", 4), ("admission", 4)]
)
def test_a_sharded_table_trains_like_the_whole_one(kind: str, ranks: int):
    whole = one_table(Rank(), kind, ranks)
    results = on_ranks(one_table, (kind, ranks), ranks)
    assert max(apart(found, whole, kind) for found in results) < 1e-9
    assert (torch.cat([found["vectors"] for found in results]) - whole["vectors"]).abs().max() < 1e-9
    if kind == "admission":
        assert torch.equal(torch.cat([found["seen"] for found in results]), whole["seen"])
        assert 0 < whole["admitted"] < int((whole["seen"] > 0).sum()), "nothing was kept out, or all"
        assert whole["touched"] == whole["admitted"], "a row that was kept out has optimizer state"


@pytest.mark.parametrize(
    ("kind", "fault"), [("rows", "gradient divided by world size"), ("columns", "row state of its columns alone")]
)
def test_a_wrong_gradient_scale_or_state_would_be_caught(kind: str, fault: str):
    results = on_ranks(one_table, (kind, 2, fault), 2)
    assert max(apart(found, one_table(Rank(), kind, 2), kind) for found in results) > 1e-4


def test_a_mean_taken_per_shard_would_be_caught():
    vectors_ND, bags_N = torch.arange(12.0).view(6, 2), torch.tensor([0, 0, 0, 1, 1, 1])
    here_N = torch.tensor([True, False, False, True, True, False])
    right_BD = pooled(vectors_ND, bags_N, 3, "mean")
    assert right_BD.tolist() == [[2.0, 3.0], [8.0, 9.0], [0.0, 0.0]]
    halves = [pooled(vectors_ND[half], bags_N[half], 3, "mean") for half in (here_N, ~here_N)]
    assert not torch.allclose(halves[0] + halves[1], right_BD) and not torch.allclose(sum(halves) / 2, right_BD)


def many_tables(rank: Rank, ranks: int, owner: dict[str, int] | None) -> dict:
    torch.set_default_dtype(torch.float64)
    try:
        group = Mesh(ParallelLayout(dp_shard=ranks), rank).data if rank.world_size > 1 else alone()
        tables = TableWiseTables(SHAPES, group, owner=owner if rank.world_size > 1 else None)
        vectors, total = {}, torch.zeros(())
        for player in [rank.index] if rank.world_size > 1 else range(ranks):
            ids = {name: ids_of(player, at, shape.rows) for at, (name, shape) in enumerate(SHAPES.items())}
            vectors[player] = tables(ids)
            total = total + sum(objective(vectors[player][name], ids[name]) for name in SHAPES)
        total.backward()
        return {
            "vectors": {p: {n: v.detach() for n, v in found.items()} for p, found in vectors.items()},
            "gradients": {name: weight.grad.to_dense() for name, weight in tables.weights.items()},
        }
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("ranks", "owner"), [(2, None), (4, None), (2, {"post": 1, "author": 1, "city": 1})])
def test_tables_on_different_ranks_are_the_tables_on_one(ranks: int, owner: dict[str, int] | None):
    whole = many_tables(Rank(), ranks, None)
    held: set[str] = set()
    for rank, found in enumerate(on_ranks(many_tables, (ranks, owner), ranks)):
        for name in SHAPES:
            assert (found["vectors"][rank][name] - whole["vectors"][rank][name]).abs().sum() < 1e-9
        for name, gradient in found["gradients"].items():
            assert (gradient - whole["gradients"][name]).abs().max() < 1e-9
            held.add(name)
    assert held == set(SHAPES)


def bytes_of_a_look_up(rank: Rank) -> tuple[float, int]:
    mesh = Mesh(ParallelLayout(dp_shard=2), rank)
    table = RowWiseTable(ROWS, DIM, mesh.data)
    ids_N = torch.tensor([0, 0, 3, 20, 21, 21, 21])
    with Ledger(mesh.handles()) as ledger:
        table(ids_N).sum().backward()
    return ledger.line("dp_shard", "all_to_all").bytes_sent, ledger.line("dp_shard", "all_to_all").calls


def test_an_id_is_sent_once_and_its_vector_comes_back_once():
    # Two different ids lie on either rank: a rank asks for two ids of 8 bytes and answers two vectors of 8 float32,
    # then sends two gradients; before that one count of 8 bytes goes out.
    assert on_ranks(bytes_of_a_look_up, (), 2) == [(8 + 2 * 8 + 2 * 32 + 2 * 32, 4)] * 2


def test_the_starting_rows_do_not_depend_on_the_cut():
    whole = initial_rows(range(9000), 3, seed=5)
    for cut in (range(10), range(4000, 4200), range(4096, 9000), range(8999, 9000), range(5, 5)):
        assert torch.equal(initial_rows(cut, 3, seed=5), whole[cut.start : cut.stop])
    assert not torch.equal(whole[:4096], whole[4096:8192])


def test_a_rare_id_is_zero_and_untrained_until_it_is_admitted():
    table = RowWiseTable(10, 4, alone(), admit_from=3)
    assert table(torch.tensor([1, 1])).abs().sum() == 0
    assert table.eval()(torch.tensor([1, 1])).abs().sum() == 0, "looking without training does not count"
    assert table.train()(torch.tensor([1])).abs().sum() > 0 and table.admission.admitted == 1
    with pytest.raises(ValueError, match="threshold of 0 is below 1"):
        Admission(5, 0)


def test_tables_are_placed_by_what_they_send_and_then_by_what_they_hold():
    owner = place_tables({"a": TableShape(10, 8), "b": TableShape(99, 4), "c": TableShape(5, 4)}, 2)
    assert owner == {"a": 0, "b": 1, "c": 1}


def test_functional_embedding_is_what_one_rank_does():
    table = RowWiseTable(ROWS, DIM, alone())
    ids_N = ids_of(0, 0, ROWS)
    assert torch.equal(table(ids_N), functional.embedding(ids_N, table.weight))


def test_ids_and_dimensions_that_do_not_fit_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match="id 23 is outside a table of 23 rows"):
        RowWiseTable(ROWS, DIM, alone())(torch.tensor([2, 23]))
    with pytest.raises(LayoutError, match="8 dimensions of a table are no multiple of 3 ranks"):
        ColumnWiseTable(ROWS, DIM, Group("dp_shard", (0, 1, 2), 0))
    with pytest.raises(ValueError, match="id -1 is outside table city of 3 rows"):
        TableWiseTables(SHAPES, alone())(
            {"post": torch.tensor([1]), "author": torch.tensor([1]), "city": torch.tensor([-1])}
        )
