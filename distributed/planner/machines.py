"""Machine descriptions: what one accelerator does, and what lies between accelerators, level by level.

A cluster is an accelerator, a list of levels from the innermost (NVLink domain, PCIe host) to the outermost (network),
and how many accelerators there are. Every figure of the shipped table carries its source (`machines.toml`).
"""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed.planner.descriptions import build, read_description
from distributed.planner.errors import PlanError

TABLE = Path(__file__).parent / "machines.toml"


@dataclass(frozen=True)
class MeasuredCollective:
    """What one kind of collective takes on a calibrated machine: `alpha_us` a step of the ring, `gb_per_s` sent by a rank."""

    kind: str
    alpha_us: float
    gb_per_s: float

    def __post_init__(self) -> None:
        if self.gb_per_s <= 0 or self.alpha_us < 0:
            raise PlanError(f"collective {self.kind}: {self.alpha_us} us and {self.gb_per_s} GB/s cannot be")


@dataclass(frozen=True)
class Level:
    """One ring of the topology: `ranks` accelerators reach each other at it (0: any number).

    `gb_per_s` is what one accelerator can send, in 10^9 bytes a second; `efficiency` the share that collectives reach;
    `alpha_us` the time of an empty message. `measured`: kinds that calibration timed, which go before the other figures.
    """

    name: str
    ranks: int
    gb_per_s: float
    alpha_us: float
    efficiency: float = 0.8
    measured: tuple[MeasuredCollective, ...] = ()

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

    def of(self, kind: str) -> tuple[float, float]:
        """(seconds of an empty message, bytes a second) of one kind of collective."""
        for one in self.measured:
            if one.kind == kind:
                return one.alpha_us * 1e-6, one.gb_per_s * 1e9
        return self.alpha_us * 1e-6, self.bytes_per_s


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
class Kernels:
    """What the platform's own transformer takes beside its matrix products, measured on a rank while all others work.

    `*_us` a layer, end or step, whatever its size; `*_ns` one element: an element-wise value, an attention score of 64
    channels (of whole sequences, or of a block of the ring), a routed value of an expert layer, a logit, a parameter that is updated.
    `split`: a backward in two parts over a whole one.
    """

    layer_forward_us: float
    layer_backward_us: float
    value_forward_ns: float
    value_backward_ns: float
    score_forward_ns: float
    score_backward_ns: float
    ring_forward_ns: float
    ring_backward_ns: float
    sparse_forward_us: float
    sparse_backward_us: float
    routed_forward_ns: float
    routed_backward_ns: float
    end_us: float
    logit_ns: float
    update_us: float
    update_ns: float
    split: float

    def __post_init__(self) -> None:
        if any(value < 0 for value in asdict(self).values()) or self.split <= 0:
            raise PlanError("a kernel's time is below 0, or split is not above 0")


@dataclass(frozen=True)
class Cluster:
    """`gpus` accelerators of one kind. `tflops` by dtype, memory in GiB, bandwidth in 10^9 bytes a second.

    `cores` that the ranks of a node share, `threads` each; 0: every accelerator is its own. `kernels` of a calibrated one.
    """

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
    cores: int = 0
    threads: int = 1
    kernels: Kernels | None = None

    def __post_init__(self) -> None:
        if self.cores < 0 or self.threads < 1:
            raise PlanError(f"cluster {self.name}: {self.cores} cores and {self.threads} threads a rank cannot be")
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
    def crowd(self) -> float:
        """How many ranks share one core's time: 1 where each has as many cores as threads."""
        return max(1.0, min(self.gpus, self.per_node) * self.threads / self.cores) if self.cores else 1.0

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
        """The fastest of bf16, fp16 and fp32, in that order where they are equal."""
        return max((dtype for dtype in ("bf16", "fp16", "fp32") if dtype in self.tflops), key=self.tflops.__getitem__)


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
    if values.get("kernels") is not None:
        if not isinstance(values["kernels"], dict):
            raise PlanError(f"{where}: kernels is not an object")
        values["kernels"] = build(Kernels, values["kernels"], f"{where}, kernels")
    levels = tuple(_level(level, f"{where}, levels") for level in values.get("levels", ()))
    if not levels:
        raise PlanError(f"{where}: a cluster needs at least one level")
    values["levels"] = levels
    values["efficiency"] = build(Efficiency, values.get("efficiency", {}), f"{where}, efficiency")
    values["gpus"] = values.get("gpus", levels[0].ranks or 1) if gpus is None else gpus
    return build(Cluster, {"name": where, "sources": {}, **values}, where)


def _level(values: dict[str, Any], where: str) -> Level:
    timed = values.get("measured", ())
    if not isinstance(timed, list | tuple) or not all(isinstance(one, dict) for one in timed):
        raise PlanError(f"{where}: measured is not a list of objects")
    measured = tuple(build(MeasuredCollective, one, f"{where}, measured") for one in timed)
    return build(Level, {**values, "measured": measured}, where)


def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(TABLE.read_text())


def known_machines() -> list[str]:
    """Names of the shipped machines."""
    return list(_table())


def load_cluster(name: str, gpus: int | None = None, calibrated: Path | None = None) -> Cluster:
    """A shipped machine by name (one node unless `gpus` says more), or a cluster from a .json or .toml file.

    `calibrated` is the folder where calibrated machines lie, NAME.json each.
    """
    if calibrated is not None and name not in known_machines() and (calibrated / f"{name}.json").is_file():
        name = str(calibrated / f"{name}.json")
    if name.endswith((".json", ".toml")):
        return cluster_from({"name": Path(name).stem, **read_description(Path(name))}, gpus, name)
    if name not in known_machines():
        raise PlanError(
            f"no machine {name!r}; known: {', '.join(known_machines())}, or a path to a .json or .toml file"
        )
    return cluster_from({"name": name, "machine": name}, gpus, name)
