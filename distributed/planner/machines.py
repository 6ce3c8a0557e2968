"""Machine descriptions: what one accelerator does, and what lies between accelerators, level by level.

A cluster is an accelerator, a list of levels from the innermost (NVLink domain, PCIe host) to the outermost (network),
and how many accelerators there are. Every figure of the shipped table carries its source (`machines.toml`).
"""

import tomllib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from distributed.planner.described import Described, Figure, Positive, Share, Size, build
from distributed.planner.descriptions import read_description
from distributed.planner.errors import PlanError

TABLE = Path(__file__).parent / "machines.toml"
MOST_ACCELERATORS = 262_144
"""Of a cluster: a search goes over the divisors of the number, and over those of each quotient."""


@dataclass(frozen=True)
class MeasuredCollective(Described):
    """What one kind of collective takes on a calibrated machine: `alpha_us` a step of the ring, `gb_per_s` sent by a rank."""

    kind: str
    alpha_us: Figure
    gb_per_s: Positive


@dataclass(frozen=True)
class Level(Described):
    """One ring of the topology: `ranks` accelerators reach each other at it (0: any number).

    `gb_per_s` is what one accelerator can send, in 10^9 bytes a second; `efficiency` the share that collectives reach;
    `alpha_us` the time of an empty message. `measured`: kinds that calibration timed, which go before the other figures.
    """

    name: str
    ranks: Size
    gb_per_s: Positive
    alpha_us: Figure
    efficiency: Positive = 0.8
    measured: tuple[MeasuredCollective, ...] = ()

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
class Efficiency(Described):
    """How much of the peak is reached, one set per machine and none per row.

    A product of (M, K) and (K, N) runs at `matmul` / (1 + `half_size` (1/M + 1/N + 1/K)) of the peak, element-wise work at
    `memory` of the bandwidth, flash attention at `attention` of the peak. The overlaps are the shares of tensor-parallel
    (backward only), data-parallel and pipeline traffic hidden behind computation.
    """

    matmul: Positive
    half_size: Figure
    memory: Positive
    attention: Positive
    tp_overlap: Share
    dp_overlap: Share
    pp_overlap: Share


@dataclass(frozen=True)
class Kernels(Described):
    """What the platform's own transformer takes beside its matrix products, measured on a rank while all others work.

    `*_us` a layer, end or step, whatever its size; `*_ns` one element: an element-wise value, an attention score of 64
    channels (of whole sequences, or of a block of the ring), a routed value of an expert layer, a logit, a parameter that is updated.
    `split`: a backward in two parts over a whole one.
    """

    layer_forward_us: Figure
    layer_backward_us: Figure
    value_forward_ns: Figure
    value_backward_ns: Figure
    score_forward_ns: Figure
    score_backward_ns: Figure
    ring_forward_ns: Figure
    ring_backward_ns: Figure
    sparse_forward_us: Figure
    sparse_backward_us: Figure
    routed_forward_ns: Figure
    routed_backward_ns: Figure
    end_us: Figure
    logit_ns: Figure
    update_us: Figure
    update_ns: Figure
    split: Positive


@dataclass(frozen=True)
class Cluster(Described):
    """`gpus` accelerators of one kind. `tflops` by dtype, memory in GiB, bandwidth in 10^9 bytes a second.

    `cores` that the ranks of a node share, `threads` each; 0: every accelerator is its own. `kernels` of a calibrated one.
    """

    name: str
    gpus: int
    tflops: dict[str, Positive]
    memory_gib: Positive
    memory_gb_per_s: Positive
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    efficiency: Efficiency
    sources: dict[str, str]
    dollars_per_hour: Figure = 0.0
    reserve_gib: Figure = 4.0
    cores: Size = 0
    threads: Annotated[int, Field(ge=1, le=10**6)] = 1
    kernels: Kernels | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_ACCELERATORS:
            raise PlanError(
                f"cluster {self.name} has {self.gpus} accelerators; 1 to {MOST_ACCELERATORS:,} can be planned on"
            )
        if not any(dtype in self.tflops for dtype in ("bf16", "fp16", "fp32")):
            raise PlanError(
                f"cluster {self.name}: tflops of {', '.join(self.tflops) or 'no type'}; bf16, fp16 or fp32 is needed"
            )
        if self.reserve_gib >= self.memory_gib:
            raise PlanError(
                f"cluster {self.name}: a reserve of {self.reserve_gib} GiB leaves nothing of a memory of {self.memory_gib} GiB"
            )
        if any(not inner.ranks or 0 < outer.ranks <= inner.ranks for inner, outer in pairwise(self.levels)):
            joined = ", ".join(f"{level.name} {level.ranks or 'any number'}" for level in self.levels)
            raise PlanError(
                f"cluster {self.name}: levels join {joined} accelerators; each must join more than the one before"
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
        if not isinstance(base, str) or base not in table:
            raise PlanError(f"{where}: no machine {base!r}; known: {', '.join(table)}")
        values = {**table[base], **values}
    if gpus is not None:
        values["gpus"] = gpus
    cluster: Cluster = build(Cluster, {"name": where, "sources": {}, "gpus": 1, **values}, where)
    return cluster if "gpus" in values else replace(cluster, gpus=cluster.levels[0].ranks or 1)


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
