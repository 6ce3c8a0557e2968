"""The training platform: ranks, layouts, gradient reduction and one training loop. Knows nothing of feeds."""

from distributed.errors import LayoutError, RankFailed, RankRefused
from distributed.launch import launch
from distributed.mesh import ParallelLayout
from distributed.rank import Rank
from distributed.sampler import EpochBatches
from distributed.trainer import TrainerSettings, TrainResult, train

__all__ = [
    "EpochBatches", "LayoutError", "ParallelLayout", "Rank", "RankFailed", "RankRefused", "TrainResult", "TrainerSettings",
    "launch", "train",
]  # fmt: skip
