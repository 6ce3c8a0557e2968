"""A checkpoint by global name: training that was saved under one layout goes on under any other as if it had never stopped."""

import dataclasses
import json
import math
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from distributed import LayoutError, ParallelLayout, Rank, RankFailed, TrainerSettings, TrainResult
from distributed.checkpoint import load_checkpoint, save_checkpoint, store
from distributed.checkpoint.pieces import Pieces, blocks_of_run
from distributed.flat_unit import Held
from distributed.groups import Group, Mesh
from distributed.parallelize import ParallelStyle, parallelize
from distributed.placement import Placement
from distributed.step import global_norm
from distributed.trainer import prepare, train_work
from distributed.work import ModuleWork
from tests.distributed import parity
from tests.distributed.parity import CLIP, SEQUENCE, SIZES, Case, Record, distance, merged, reference
from tests.distributed.pool import pool
from tests.distributed.workers import Network, Problem

SPARSE = dataclasses.replace(SIZES, experts=4)
BEFORE, AFTER = 2, 2


def trained(rank: Rank, case: Case, load: str | None, save: str | None, local_names: bool = False) -> Record:
    """Some steps from the start, or from a checkpoint on; the record of what they end with."""
    mesh = Mesh(case.layout, rank)
    parallel = parallelize(parity.build(case.sizes), mesh, case.style, SEQUENCE)
    data, gradients_of = parity.in_place(parallel, mesh, case)
    optimizer = torch.optim.AdamW(data.parameters(), lr=0.01)
    record, first = Record(stage=mesh.coordinate["pp"]), 0
    if local_names:
        for unit in data._units:
            unit.names = [name.replace("blocks.1.", "blocks.0.") for name in unit.names]
    if load is not None:
        with torch.no_grad():
            for parameter in data.parameters():
                parameter.fill_(7.0)
        first = load_checkpoint(Path(load), parallel.model, data, optimizer, mesh)["steps"]
    for step in range(first, first + (AFTER if load else BEFORE)):
        loss, _ = gradients_of(parity.micro_batches(step, case, mesh), step)
        norm = global_norm(data, mesh)
        record.losses.append(loss)
        record.norms.append(norm)
        for parameter in data.parameters():
            if parameter.grad is not None and norm > CLIP:
                parameter.grad.mul_(CLIP / norm)
        optimizer.step()
        data.after_step()
    if save is not None:
        save_checkpoint(Path(save), parallel.model, data, optimizer, mesh, {"steps": BEFORE})
    record.parameters = parity.whole(parallel, data, False)
    if rank.index != case.layout.rank_at({"pp": record.stage}):
        record.parameters = {}
    return record


def _case(axes: str, sizes=SIZES, **style) -> Case:
    return Case(ParallelLayout.parse(axes), ParallelStyle(**style), sizes)


def _goes_on(saved: Case, loaded: Case, folder: Path) -> None:
    pool().run(trained, (saved, None, str(folder)), saved.layout.world_size, timeout_s=60)
    found = merged(pool().run(trained, (loaded, str(folder), None), loaded.layout.world_size, timeout_s=60))
    single = reference(saved.sizes, BEFORE + AFTER)
    wanted = Record(single.losses[BEFORE:], single.norms[BEFORE:], parameters=single.parameters)
    assert distance(found, wanted) < 1e-9


PAIRS = [
    (_case("dp_shard=2,tp=2", zero=3), _case("dp_shard=2", zero=1)),
    (_case("dp_shard=4", zero=3), _case("dp_shard=3", zero=2)),
    (_case("dp_shard=3", zero=2), _case("")),
    (_case(""), _case("pp=2")),
    (_case("pp=2,dp_shard=2", zero=1), _case("tp=2")),
    (_case("tp=4"), _case("cp=2", zero=3)),
    (_case("dp_shard=2", SPARSE, ep=2, zero=3), _case("dp_shard=2,tp=2", SPARSE)),
    (_case("pp=2,dp_shard=2", SPARSE, ep=2), _case("", SPARSE)),
]


@pytest.mark.parametrize(("saved", "loaded"), PAIRS, ids=lambda case: case.name)
def test_training_goes_on_under_another_layout_as_if_it_had_not_stopped(saved: Case, loaded: Case, tmp_path: Path):
    _goes_on(saved, loaded, tmp_path / "step2")


def test_fault_8_layer_names_that_begin_anew_in_each_stage_are_seen(tmp_path: Path):
    folder = str(tmp_path / "step2")
    pool().run(trained, (_case(""), None, folder), 1)
    with pytest.raises(RankFailed, match="holds 16 parameters that this model lacks, first blocks.1.attention.wk.bias"):
        pool().run(trained, (_case("pp=2"), folder, None, True), 2)


def test_fault_23_four_ranks_three_ranks_one_rank_with_the_optimizer(tmp_path: Path):
    """In a row, and without the optimizer's state it would not go on equal."""
    folder = tmp_path / "step2"
    pool().run(trained, (_case("dp_shard=4", zero=3), None, str(folder)), 4)
    three = pool().run(trained, (_case("dp_shard=3", zero=3), str(folder), str(tmp_path / "again")), 3)
    single = reference(SIZES, BEFORE + AFTER)
    assert max(np.abs(three[0].parameters[n] - single.parameters[n]).max() for n in single.parameters) < 1e-9
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["states"] == {
        "optimizer/exp_avg": "entries",
        "optimizer/exp_avg_sq": "entries",
        "optimizer/step": "number",
    }
    forget = {**manifest, "states": {}}
    (folder / "manifest.json").write_text(json.dumps(forget))
    without = pool().run(trained, (_case("dp_shard=3", zero=3), str(folder), None), 3)
    assert max(np.abs(without[0].parameters[n] - single.parameters[n]).max() for n in single.parameters) > 1e-3


def broken_at_the_end(rank: Rank, folder: str) -> None:
    store.os.rename = _no_space
    try:
        trained(rank, _case("dp_shard=2", zero=3), None, folder)
    finally:
        store.os.rename = _RENAME


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


_RENAME = store.os.rename


def test_a_save_that_fails_leaves_nothing_and_says_why_on_all_ranks(tmp_path: Path):
    with pytest.raises(RankFailed, match="No space left on device"):
        pool().run(broken_at_the_end, (str(tmp_path / "step2"),), 2)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RankFailed, match="there is no checkpoint at .*step2"):
        pool().run(trained, (_case("dp_shard=2"), str(tmp_path / "step2"), None), 2)


def test_what_does_not_fit_is_named_and_nothing_is_overwritten(tmp_path: Path):
    folder = tmp_path / "step2"
    pool().run(trained, (_case("dp_shard=2", zero=1), None, str(folder)), 2)
    with pytest.raises(RankFailed, match="step2 exists already"):
        pool().run(trained, (_case("dp_shard=2", zero=1), None, str(folder)), 2)
    wider = _case("tp=2", dataclasses.replace(SIZES, feed_forward=32))
    with pytest.raises(RankFailed, match=r"blocks.0.mlp.gate.weight is \(32, 16\) here and \(16, 16\) in checkpoint"):
        pool().run(trained, (wider, str(folder), None), 2)
    deeper = _case("tp=2", dataclasses.replace(SIZES, layers=3))
    with pytest.raises(RankFailed, match=r"has no parameter blocks.2.norm_attention.weight \(16,\)"):
        pool().run(trained, (deeper, str(folder), None), 2)
    changed = next(folder.glob("*.distcp"))
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(bytes(content))
    with pytest.raises(RankFailed, match=f"file {changed.name} was changed after it was written"):
        pool().run(trained, (_case("tp=2"), str(folder), None), 2)
    changed.unlink()
    with pytest.raises(RankFailed, match=f"lacks its file {changed.name}"):
        pool().run(trained, (_case("tp=2"), str(folder), None), 2)


def kinds_that_differ(rank: Rank, folder: str) -> list[str]:
    mesh = Mesh(ParallelLayout(dp_shard=2), rank)
    parallel = parallelize(parity.build(SIZES), mesh, ParallelStyle(), SEQUENCE)
    data = parity.sharded(parallel, mesh, _case("dp_shard=2", zero=1))
    averages = {parameter: parameter.detach().clone() for parameter in data.parameters()}
    adam, sgd = torch.optim.AdamW(data.parameters()), torch.optim.SGD(data.parameters())
    save_checkpoint(Path(folder), parallel.model, data, adam, mesh, beside={"average": averages})
    said = []
    for optimizer, beside in ((sgd, {"average": averages}), (adam, None)):
        try:
            load_checkpoint(Path(folder), parallel.model, data, optimizer, mesh, beside)
        except LayoutError as error:
            said.append(str(error))
    for tensor in averages.values():
        tensor.fill_(7.0)
    load_checkpoint(Path(folder), parallel.model, data, adam, mesh, {"average": averages})
    return [*said, str(all(torch.equal(average, parameter) for parameter, average in averages.items()))]


def test_another_optimizer_and_a_missing_average_are_named(tmp_path: Path):
    other, missing, equal = pool().run(kinds_that_differ, (str(tmp_path / "one"),), 2)[0]
    assert "has the state of AdamW; the optimizer here is SGD" in other
    assert "holds average beside the parameters; asked for is nothing" in missing
    assert equal == "True"


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (4, 1, 3), ()])
def test_blocks_of_a_run_hold_its_entries_once_and_in_order(shape: tuple[int, ...]):
    whole = torch.arange(int(np.prod(shape))).view(shape)
    for low in range(whole.numel() + 1):
        for high in range(low, whole.numel() + 1):
            found: list[int] = []
            for offsets, sizes in blocks_of_run(shape, low, high):
                block = whole
                for dim, (offset, size) in enumerate(zip(offsets, sizes)):
                    block = block.narrow(dim, offset, size)
                found += block.flatten().tolist()
            assert found == list(range(low, high))


def test_rows_that_only_fill_up_the_last_ranks_slice_are_not_kept():
    weight = torch.nn.Parameter(torch.arange(12.0).view(4, 3))
    place = Placement(dim=0, start=4, whole=7, over=Group("tp", (0, 1), 1))
    for low, high in ((0, 12), (5, 12), (9, 12)):
        pieces = Pieces.of(Held("table", place, weight.shape, weight, low, low, high, True), weight)
        kept = [entry for _, block in pieces.parts for entry in block.flatten().tolist()]
        assert pieces.size() == (7, 3) and kept == [float(entry) for entry in range(low, min(high, 9))]


class _Stopped(Exception):
    pass


def in_parts(
    rank: Rank, axes: str, folder: str | None, stop_after: int | None, average: float | None, worth: float = 1.0
) -> TrainResult | None:
    """A training that ends, as if killed, after some epochs."""
    problem, network = Problem(), Network(0)
    layout = ParallelLayout.parse(axes)
    epochs = [0]

    def validate(module: torch.nn.Module, indices_B: np.ndarray) -> torch.Tensor:
        epochs[0] += 1
        if stop_after is not None and epochs[0] > stop_after:
            raise _Stopped
        return problem.validate(module, indices_B) * worth

    settings = TrainerSettings(epochs=5, batch_size=50, learning_rate=0.02, patience=4, average_decay=average)
    prepare(network, settings, rank)
    work = ModuleWork(network, problem.loss, validate, Mesh(layout, rank), zero=3 if layout.dp_shard > 1 else 0)
    try:
        return train_work(work, 203, 203, settings, checkpoints=None if folder is None else Path(folder))
    except _Stopped:
        return None


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_training_that_stopped_ends_under_another_layout_as_if_it_had_not(average: float | None, tmp_path: Path):
    whole = in_parts(Rank(), "", None, None, average)
    folder = str(tmp_path / "run")
    assert pool().run(in_parts, ("dp_shard=2", folder, 2, average), 2) == [None, None]
    assert pool().run(in_parts, ("dp_shard=3", folder, 1, average), 3) == [None] * 3
    ended = in_parts(Rank(), "", folder, None, average)
    assert [h["validation"] for h in ended.history] == pytest.approx([h["validation"] for h in whole.history], abs=1e-9)
    assert (ended.best_epoch, ended.steps) == (whole.best_epoch, whole.steps)
    assert max((ended.state[name] - whole.state[name]).abs().max() for name in whole.state) < 1e-9
    assert len(list((tmp_path / "run").iterdir())) <= 2, "only the last and the best epoch are kept"
    # Once more: nothing is left to do, and the same comes out.
    again = in_parts(Rank(), "", folder, None, average)
    assert again.history == ended.history
    assert all(torch.equal(again.state[name], ended.state[name]) for name in whole.state)
    assert again.samples_per_second == ended.samples_per_second > 0
    spent = [one.earlier_seconds for one in (whole, ended, again)]
    assert 0 == spent[0] < spent[1] < spent[2], "seconds of the runs before are counted"


def test_a_folder_of_another_training_is_refused(tmp_path: Path):
    in_parts(Rank(), "", str(tmp_path / "run"), 1, None)
    with pytest.raises(
        LayoutError, match=r"were begun with average_decay = None, not 0.9; another training needs another folder"
    ):
        in_parts(Rank(), "", str(tmp_path / "run"), None, 0.9)


def test_what_else_lies_in_the_folder_stays_and_is_not_taken_for_an_epoch(tmp_path: Path):
    for name in ("epoch-best-keep", "epoch-00042", "epoch-1234-mine"):
        (tmp_path / name).mkdir()
    for name in ("epoch-loss.png", "epoch-0077"):
        (tmp_path / name).write_text("mine")
    in_parts(Rank(), "", str(tmp_path), 3, None)
    assert in_parts(Rank(), "", str(tmp_path), None, None) is not None
    left = {path.name for path in tmp_path.iterdir()}
    assert {"epoch-best-keep", "epoch-00042", "epoch-1234-mine", "epoch-loss.png", "epoch-0077"} < left
    assert "epoch-0004" in left and len(left) <= 7


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    in_parts(Rank(), "", str(folder), 2, None)
    return folder


GONE = object()
DAMAGES = [
    *[((name,), value, f"{name} ") for name in ("files", "parameters", "states", "facts", "optimizer") for value in (GONE, None, [5])],
    (("files",), {}, "lacks .metadata"), (("files", ".metadata"), 5, "files.*5"), (("states", "optimizer/x"), "entries", "no optimizer/x"),
    (("parameters", "layers.0.bias"), "16", "layers.0.bias"), ((), [], "object|dict"), ((), None, "object|dict"),
    *[(("facts", name), value, name) for name in ("settings", "told") for value in (GONE, None, 5)],
    *[(("facts", "told", name), value, name) for name in ("best_epoch", "history", "steps", "seconds", "routed")
      for value in (GONE, "1", None)],
    (("facts", "average_updates"), GONE, "average_updates is missing"), (("facts", "average_updates"), 3, "average_updates is 3"),
    (("facts", "told", "best_epoch"), 9, "no checkpoint at .*epoch-0009"), (("facts", "told", "seconds"), 0, "seconds is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "words"), DAMAGES, ids=lambda one: "" if one is GONE else str(one))
def test_a_damaged_manifest_is_one_sentence(kept: Path, tmp_path: Path, place: tuple, value: object, words: str):
    folder = shutil.copytree(kept, tmp_path / "run")
    file = folder / "epoch-0001" / "manifest.json"
    manifest = part = json.loads(file.read_text())
    for name in place[:-1]:
        part = part[name]
    if not place:
        manifest = value
    elif value is GONE:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    file.write_text(json.dumps(manifest))
    with pytest.raises(LayoutError, match=words) as raised:
        in_parts(Rank(), "", str(folder), None, None)
    assert "checkpoint" in str(raised.value) and "\n" not in str(raised.value)


def test_a_training_that_never_validates_goes_on_and_ends_in_the_same_sentence(tmp_path: Path):
    for _ in range(2):
        with pytest.raises(LayoutError, match="no epoch of 4 had a finite .* learning rate 0.02 and precision float64"):
            in_parts(Rank(), "", str(tmp_path), None, None, math.nan)


@pytest.mark.parametrize("most_bytes", [100, 5000, 20_000, 34_000])
def test_a_file_that_the_system_does_not_let_grow_is_named_with_its_reason(most_bytes: int, tmp_path: Path):
    """A tensor is larger than the buffers before the file, so that PyTorch's archive meets the failure midway."""
    problem, wide = Problem(), torch.nn.Linear(64, 64).double()
    work = ModuleWork(wide, problem.loss, problem.validate, Mesh(ParallelLayout(), Rank()))
    optimizer = torch.optim.AdamW(work.data.parameters())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        with pytest.raises(LayoutError, match="checkpoint .*step2.* cannot be written: rank 0: File too large"):
            save_checkpoint(tmp_path / "step2", wide, work.data, optimizer, work.mesh)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
