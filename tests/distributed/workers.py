"""Worker functions of the tests: they lie in a module of their own because ranks import them by name."""

import gc
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from distributed import LayoutError, ParallelLayout, Rank, TrainerSettings, TrainResult, train
from distributed.groups import Mesh
from distributed.sharded_data import ShardedData


def ranks_and_sum(rank: Rank, offset: int) -> tuple[int, float]:
    return rank.index, rank.sum_(torch.tensor(float(rank.index + offset))).item()


def fail_on(rank: Rank, index: int) -> None:
    if rank.index == index:
        raise ValueError(f"row 17 of rank {index} is broken")
    rank.sum_(torch.zeros(3))


def refuse_on(rank: Rank, index: int, path: str) -> None:
    """Opens `path`, or where there is none finds that the layout cannot be."""
    if rank.index == index:
        if path:
            open(path).close()
        raise LayoutError("3 heads do not divide over tp=2")
    rank.sum_(torch.zeros(3))


def die_on(rank: Rank, index: int) -> None:
    rank.sum_(torch.zeros(3))
    if rank.index == index:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    rank.sum_(torch.zeros(3))


def left_behind(rank: Rank) -> tuple[int, int]:
    """(meshes and holders of parameters that are alive, threads of this process)."""
    gc.collect()
    alive = sum(type(item) in (Mesh, ShardedData) for item in gc.get_objects())
    return alive, len(os.listdir("/proc/self/task"))


class Network(nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs_BF: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs_BF)[:, 0]


class Problem:
    """Weighted least squares whose row weights are very uneven, so that a mean of ranks' means is far off."""

    def __init__(self, rows: int = 203, nan_row: int | None = None):
        rng = np.random.default_rng(5)
        self.inputs_NF = rng.normal(size=(rows, 6))
        self.targets_N = np.sin(self.inputs_NF[:, 0]) + self.inputs_NF[:, 1] * self.inputs_NF[:, 2]
        self.weights_N = np.where(rng.random(rows) < 0.2, 10.0, 0.1)
        if nan_row is not None:
            self.targets_N[nan_row] = np.nan

    def _weighted(self, module: nn.Module, indices_B: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        inputs_BF, targets_B, weights_B = (
            torch.from_numpy(a[indices_B]) for a in (self.inputs_NF, self.targets_N, self.weights_N)
        )
        return (weights_B * (module(inputs_BF) - targets_B) ** 2).sum(), weights_B.sum()

    def loss(self, module: nn.Module, indices_B: np.ndarray) -> tuple[torch.Tensor, float]:
        loss_sum, weight = self._weighted(module, indices_B)
        return loss_sum, weight.item()

    def loss_of_means(self, module: nn.Module, indices_B: np.ndarray) -> tuple[torch.Tensor, float]:
        """The fault: each rank divides by its own weight."""
        loss_sum, weight = self._weighted(module, indices_B)
        return loss_sum / weight, 1.0

    def validate(self, module: nn.Module, indices_B: np.ndarray) -> torch.Tensor:
        good_B = indices_B[np.isfinite(self.targets_N[indices_B])]
        return torch.stack(self._weighted(module, good_B))[None, :]


def fit(rank: Rank, settings: TrainerSettings, faulty: bool = False, nan_row: int | None = None,
        layout: ParallelLayout | None = None) -> TrainResult:  # fmt: skip
    problem = Problem(nan_row=nan_row)
    # Each rank starts elsewhere: only the broadcast makes them equal.
    network = Network(seed=rank.index)
    loss = problem.loss_of_means if faulty else problem.loss
    return train(network, loss, 203, problem.validate, 203, settings, rank, layout=layout)


def fit_from_random_start(rank: Rank, settings: TrainerSettings) -> TrainResult:
    return fit(rank, settings)


def write_pid_and_wait(rank: Rank, folder: str) -> None:
    Path(folder, str(rank.index)).write_text(str(os.getpid()))
    time.sleep(300)
