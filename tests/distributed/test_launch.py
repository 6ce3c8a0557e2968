"""Ranks start together, answer in order, and end together."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed import LayoutError, RankFailed, RankRefused, launch
from tests.distributed.workers import die_on, fail_on, ranks_and_sum, refuse_on


def test_results_come_in_rank_order_and_collectives_reach_all():
    assert launch(ranks_and_sum, (10,), 3) == [(0, 33.0), (1, 33.0), (2, 33.0)]


def test_one_rank_runs_in_this_process():
    assert launch(lambda rank: os.getpid(), (), 1) == [os.getpid()]


def test_a_failing_rank_stops_the_others_and_is_named_with_its_reason():
    begun = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 of 2 failed .*: ValueError: row 17 of rank 1 is broken"):
        launch(fail_on, (1,), 2)
    assert time.monotonic() - begun < 60, "the other rank was waited for until its time-out"


def test_a_killed_rank_stops_the_others_and_is_named_with_its_signal():
    with pytest.raises(RankFailed, match="rank 1 of 3 failed .*: its process was killed by SIGKILL"):
        launch(die_on, (1,), 3)


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/no/such/file", "/no/such/file: No such file or directory"), ("", "3 heads do not divide over tp=2")],
)
def test_what_the_user_can_mend_is_told_from_a_fault_of_the_rank(path: str, reason: str):
    with pytest.raises(RankRefused, match=f"rank 1 of 2 failed .*: {reason}$"):
        launch(refuse_on, (1, path), 2)


@pytest.mark.parametrize("nproc", [0, -1, 10**12])
def test_ranks_that_no_machine_can_start_are_refused(nproc: int):
    with pytest.raises(LayoutError, match=f"cannot start {nproc} ranks on one machine; it can be 1 to 1024"):
        launch(ranks_and_sum, (0,), nproc)


MET = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"RANK": "0", "WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc'; it must be a whole number from 1 to 1000000"),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '9999"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"RANK": "abc", "WORLD_SIZE": "1"}, "RANK is 'abc'"),
        ({"RANK": "", "WORLD_SIZE": "1"}, "RANK is ''"),
        ({"RANK": "5", "WORLD_SIZE": "1"}, "RANK is '5'; it must be a whole number from 0 to 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'; it must be a whole number from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set: rank 0 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", **MET, "MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"RANK": "0", "WORLD_SIZE": "2", **MET, "LOCAL_RANK": "x"}, "LOCAL_RANK is 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "2", **MET, "LOCAL_WORLD_SIZE": "-2"}, "LOCAL_WORLD_SIZE is '-2'"),
        ({"RANK": "0", "WORLD_SIZE": "2", **MET, "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is '2'.*0 to 1"),
        ({"RANK": "1", "WORLD_SIZE": "2", **MET}, "rank 1 of 2 did not meet the others at 127.0.0.1:1"),
    ],
)  # fmt: skip
def test_a_launchers_place_that_cannot_be_is_refused_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], sentence: str
):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LayoutError, match=sentence):
        launch(ranks_and_sum, (0,), 1, timeout_s=1.0)


def test_it_joins_the_ranks_of_a_launcher():
    script = "from distributed import launch\nfrom tests.distributed.workers import ranks_and_sum\nprint(launch(ranks_and_sum, (10,), 1))"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script], env={**common, "RANK": str(index)}, stdout=subprocess.PIPE, text=True
        )
        for index in range(2)
    ]
    assert [rank.communicate(timeout=60)[0].strip() for rank in ranks] == ["[(0, 21.0)]", "[(1, 21.0)]"]


def test_a_launcher_with_another_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(LayoutError, match="2 ranks were asked for, but the launcher of this process started 4"):
        launch(ranks_and_sum, (0,), 2)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the ranks in /proc")
def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path: Path):
    script = (
        "from distributed import launch\n"
        "from tests.distributed.workers import write_pid_and_wait\n"
        f"launch(write_pid_and_wait, ({str(tmp_path)!r},), 2)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script])
    ranks = _wait_for(
        lambda: [int(file.read_text()) for file in tmp_path.iterdir() if file.read_text()], lambda pids: len(pids) == 2
    )
    starter.kill()
    starter.wait()
    assert _wait_for(lambda: [pid for pid in ranks if _running(pid)], lambda pids: not pids) == []


def _wait_for(look: Callable[[], list[int]], enough: Callable[[list[int]], bool]) -> list[int]:
    deadline = time.monotonic() + 60
    while not enough(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return seen


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
