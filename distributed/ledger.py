"""The byte ledger: every collective that runs inside it, by mesh axis and kind, with its calls, bytes and seconds.

It looks on as a dispatch mode, so it sees the project's own collectives and those of DDP, `fully_shard` or DTensor alike.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import TorchDispatchMode

_KINDS = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather", "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast", "broadcast": "broadcast", "reduce_": "reduce", "gather_": "gather",
    "scatter_": "scatter", "barrier": "barrier", "monitored_barrier_": "barrier", "send": "send", "recv_": "recv",
    "recv_any_source_": "recv",
}  # fmt: skip
_WITHOUT_SIGNAL = ("send", "recv", "reduce_scatter", "reduce")
_GATHERING = ("all_gather", "gather")
_EVEN_SHARE = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "scatter", "reduce")


@dataclass
class Line:
    """Calls of one kind on one axis. `tensor_bytes`: the full tensor (all-gather: the result; reduce-scatter: the input;

    all-to-all: this rank's input). `bytes_sent`: what this rank sends to others by the ring formulas, or the exact split
    sizes of an uneven all-to-all; a receiver sends nothing. `seconds`: from a call to its completion, waiting for the
    other ranks included, overlapping calls each in full. gloo does not tell when a reduce-scatter or a point-to-point
    transfer ends: there it is until the rank's next operator, which is right when the call is waited for at once. On a
    GPU it is the time to enqueue: the profiler reads that clock.
    """

    axis: str
    kind: str
    ranks: int
    calls: int = 0
    tensor_bytes: int = 0
    bytes_sent: float = 0.0
    seconds: float = 0.0


@dataclass
class _Call:
    line: Line
    begun: float
    kept: torch.Tensor
    """Alive until it is waited for, so that no other tensor takes its place in memory."""


def sent_by_formula(kind: str, tensor_bytes: float, ranks: int) -> float:
    """Bytes a rank sends: all-reduce 2 (n-1)/n S; reduce-scatter, all-gather, even all-to-all (n-1)/n S; send S."""
    if kind == "send":
        return tensor_bytes
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks * tensor_bytes
    return (ranks - 1) / ranks * tensor_bytes if kind in _EVEN_SHARE else 0.0


class Ledger(TorchDispatchMode):
    """`with Ledger({"tp": tp_group, ...}) as ledger: step()`. Groups without a name go by "world" or their own name.

    Groups of one rank move nothing and are not counted. Looking on costs a Python call per operator: count a step, not a
    run.
    """

    def __init__(self, axes: Mapping[str, dist.ProcessGroup | None] | None = None):
        super().__init__()
        self._axes = {group.group_name: axis for axis, group in (axes or {}).items() if group is not None}
        self._lines: dict[tuple[str, str], Line] = {}
        self._open: dict[int, _Call] = {}
        self._last: tuple[Line, float] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self._close_last()
        name = func._schema.name.split("::")[1]
        if func.namespace == "_c10d_functional" and name == "wait_tensor":
            return self._waited(func, args)
        if func.namespace not in ("c10d", "_c10d_functional") or name not in _KINDS:
            for value in args:
                if isinstance(value, AsyncCollectiveTensor) and not value.completed:
                    # It would wait inside the operator, unseen.
                    value.trigger_wait()
                    self._book(value)
            return func(*args, **(kwargs or {}))
        begun = time.perf_counter()
        outcome = func(*args, **(kwargs or {}))
        group = _group(args, func)
        if group is not None and group.size() > 1:
            line = self._count(_KINDS[name], name, args, outcome, group)
            self._time(line, begun, outcome, func.namespace)
        return outcome

    def __exit__(self, *reason: Any) -> None:
        self._close_last()
        super().__exit__(*reason)

    def _count(self, kind: str, name: str, args: tuple, outcome: Any, group: dist.ProcessGroup) -> Line:
        axis = self._axes.get(group.group_name) or ("world" if group == dist.group.WORLD else group.group_name)
        line = self._lines.setdefault((axis, kind), Line(axis, kind, group.size()))
        line.calls += 1
        if kind == "barrier":
            return line
        size, sent = _sizes(kind, name, args, outcome, group)
        line.tensor_bytes += size
        line.bytes_sent += sent
        return line

    def _time(self, line: Line, begun: float, outcome: Any, space: str) -> None:
        if space == "_c10d_functional":
            for tensor in list(_tensors(outcome))[:1]:
                self._open[tensor.untyped_storage()._cdata] = _Call(line, begun, tensor)
            return
        work = outcome[-1] if isinstance(outcome, tuple) else outcome
        if not isinstance(work, torch.ScriptObject):
            return

        def done(_: Any) -> None:
            line.seconds += time.perf_counter() - begun

        if line.kind in _WITHOUT_SIGNAL:
            self._last = (line, begun)
        else:
            dist.Work.unbox(work).get_future().add_done_callback(done)

    def _close_last(self) -> None:
        if self._last is not None:
            line, begun = self._last
            line.seconds += time.perf_counter() - begun
            self._last = None

    def _waited(self, func: Any, args: tuple) -> Any:
        outcome = func(*args)
        self._book(args[0])
        return outcome

    def _book(self, tensor: torch.Tensor) -> None:
        inner = tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor
        call = self._open.pop(inner.untyped_storage()._cdata, None)
        if call is not None:
            call.line.seconds += time.perf_counter() - call.begun

    def lines(self) -> list[Line]:
        """All lines by axis and kind."""
        return [self._lines[key] for key in sorted(self._lines)]

    def line(self, axis: str, kind: str) -> Line:
        """One line; an empty one when nothing of the kind ran."""
        return self._lines.get((axis, kind), Line(axis, kind, 1))

    def by_axis(self) -> dict[str, float]:
        """Bytes that this rank sent, by axis."""
        total: dict[str, float] = {}
        for line in self.lines():
            total[line.axis] = total.get(line.axis, 0.0) + line.bytes_sent
        return total

    def table(self) -> str:
        """The ledger as text, a line a collective."""
        rows = [f"{'axis':<14}{'kind':<16}{'ranks':>6}{'calls':>7}{'MB sent':>12}{'ms':>10}"]
        for line in self.lines():
            rows.append(f"{line.axis:<14}{line.kind:<16}{line.ranks:>6}{line.calls:>7}"
                        f"{line.bytes_sent / 1e6:>12.3f}{line.seconds * 1e3:>10.2f}")  # fmt: skip
        return "\n".join(rows)


def _group(args: tuple, func: Any) -> dist.ProcessGroup | None:
    if func.namespace == "_c10d_functional":
        names = [value for argument, value in zip(func._schema.arguments, args) if argument.name == "group_name"]
        return dist.distributed_c10d._resolve_process_group(names[0]) if names else None
    for argument, value in zip(func._schema.arguments, args):
        if isinstance(value, torch.ScriptObject) and argument.name == "process_group":
            return dist.ProcessGroup.unbox(value)
    return None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))


def _sizes(kind: str, name: str, args: tuple, outcome: Any, group: dist.ProcessGroup) -> tuple[int, float]:
    """(bytes of the full tensor, bytes that this rank sends to others)."""
    ranks, me = group.size(), group.rank()
    if kind in _GATHERING:
        size = (
            _bytes(outcome)
            if name in ("all_gather_into_tensor", "all_gather_into_tensor_coalesced")
            else _bytes(args[0])
        )
        return size, sent_by_formula(kind, size, ranks)
    if kind == "all_to_all":
        functional = name == "all_to_all_single"
        inputs = args[0] if functional else args[1]
        size = _bytes(inputs)
        if name == "alltoall_":
            return size, float(size - _bytes(inputs[me]))
        splits = args[2] if functional else args[4]
        if not splits:
            return size, sent_by_formula(kind, size, ranks)
        row = size / max(1, inputs.shape[0])
        return size, row * (sum(splits) - splits[me])
    second = name in ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "scatter_")
    size = _bytes(args[1] if second else args[0])
    return size, sent_by_formula(kind, size, ranks)
