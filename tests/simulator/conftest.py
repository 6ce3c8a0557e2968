"""What the replay tests share: one small judged log, and settings under which a replay takes a moment."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.workspace import Workspace
from simulator.replay import ReplaySettings, replay
from tests.simulator.judged_log import make_judged_log

SMALL = {"test_requests": 150, "validation_requests": 120, "resamples": 100, "regression_trees": 10, "threads": 1,
         "truth_orderings": 2, "parity_requests": 20}  # fmt: skip


@pytest.fixture(scope="session")
def replay_settings() -> ReplaySettings:
    """Small samples, few resamples."""
    return ReplaySettings(**SMALL)


@pytest.fixture
def small_replays(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same settings in the environment, for the command line; returns the variables."""
    variables = {f"FEEDLOOP_REPLAY_{name.upper()}": str(value) for name, value in SMALL.items()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory, replay_settings: ReplaySettings) -> Workspace:
    """A log with samples and models, and one replay of it; not to be changed."""
    workspace = make_judged_log(tmp_path_factory.mktemp("judged") / "workspace")
    replay(workspace, replay_settings)
    return workspace


@pytest.fixture
def copy(judged: Workspace, tmp_path: Path) -> Iterator[Workspace]:
    """A copy of the judged log, report and all, for a test to spoil."""
    shutil.copytree(judged.root, tmp_path / "copy", symlinks=True)
    yield Workspace(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
