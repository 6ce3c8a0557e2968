"""Where a rank's entries lie in the whole tensor, as PyTorch's distributed checkpoint wants to know it.

A shard of a flat buffer is a run of entries that need not be a block of the tensor; it is cut into blocks that are.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from distributed.flat_unit import Held


def blocks_of_run(shape: Sequence[int], low: int, high: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of blocks that hold entries `low` to `high` of a row-major tensor of `shape`, in their order.

    At most two blocks for each dim, less one: the entries before the first whole row, the whole rows, those after the last.
    """
    if low >= high:
        return
    if len(shape) <= 1:
        yield ((low,), (high - low,)) if shape else ((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-low // row), high // row
    if first > last:
        yield from _inside(shape, last, low - last * row, high - last * row)
        return
    yield from _inside(shape, first - 1, low - (first - 1) * row, row)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    yield from _inside(shape, last, 0, high - last * row)


def _inside(shape: Sequence[int], row: int, low: int, high: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offsets, sizes in blocks_of_run(shape[1:], low, high):
        yield (row, *offsets), (1, *sizes)


@dataclass
class Pieces:
    """Blocks of a tensor of shape `whole` that are on this rank; with `written` false it reads them only.

    It speaks the protocol of `torch.distributed.checkpoint` for objects that are no tensors.
    """

    whole: tuple[int, ...]
    parts: list[tuple[tuple[int, ...], torch.Tensor]]
    written: bool

    @classmethod
    def of(cls, held: Held, tensor: torch.Tensor) -> "Pieces":
        """The entries that `held` describes, in `tensor`, which lies like its owner: a weight, a moment, an average."""
        place = held.placement
        run = tensor.detach().reshape(-1)[held.offset : held.offset + held.high - held.low]
        shift = [place.start if dim == place.dim else 0 for dim in range(len(held.shape))]
        parts, done = [], 0
        for offsets, sizes in blocks_of_run(held.shape, held.low, held.high):
            size = math.prod(sizes)
            block = run[done : done + size].view(sizes)
            done += size
            at = tuple(map(sum, zip(offsets, shift)))
            if place.dim is not None:
                # The last rank's slice may end in rows that fill it up and belong to nobody.
                block = block.narrow(place.dim, 0, max(0, min(sizes[place.dim], place.whole - at[place.dim])))
            if block.numel():
                parts.append((at, block))
        return cls(held.whole_shape, parts, held.counted)

    def size(self) -> torch.Size:
        """The whole tensor's shape."""
        return torch.Size(self.whole)

    def _chunks(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offsets), part.size()) for offsets, part in self.parts]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        if not self.written:
            return []
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets), WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, TensorProperties.create_from_tensor(part), self.size()),
            )
            for chunk, (_, part) in zip(self._chunks(), self.parts)
        ]  # fmt: skip

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return self._chunks()

    def _block(self, index: MetadataIndex) -> torch.Tensor:
        return next(part for offsets, part in self.parts if torch.Size(offsets) == index.offset)


class SavePlanner(dcp.DefaultSavePlanner):
    """PyTorch's planner, which also finds the blocks of `Pieces`. Names are flat already."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What to write."""
        found = self.state_dict[index.fqn]
        return found._block(index) if isinstance(found, Pieces) else super().lookup_object(index)


class LoadPlanner(dcp.DefaultLoadPlanner):
    """The same for reading."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: dict[str, Any], metadata: Metadata | None = None,
                       is_coordinator: bool = False) -> None:  # fmt: skip
        """Takes the content as it is: PyTorch's own would make nothing of what is no tensor."""
        self.state_dict = self.original_state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """What to read into."""
        found = self.state_dict[index.fqn]
        return found._block(index) if isinstance(found, Pieces) else super().lookup_tensor(index)
