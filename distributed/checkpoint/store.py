"""Saves and loads what training needs to go on: a folder that appears whole or not at all, and is verified before it is read.

The tensors lie in PyTorch's own format (`torch.distributed.checkpoint`), each rank's in a file of its own. Beside them a
`manifest.json` has every file's SHA-256, the shape of every parameter, and the facts that the caller gave.
"""

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from distributed.agree import on_first, together, united
from distributed.checkpoint.manifest import FORMAT, MANIFEST, read_manifest
from distributed.checkpoint.pieces import LoadPlanner, Pieces, SavePlanner
from distributed.errors import LayoutError
from distributed.flat_unit import Held
from distributed.groups import Mesh
from distributed.sharded_data import ShardedData

Beside = Mapping[str, Mapping[nn.Parameter, torch.Tensor]]
"""Further tensors by their name and the parameter (of `ShardedData.parameters()`) beside which they lie, such as averages."""


def save_checkpoint(path: Path, model: nn.Module, data: ShardedData, optimizer: torch.optim.Optimizer, mesh: Mesh,
                    facts: dict[str, Any] | None = None, beside: Beside | None = None) -> None:  # fmt: skip
    """Writes parameters, the optimizer's state, `beside` and the model's buffers to the new folder `path`, by global name.

    All ranks call it together, between steps, and see the same folder. `facts` are JSON, such as the number of steps.
    `LayoutError` on all ranks when the folder exists or cannot be written; nothing of it remains then.
    """
    path = Path(path)
    building = path.with_name(f".{path.name}.building")
    known_facts = _as_json(path, facts or {})
    on_first(mesh, lambda: _begin(path, building))
    states = {owner: _states(optimizer.state.get(owner, {}), beside, owner) for owner in data.parameters()}
    content: dict[str, Any] = {}
    shapes: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for held in data.held():
        shapes[held.name] = list(held.whole_shape)
        content[f"parameters/{held.name}"] = Pieces.of(held, held.owner)
        for key, state in states[held.owner].items():
            kinds[key] = _kind(key, state, held)
            alike = kinds[key] == "entries"
            content[f"{key}/{held.name}"] = Pieces.of(held, state) if alike else state
    content |= {f"buffers/{name}": buffer for name, buffer in _buffers(model)}
    try:
        _write(content, building, mesh)
        known = united(mesh, {"parameters": shapes, "states": kinds})
        manifest = {"format": FORMAT, "layout": str(mesh.layout), "optimizer": type(optimizer).__name__,
                    "facts": known_facts, **known}  # fmt: skip
        on_first(mesh, lambda: _finish(path, building, manifest))
    except BaseException:
        if mesh.rank.first:
            shutil.rmtree(building, ignore_errors=True)
        raise


def load_checkpoint(path: Path, model: nn.Module, data: ShardedData, optimizer: torch.optim.Optimizer, mesh: Mesh,
                    beside: Beside | None = None) -> dict[str, Any]:  # fmt: skip
    """Overwrites parameters, the optimizer's state, `beside` and buffers by those of the folder; returns its facts.

    The layout may be another than the one it was saved under. All ranks call it together. Before anything is changed the
    files are verified and names, shapes and types compared: `LayoutError` on all ranks with the first that does not fit.
    """
    path = Path(path)
    manifest = on_first(mesh, lambda: read_manifest(path))
    together(mesh, lambda: _verify(path, manifest, mesh))
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    names = set(united(mesh, {"names": {held.name: 0 for held in data.held()}})["names"])
    together(mesh, lambda: _compare_kinds(path, manifest, optimizer, beside))
    together(mesh, lambda: _compare(path, manifest, saved, names, list(data.held())))
    kinds: dict[str, str] = manifest["states"]
    content: dict[str, Any] = {}
    numbers: dict[tuple[str, nn.Parameter], dict[str, torch.Tensor]] = {}
    for held in data.held():
        content[f"parameters/{held.name}"] = Pieces.of(held, held.owner)
        for key, kind in kinds.items():
            dtype = saved[f"{key}/{held.name}"].properties.dtype
            if kind == "entries":
                content[f"{key}/{held.name}"] = Pieces.of(held, _beside(key, held.owner, optimizer, beside, dtype))
            else:
                number = torch.zeros((), dtype=dtype)
                content[f"{key}/{held.name}"] = number
                numbers.setdefault((key, held.owner), {})[held.name] = number
    content |= {f"buffers/{name}": buffer for name, buffer in _buffers(model)}
    _read(content, path, mesh)
    together(mesh, lambda: _take_numbers(path, numbers, optimizer))
    data.after_step()
    return manifest["facts"]


def _states(state: Mapping[str, Any], beside: Beside | None, owner: nn.Parameter) -> dict[str, torch.Tensor]:
    """What lies beside one parameter: "optimizer/exp_avg", "beside/average", …"""
    found = {f"optimizer/{key}": value for key, value in state.items() if value is not None}
    return found | {f"beside/{name}": tensors[owner] for name, tensors in (beside or {}).items()}


def _kind(key: str, state: Any, held: Held) -> str:
    if isinstance(state, torch.Tensor) and state.shape == held.owner.shape:
        return "entries"
    if isinstance(state, torch.Tensor) and state.dim() == 0:
        return "number"
    what = tuple(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
    raise LayoutError(f"{key} of {held.name} is {what}, neither one number nor of the parameter's shape")


def _beside(key: str, owner: nn.Parameter, optimizer: torch.optim.Optimizer, beside: Beside | None,
            dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    space, _, name = key.partition("/")
    if space == "beside":
        return (beside or {})[name][owner]
    return optimizer.state[owner].setdefault(name, torch.zeros_like(owner, dtype=dtype))


def _take_numbers(path: Path, numbers: dict[tuple[str, nn.Parameter], dict[str, torch.Tensor]],
                  optimizer: torch.optim.Optimizer) -> None:  # fmt: skip
    for (key, owner), by_name in numbers.items():
        first = next(iter(by_name))
        for name, number in by_name.items():
            if number != by_name[first]:
                raise LayoutError(f"checkpoint {path}: {key} is {by_name[first].item()} of {first} and {number.item()} of {name}, "
                                  "which lie in one shard here")  # fmt: skip
        optimizer.state[owner][key.partition("/")[2]] = by_name[first]


def _buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [(name, value) for name, value in model.state_dict().items() if name not in parameters]


def _as_json(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(facts))
    except (TypeError, ValueError) as error:
        raise LayoutError(f"the facts of checkpoint {path} are not JSON: {error}") from None


def _begin(path: Path, building: Path) -> None:
    if path.exists():
        raise LayoutError(f"checkpoint {path} exists already; another step needs another folder")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)


def _finish(path: Path, building: Path, manifest: dict[str, Any]) -> None:
    files = {file.name: _digest(file) for file in sorted(building.iterdir())}
    try:
        with open(building / MANIFEST, "w") as out:
            json.dump({**manifest, "files": files}, out, sort_keys=True, indent=1)
            out.flush()
            os.fsync(out.fileno())
        os.rename(building, path)
    except OSError as error:
        raise LayoutError(f"checkpoint {path} cannot be written: {error.strerror}") from None
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _verify(path: Path, manifest: dict[str, Any], mesh: Mesh) -> None:
    """Each rank looks at its share of the files."""
    for name in sorted(manifest["files"])[mesh.rank.index :: mesh.rank.world_size]:
        if not (path / name).is_file():
            raise LayoutError(f"checkpoint {path} lacks its file {name}")
        if _digest(path / name) != manifest["files"][name]:
            raise LayoutError(f"checkpoint {path}: file {name} was changed after it was written")


def _compare_kinds(
    path: Path, manifest: dict[str, Any], optimizer: torch.optim.Optimizer, beside: Beside | None
) -> None:
    if manifest["optimizer"] != type(optimizer).__name__:
        raise LayoutError(
            f"checkpoint {path} has the state of {manifest['optimizer']}; the optimizer here is {type(optimizer).__name__}"
        )
    there = sorted(key.partition("/")[2] for key in manifest["states"] if key.startswith("beside/"))
    if there != sorted(beside or {}):
        raise LayoutError(
            f"checkpoint {path} holds {', '.join(there) or 'nothing'} beside the parameters; "
            f"asked for is {', '.join(sorted(beside or {})) or 'nothing'}"
        )


def _compare(path: Path, manifest: dict[str, Any], saved: Mapping[str, Any], names: set[str], held: list[Held]) -> None:
    for one in held:
        shape = manifest["parameters"].get(one.name)
        if shape is None:
            raise LayoutError(f"checkpoint {path} has no parameter {one.name} {one.whole_shape}")
        if tuple(shape) != one.whole_shape:
            raise LayoutError(f"parameter {one.name} is {one.whole_shape} here and {tuple(shape)} in checkpoint {path}")
        for key in ("parameters", *manifest["states"]):
            if f"{key}/{one.name}" not in saved:
                raise LayoutError(f"checkpoint {path} has no {key} of parameter {one.name}")
        dtype = saved[f"parameters/{one.name}"].properties.dtype
        if dtype != one.owner.dtype:
            raise LayoutError(f"parameter {one.name} is {one.owner.dtype} here and {dtype} in checkpoint {path}")
    unknown = sorted(set(manifest["parameters"]) - names)
    if unknown:
        raise LayoutError(
            f"checkpoint {path} holds {len(unknown)} parameters that this model lacks, first {unknown[0]}"
        )


class _Writer(dcp.FileSystemWriter):
    """PyTorch's. On a full disk its archive complains of a position, and the system's reason is lost on the way."""

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Future[list[WriteResult]]:
        """As there."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise _reason_of_the_system(error) from None


def _reason_of_the_system(error: BaseException) -> BaseException:
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error


def _write(content: dict[str, Any], folder: Path, mesh: Mesh) -> None:
    try:
        with _one_process_is_meant():
            dcp.save(content, storage_writer=_Writer(folder), planner=SavePlanner(),
                     no_dist=mesh.rank.world_size == 1)  # fmt: skip
    except CheckpointException as error:
        raise LayoutError(f"checkpoint {folder} cannot be written: {_first_reason(error)}") from None


def _read(content: dict[str, Any], folder: Path, mesh: Mesh) -> None:
    try:
        with _one_process_is_meant():
            dcp.load(content, storage_reader=dcp.FileSystemReader(folder), planner=LoadPlanner(),
                     no_dist=mesh.rank.world_size == 1)  # fmt: skip
    except CheckpointException as error:
        raise LayoutError(f"checkpoint {folder} cannot be read: {_first_reason(error)}") from None


@contextlib.contextmanager
def _one_process_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


def _first_reason(error: CheckpointException) -> str:
    rank, (reason, _) = min(error.failures.items())
    said = reason.strerror if isinstance(reason, OSError) else None
    return f"rank {rank}: {said or str(reason).splitlines()[0]}"
