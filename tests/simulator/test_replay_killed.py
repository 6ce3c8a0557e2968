"""A replay that is killed, truly, by signal 9: the report is the old one or the new one, whole, and a new run ends as if nothing was."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.workspace import Workspace
from simulator.replay import Question, ReplaySettings, replay

NAMES = ("replay.json", "replay.html")
QUESTION = ("--policy", "popularity")
PATIENCE_S = 120.0


def pair(workspace: Workspace) -> tuple[bytes, ...]:
    """JSON and page as a reader finds them, which must come from one replay."""
    assert len({(workspace.reports / name).resolve().parent for name in NAMES}) == 1
    return tuple((workspace.reports / name).read_bytes() for name in NAMES)


def start(workspace: Workspace, variables: dict[str, str], log: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "feedloop", "replay", "--workspace", str(workspace.root), *QUESTION]
    return subprocess.Popen(command, env={**os.environ, **variables}, stderr=log.open("w"), stdout=subprocess.DEVNULL,
                            cwd=Path(__file__).parents[2])  # fmt: skip


def kill_when(process: subprocess.Popen, reached: Callable[[], bool]) -> None:
    """SIGKILL at the moment when `reached`, or not at all when the process was faster."""
    begun = time.monotonic()
    while not reached() and process.poll() is None:
        assert time.monotonic() - begun < PATIENCE_S
        time.sleep(0.0002)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def uninterrupted(judged, replay_settings, tmp_path_factory) -> tuple[bytes, ...]:
    """What the replay that gets killed below ends with when nobody kills it."""
    root = tmp_path_factory.mktemp("uninterrupted") / "workspace"
    shutil.copytree(judged.root, root, symlinks=True)
    replay(Workspace(root), replay_settings.model_copy(update={"seed": 8}), Question(("popularity",)))
    return pair(Workspace(root))


@pytest.mark.parametrize("moment", ["judging", "writing"])
def test_a_killed_replay_leaves_a_whole_report_and_the_next_run_ends_as_if_nothing_was(
    copy, tmp_path, small_replays, replay_settings: ReplaySettings, uninterrupted, moment
):
    earlier, log = pair(copy), tmp_path / "stderr"
    process = start(copy, {**small_replays, "FEEDLOOP_REPLAY_SEED": "8"}, log)
    if moment == "judging":
        kill_when(process, lambda: "judge the policies" in log.read_text())
    else:
        kill_when(process, lambda: any((copy.artifacts.root / "report").glob(".building-*")))
    assert process.returncode == -signal.SIGKILL
    assert pair(copy) == earlier != uninterrupted

    replay(copy, replay_settings.model_copy(update={"seed": 8}), Question(("popularity",)))
    assert pair(copy) == uninterrupted
    assert not list(copy.artifacts.root.glob("*/.building-*"))
