"""Writes the ranker as one ONNX graph: raw inputs in, calibrated probabilities out."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from contracts.features import INPUT_NAMES
from contracts.onnx_file import write_onnx
from ranking.mmoe import MMoE
from ranking.transform import InputTransform


class ServedRanker(nn.Module):
    """Transform, network and calibration in one; a task without labels has probability 0.

    Legend: N rows, F inputs, T tasks.
    """

    def __init__(self, transform: InputTransform, network: MMoE, platt_T2: np.ndarray, tasks_T: np.ndarray):
        super().__init__()
        self.transform = transform
        self.network = network
        self.register_buffer("platt_T2", torch.from_numpy(platt_T2))
        self.register_buffer("tasks_T", torch.from_numpy(tasks_T.astype(np.float64)))

    def forward(self, inputs_NF: torch.Tensor) -> torch.Tensor:
        """Probabilities (N, T)."""
        logits_NT = self.network(*self.transform(inputs_NF))
        return torch.sigmoid(logits_NT * self.platt_T2[:, 0] + self.platt_T2[:, 1]) * self.tasks_T


def export_onnx(served: ServedRanker, path: Path) -> None:
    """Writes `served`, which must be float32 and on the CPU, with input "inputs" (N, F) and output "probabilities"."""
    rows = {0: torch.export.Dim("rows", min=1)}
    write_onnx(
        served, (torch.zeros(3, len(INPUT_NAMES)),), path, inputs=["inputs"], output="probabilities", dynamic=(rows,)
    )
