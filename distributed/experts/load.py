"""What a mixture did: tokens per expert, how uneven, what was dropped; the line for the log."""

from dataclasses import dataclass, field
from typing import Any

import torch

from distributed.exchange import summed
from distributed.groups import Group
from distributed.ledger import Ledger


@dataclass
class ExpertLoad:
    """Counts of one layer over a step's micro-batches on this rank, (E,) each: choices routed and choices dropped."""

    experts: int
    routed_E: torch.Tensor = field(init=False)
    dropped_E: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Starts a new step."""
        self.routed_E = torch.zeros(self.experts, dtype=torch.int64)
        self.dropped_E = torch.zeros(self.experts, dtype=torch.int64)

    def add(self, routed_E: torch.Tensor, dropped_E: torch.Tensor) -> None:
        """Counts one forward."""
        self.routed_E += routed_E.cpu()
        self.dropped_E += dropped_E.cpu()

    def report(self, data: Group, ledger: Ledger | None = None, axis: str = "ep") -> dict[str, Any]:
        """Over all ranks of `data`: tokens per expert, max / mean, drop rate; with a `ledger` also the bytes that this
        rank sent along `axis` and the seconds until they had arrived."""
        routed_E, dropped_E = (
            summed(counts_E.to(_device(data)), data).cpu() for counts_E in (self.routed_E, self.dropped_E)
        )
        total = int(routed_E.sum())
        found: dict[str, Any] = {
            "tokens_per_expert": routed_E.tolist(),
            "max_over_mean": float(routed_E.max()) * self.experts / total if total else 0.0,
            "dropped": int(dropped_E.sum()),
            "drop_rate": int(dropped_E.sum()) / total if total else 0.0,
        }
        if ledger is not None:
            moved = [line for line in ledger.lines() if line.axis == axis]
            found["bytes_sent"] = sum(line.bytes_sent for line in moved)
            found["seconds"] = sum(line.seconds for line in moved)
        return found


def _device(group: Group) -> torch.device:
    nccl = group.handle is not None and torch.distributed.get_backend(group.handle) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
