"""Machine descriptions: what one accelerator does, and what lies between accelerators, level by level.

A cluster is an accelerator, a list of levels from the innermost (NVLink domain, PCIe host) to the outermost (network),
and how many accelerators there are. Every figure of the shipped table carries its source (`machines.toml`).
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed.planner.descriptions import build, read_description
from distributed.planner.errors import PlanError

TABLE = Path(__file__).parent / "machines.toml"


@dataclass(frozen=True)
class Level:
    """One ring of the topology: `ranks` accelerators reach each other at it (0: any number).

    `gb_per_s` is what one accelerator can send, in 10^9 bytes a second; `efficiency` the share that collectives reach;
    `alpha_us` the time of an empty message.
    """

    name: str
    ranks: int
    gb_per_s: float
    alpha_us: float
    efficiency: float = 0.8

    def __post_init__(self) -> None:
        if self.ranks < 0 or self.gb_per_s <= 0 or self.alpha_us < 0 or self.efficiency <= 0:
            raise PlanError(
                f"level {self.name}: {self.ranks} ranks, {self.gb_per_s} GB/s, {self.alpha_us} us, efficiency {self.efficiency}: "
                "bandwidth and efficiency must be above 0, the others not below"
            )

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second that a collective reaches for one accelerator."""
        return self.gb_per_s * self.efficiency * 1e9


@dataclass(frozen=True)
class Efficiency:
    """How much of the peak is reached, one set per machine and none per row.

    A product of (M, K) and (K, N) runs at `matmul` / (1 + `half_size` (1/M + 1/N + 1/K)) of the peak, element-wise work at
    `memory` of the bandwidth, flash attention at `attention` of the peak. The overlaps are the shares of tensor-parallel
    (backward only), data-parallel and pipeline traffic hidden behind computation.
    """

    matmul: float
    half_size: float
    memory: float
    attention: float
    tp_overlap: float
    dp_overlap: float
    pp_overlap: float

    def __post_init__(self) -> None:
        if min(self.matmul, self.memory, self.attention) <= 0 or self.half_size < 0:
            raise PlanError("efficiencies of matmul, memory and attention must be above 0, half_size not below")


@dataclass(frozen=True)
class Cluster:
    """`gpus` accelerators of one kind. `tflops` by dtype, memory in GiB, bandwidth in 10^9 bytes a second."""

    name: str
    gpus: int
    tflops: dict[str, float]
    memory_gib: float
    memory_gb_per_s: float
    levels: tuple[Level, ...]
    efficiency: Efficiency
    sources: dict[str, str]
    dollars_per_hour: float = 0.0
    reserve_gib: float = 4.0

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise PlanError(f"cluster {self.name} has {self.gpus} accelerators; at least 1 is needed")
        if not any(dtype in self.tflops for dtype in ("bf16", "fp16", "fp32")) or min(self.tflops.values()) <= 0:
            raise PlanError(f"cluster {self.name}: tflops is {self.tflops}; bf16, fp16 or fp32 above 0 is needed")
        if min(self.memory_gib, self.memory_gb_per_s) <= 0:
            raise PlanError(
                f"cluster {self.name}: memory of {self.memory_gib} GiB at {self.memory_gb_per_s} GB/s cannot be"
            )
        if self.levels[-1].ranks and self.gpus > self.levels[-1].ranks:
            raise PlanError(
                f"cluster {self.name} joins at most {self.levels[-1].ranks} accelerators, {self.gpus} were asked for"
            )

    @property
    def per_node(self) -> int:
        """Accelerators in the innermost domain."""
        return self.levels[0].ranks or self.gpus

    @property
    def usable_bytes(self) -> float:
        """Memory of one accelerator less what the runtime and fragmentation take."""
        return (self.memory_gib - self.reserve_gib) * 2**30

    def peak(self, dtype: str = "bf16") -> float:
        """FLOP/s of one accelerator; the widest lower precision where it lacks `dtype`."""
        if dtype in self.tflops:
            return self.tflops[dtype] * 1e12
        raise PlanError(f"{self.name} has no {dtype}; it has {', '.join(self.tflops)}")

    @property
    def training_dtype(self) -> str:
        """bf16 where there is, else fp16, else fp32."""
        return next(dtype for dtype in ("bf16", "fp16", "fp32") if dtype in self.tflops)


def cluster_from(values: dict[str, Any], gpus: int | None, where: str) -> Cluster:
    """The cluster of a parsed object. With `machine` it starts from a shipped machine and overrides it."""
    values = dict(values)
    base = values.pop("machine", None)
    if base is not None:
        table = _table()
        if base not in table:
            raise PlanError(f"{where}: no machine {base!r}; known: {', '.join(table)}")
        values = {**table[base], **values}
    if not all(isinstance(level, dict) for level in values.get("levels", ())) or not isinstance(
        values.get("efficiency", {}), dict
    ):
        raise PlanError(f"{where}: levels is a list of objects, efficiency an object")
    levels = tuple(build(Level, level, f"{where}, levels") for level in values.get("levels", ()))
    if not levels:
        raise PlanError(f"{where}: a cluster needs at least one level")
    values["levels"] = levels
    values["efficiency"] = build(Efficiency, values.get("efficiency", {}), f"{where}, efficiency")
    values["gpus"] = values.get("gpus", levels[0].ranks or 1) if gpus is None else gpus
    return build(Cluster, {"name": where, "sources": {}, **values}, where)


def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(TABLE.read_text())


def known_machines() -> list[str]:
    """Names of the shipped machines."""
    return list(_table())


def load_cluster(name: str, gpus: int | None = None) -> Cluster:
    """A shipped machine by name (one node unless `gpus` says more), or a cluster from a .json or .toml file."""
    if name.endswith((".json", ".toml")):
        return cluster_from({"name": Path(name).stem, **read_description(Path(name))}, gpus, name)
    if name not in known_machines():
        raise PlanError(
            f"no machine {name!r}; known: {', '.join(known_machines())}, or a path to a .json or .toml file"
        )
    return cluster_from({"name": name, "machine": name}, gpus, name)
