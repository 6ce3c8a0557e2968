"""Which CPUs a rank should compute on: those of the memory node beside its GPU or network card, where the machine tells.

Linux tells in /sys. A rank that runs on one node's CPUs and has its memory, GPU or card on another pays for every byte twice.
"""

import os
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import torch

from distributed.given import local_place
from distributed.mesh import ParallelLayout

SYS = Path("/sys")


@dataclass(frozen=True)
class Affinity:
    """`node` None: there is nothing to choose. `networks`: interfaces whose card is beside the node."""

    node: int | None
    cpus: tuple[int, ...]
    networks: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.node is None:
            return "one memory node, nothing to pin"
        beside = f", beside {', '.join(self.networks)}" if self.networks else ""
        return f"memory node {self.node}, {len(self.cpus)} CPUs{beside}"


def affinity(local_index: int, local_ranks: int, device: torch.device | None = None, *, sys: Path = SYS,
             allowed: Set[int] | None = None) -> Affinity:  # fmt: skip
    """Where the rank `local_index` of the `local_ranks` on this machine belongs: at its GPU's memory node; without a GPU, or
    where its node is unknown, neighbouring ranks (of tp and cp) share a node. `allowed`: CPUs that this process may use."""
    allowed = _allowed() if allowed is None else allowed
    nodes = {node: cpus for node, cpus in memory_nodes(sys).items() if cpus & allowed}
    if len(nodes) < 2:
        return Affinity(None, tuple(sorted(allowed)))
    node = _gpu_node(device, sys) if device is not None else None
    if node not in nodes:
        node = sorted(nodes)[local_index * len(nodes) // local_ranks]
    networks = tuple(name for name, place in sorted(network_nodes(sys).items()) if place == node)
    return Affinity(node, tuple(sorted(nodes[node] & allowed)), networks)


def pin(where: Affinity) -> None:
    """Keeps this process on those CPUs; where there is nothing to choose it does nothing."""
    if where.node is not None:
        os.sched_setaffinity(0, where.cpus)


def memory_nodes(sys: Path = SYS) -> dict[int, set[int]]:
    """The CPUs of each memory node; empty where the machine does not tell."""
    found = {}
    for folder in sorted((sys / "devices/system/node").glob("node[0-9]*")):
        text = _read(folder / "cpulist")
        if text:
            spans = [span.partition("-") for span in text.split(",")]
            found[int(folder.name[4:])] = {
                cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)
            }
    return found


def network_nodes(sys: Path = SYS) -> dict[str, int]:
    """The memory node of each network card; interfaces without one are left out."""
    found = {path.parent.parent.name: _read(path) for path in (sys / "class/net").glob("*/device/numa_node")}
    return {name: int(text) for name, text in found.items() if re.fullmatch(r"\d+", text)}


def placement(layout: ParallelLayout) -> str:
    """Which rank stands where, what each axis crosses, and this process's place in its machine."""
    local_index, local_ranks = local_place(layout.world_size)
    here = affinity(local_index, local_ranks)
    return f"{layout.placement(local_ranks)}\n{here}"


def _allowed() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _gpu_node(device: torch.device, sys: Path) -> int | None:
    if device.type != "cuda":
        return None
    card = torch.cuda.get_device_properties(device)
    address = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    text = _read(sys / "bus/pci/devices" / address / "numa_node")
    return int(text) if re.fullmatch(r"\d+", text) else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
