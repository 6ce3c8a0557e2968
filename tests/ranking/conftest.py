"""One small workspace and the two models trained on it, shared by the room's tests."""

from pathlib import Path

import numpy as np
import pytest

from contracts.workspace import Workspace
from ranking.prerank import train_prerank
from ranking.settings import PrerankSettings, RankerSettings
from ranking.train import train_ranker
from tests.ranking.synthetic import samples_table, workspace_with

SMALL = RankerSettings(batch_size=256, epochs=8, learning_rate=1e-2, expert_width=16, tower_width=8, category_rows=5)
FEW_TREES = PrerankSettings(trees=25, leaves=8, rows_per_leaf=20, learning_rate=0.1, threads=1)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return workspace_with(tmp_path_factory.mktemp("ranking"), samples_table(np.random.default_rng(3), 12_000))


@pytest.fixture(scope="session")
def prerank(workspace: Workspace) -> dict:
    return train_prerank(workspace, FEW_TREES)


@pytest.fixture(scope="session")
def ranker(workspace: Workspace) -> dict:
    return train_ranker(workspace, SMALL)


@pytest.fixture
def small_table() -> object:
    return samples_table(np.random.default_rng(4), 600)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "workspace"
