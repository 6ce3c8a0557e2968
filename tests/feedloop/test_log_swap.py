"""A new log takes the place of the old one as a whole: a failure undoes the swap, a kill leaves one to finish."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from contracts.errors import BadInput
from contracts.workspace import Workspace
from feedloop.console import exclusive
from feedloop.log import bring_log

MOVES = 6
"""Renames of a swap where old and new log have both parts."""


def write(workspace: Workspace, name: str, parts: tuple[str, ...] = ("lake", "truth")) -> dict:
    for part in parts:
        (workspace.root / part).mkdir(parents=True)
        (workspace.root / part / "whose").write_text(name)
    return {"written": name}


def whose(workspace: Workspace) -> dict[str, str]:
    return {part.name: (part / "whose").read_text() for part in sorted(workspace.root.iterdir()) if part.is_dir()}


def after_moves(moves: int, end) -> None:
    """From now on the rename after so many calls `end` instead."""
    rename, done = Path.rename, []

    def counted(self: Path, target: Path) -> Path:
        if len(done) == moves:
            end(self)
        done.append(self)
        return rename(self, target)

    Path.rename = counted  # type: ignore[method-assign]


def bring_and_be_killed(workspace: Workspace, moves: int, parts: tuple[str, ...] = ("lake", "truth")) -> None:
    child = os.fork()
    if not child:
        after_moves(moves, lambda _: os._exit(9))
        with exclusive(workspace):
            bring_log(workspace, lambda staging: write(staging, "new", parts))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (9 if moves < MOVES else 0)


@pytest.mark.parametrize("moves", range(MOVES + 1))
def test_a_swap_that_is_killed_anywhere_is_finished_by_the_next_writer(moves, tmp_path):
    workspace = Workspace(tmp_path)
    write(workspace, "old")
    bring_and_be_killed(workspace, moves)

    def fail(staging: Workspace) -> dict:
        raise BadInput("this one fails")

    with exclusive(workspace), pytest.raises(BadInput, match="this one fails"):
        bring_log(workspace, fail)
    name = "new" if moves else "old"
    assert whose(workspace) == {"lake": name, "truth": name}


@pytest.mark.parametrize("moves", range(1, MOVES))
def test_a_reader_finds_the_new_log_after_a_kill_but_leaves_a_swap_under_way_alone(moves, tmp_path):
    workspace = Workspace(tmp_path)
    write(workspace, "old")
    bring_and_be_killed(workspace, moves)
    before = whose_anywhere(tmp_path)
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadInput):
            workspace.dataset()
        assert whose_anywhere(tmp_path) == before
    with pytest.raises(BadInput):  # these logs have no description
        workspace.dataset()
    assert whose(workspace) == {"lake": "new", "truth": "new"}


def whose_anywhere(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("whose"))}


@pytest.mark.parametrize("moves", range(1, 5))
def test_a_log_without_truth_takes_the_old_truth_away_also_after_a_kill(moves, tmp_path):
    workspace = Workspace(tmp_path)
    write(workspace, "old")
    bring_and_be_killed(workspace, moves, ("lake",))
    with exclusive(workspace):
        pass
    assert whose(workspace) == {"lake": "new"}


@pytest.mark.parametrize("moves", range(MOVES))
def test_a_swap_that_the_disk_refuses_anywhere_is_undone(moves, tmp_path, monkeypatch):
    workspace = Workspace(tmp_path)
    write(workspace, "old")
    monkeypatch.setattr(Path, "rename", Path.rename)
    refused: list[Path] = []

    def refuse_once(path: Path) -> None:
        if not refused:
            refused.append(path)
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    after_moves(moves, refuse_once)
    with exclusive(workspace), pytest.raises(PermissionError):
        bring_log(workspace, lambda staging: write(staging, "new"))
    assert refused and whose(workspace) == {"lake": "old", "truth": "old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "lake", "truth"]
