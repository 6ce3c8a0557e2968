"""What a training run spends its time on: a line of progress, and a log that `feedloop plan --diagnose` reads.

The log has one JSON object a line, step and rank, in the form of `distributed.planner.diagnosis`.
"""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from distributed.groups import Mesh


@dataclass
class StepLog:
    """`begin` and `end` around every step, on every rank. Lines go to `path` by `flush`, which all ranks call together.

    `peak_flops`: what one rank's device can do in a second, for the share of the peak; None: `known_peak`'s answer. Where
    there is one, the first step is counted operator by operator, recomputed ones too.
    """

    mesh: Mesh
    path: Path | None = None
    peak_flops: float | None = None
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _begun: float = 0.0
    _counter: FlopCounterMode | None = None
    _flops_per_sample: float | None = None
    _samples: int = 0
    _seconds: float = 0.0
    _waited: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.peak_flops is None:
            self.peak_flops = known_peak(self.mesh.rank.device)
        if self.path is not None and self.mesh.rank.first:
            begin_step_log(self.path)

    def begin(self) -> None:
        """A step begins; what was waited for before is not its own."""
        self.mesh.waits.taken()
        if self.peak_flops is not None and self._flops_per_sample is None:
            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()
        self._begun = time.perf_counter()

    def end(self, step: int, samples: int, taken_E: list[int] | None = None, dropped: int = 0) -> None:
        """It has ended. `samples` are those of the global batch; `taken_E` tokens of this rank that each expert took."""
        seconds = time.perf_counter() - self._begun
        waited = self.mesh.waits.taken()
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            counted = torch.tensor(
                float(self._counter.get_total_flops()), dtype=torch.float64, device=self.mesh.rank.device
            )
            self._flops_per_sample = self.mesh.world.all_reduce_(counted).item() / max(1, samples)
            self._counter = None
        self._samples, self._seconds = self._samples + samples, self._seconds + seconds
        for axis, spent in waited.items():
            self._waited[axis] = self._waited.get(axis, 0.0) + spent
        if self.path is None:
            return
        line: dict[str, Any] = {
            "rank": self.mesh.rank.index, "step": step, "seconds": seconds, "samples": samples,
            "compute_s": max(0.0, seconds - sum(waited.values())),
            "communication_s": {axis: spent for axis, spent in sorted(waited.items()) if axis != "bubble"},
        }  # fmt: skip
        if self.mesh.layout.pp > 1:
            line |= {"stage": self.mesh.coordinate["pp"], "bubble_s": waited.get("bubble", 0.0)}
        if taken_E is not None:
            line |= {"expert_tokens": taken_E, "dropped_tokens": dropped}
        self._lines.append(line)

    def flush(self) -> None:
        """Appends the lines of all ranks since the last time, in order of steps: all or, with an `OSError` that names the
        file, none of them."""
        if self.path is None:
            return
        everyone: list[list[dict[str, Any]]] = [self._lines]
        if self.mesh.rank.world_size > 1:
            everyone = [[] for _ in range(self.mesh.rank.world_size)]
            dist.all_gather_object(everyone, self._lines)
        self._lines = []
        if self.mesh.rank.first:
            lines = sorted(
                (line for lines in everyone for line in lines), key=lambda line: (line["step"], line["rank"])
            )
            _append(self.path, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines).encode())

    def progress(self) -> str:
        """This rank's figures since the last call: samples of all ranks a second, share of the peak, waiting, memory."""
        samples, seconds, waited = self._samples, max(self._seconds, 1e-12), self._waited
        self._samples, self._seconds, self._waited = 0, 0.0, {}
        said = [f"{samples / seconds:,.0f} samples/s"]
        if self.peak_flops is not None and self._flops_per_sample is not None:
            peak = self.peak_flops * self.mesh.rank.world_size
            said.append(f"{self._flops_per_sample * samples / seconds / peak:.1%} of the peak")
        parts = [f"{axis} {spent / seconds:.0%}" for axis, spent in sorted(waited.items()) if spent / seconds >= 0.005]
        if self.mesh.rank.world_size > 1:
            said.append(f"{sum(waited.values()) / seconds:.0%} waiting" + (f" ({', '.join(parts)})" if parts else ""))
        return ", ".join([*said, f"{peak_memory_bytes(self.mesh.rank.device) / 1e9:.1f} GB"])


def begin_step_log(path: Path) -> None:
    """Makes `path` an empty file, its folders too; an `OSError` that names it when it cannot be written."""
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def _append(path: Path, content: bytes) -> None:
    with _named(path), open(path, "ab", buffering=0) as out:
        whole = os.fstat(out.fileno()).st_size
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[out.write(rest) :]
        except OSError:
            # A line cut short would make all of the file unreadable; what is no plain file cannot be cut.
            with contextlib.suppress(OSError):
                out.truncate(whole)
            raise


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    # A failing write or close does not say itself which file it is about.
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def known_peak(device: torch.device) -> float | None:
    """Operations a second of a GPU that the planner's table knows, in the type it trains in; None for all other devices."""
    if device.type != "cuda":
        return None
    # The planner's descriptions bring their checks along, which a rank needs for nothing else.
    from distributed.planner.machines import known_machines, load_cluster

    name = torch.cuda.get_device_name(device).lower()
    found = [machine for machine in known_machines() if machine.partition("-")[0] in name.replace("-", " ").split()]
    if not found:
        return None
    machine = load_cluster(found[0])
    return machine.peak(machine.training_dtype)


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process has held: of the GPU's memory, or resident in the machine's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
