"""Starts local ranks, or joins those that torchrun or a scheduler started, and sees that all end together."""

import contextlib
import datetime
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from distributed.affinity import affinity, pin
from distributed.errors import LayoutError, RankFailed, RankRefused
from distributed.given import GivenPlace, given_place, given_world_size
from distributed.rank import Rank

_LOOPBACK = "127.0.0.1"
_SPEAK_UP_S = 2.0
"""How long the other ranks get to say their own reason after the first one failed, before they are ended."""

_LOST_PEER = ("closed by peer", "reset by peer", "Timed out waiting", "Broken pipe")
"""How gloo words the loss of another rank."""


def launch(worker: Callable[..., Any], arguments: Sequence[Any] = (), nproc: int = 1, *, timeout_s: float = 60.0,
           threads: int = 1) -> list[Any]:  # fmt: skip
    """Runs `worker(rank, *arguments)` on `nproc` ranks and returns their results in rank order.

    One rank runs in this process. More run in processes of their own (forkserver), over gloo on loopback, or NCCL when
    there is a GPU for each. Under torchrun (RANK and WORLD_SIZE set) this process joins as the rank it is told to be,
    and the list holds its own result alone. `timeout_s` bounds each collective, not the run. Each rank computes on
    `threads` CPU threads: for small models more ranks gain more than more threads, whose waiting costs most on a busy
    machine; where the machine has several memory nodes, each keeps to the CPUs of one. `worker` and `arguments` must be
    picklable.

    Raises `LayoutError` when there cannot be so many ranks, or the environment's place is none; `RankFailed` when a rank
    fails (the others are stopped first), `RankRefused` where the user can mend it; with one rank, what the worker raised.
    """
    place = given_place(nproc)
    if place is None and given_world_size(nproc) > 1:
        return _start_local(worker, arguments, nproc, timeout_s, threads)
    with _threads(threads):
        if place is not None:
            return [_join_given(worker, arguments, place, timeout_s)]
        return [worker(Rank(device=_device(0, 1)), *arguments)]


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _device(local_index: int, local_ranks: int) -> torch.device:
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        return torch.device("cuda", local_index)
    return torch.device("cpu")


def _join_given(worker: Callable[..., Any], arguments: Sequence[Any], place: GivenPlace, timeout_s: float) -> Any:
    rank = Rank(place.index, place.world_size, _device(place.local_index, place.local_ranks))
    if rank.world_size == 1:
        return worker(rank, *arguments)
    pin(affinity(place.local_index, place.local_ranks, rank.device))
    with contextlib.ExitStack() as joined:
        try:
            joined.enter_context(_group(rank, timeout_s, {"init_method": "env://"}))
        except dist.DistError as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise LayoutError(
                f"rank {rank.index} of {rank.world_size} did not meet the others at {where} (MASTER_ADDR, MASTER_PORT): "
                f"{str(error).splitlines()[0]}"
            ) from error
        return worker(rank, *arguments)


@contextlib.contextmanager
def _group(rank: Rank, timeout_s: float, meeting: dict[str, Any]) -> Iterator[None]:
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    dist.init_process_group(
        "nccl" if rank.device.type == "cuda" else "gloo", rank=rank.index, world_size=rank.world_size,
        timeout=datetime.timedelta(seconds=timeout_s), device_id=rank.device if rank.device.type == "cuda" else None,
        **meeting,
    )  # fmt: skip
    # A rank that has nothing to say must not leave while others are still connecting to it.
    dist.barrier()
    try:
        yield
    finally:
        dist.destroy_process_group()


def _start_local(worker: Callable[..., Any], arguments: Sequence[Any], nproc: int, timeout_s: float,
                 threads: int) -> list[Any]:  # fmt: skip
    # The store lives here, on a port that the system picked, so that no other process can take it in between.
    store = dist.TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    processes: list[BaseProcess] = []
    pipes: list[connection.Connection] = []
    try:
        for index in range(nproc):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_rank,
                args=(there, worker, tuple(arguments), index, nproc, store.port, timeout_s, threads),
                daemon=True,
            )
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        return _collect(processes, pipes)
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()


def _run_rank(pipe: connection.Connection, worker: Callable[..., Any], arguments: tuple, index: int, nproc: int,
              port: int, timeout_s: float, threads: int) -> None:  # fmt: skip
    _die_with_parent()
    torch.set_num_threads(threads)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        rank = Rank(index, nproc, _device(index, nproc))
        pin(affinity(index, nproc, rank.device))
        store = dist.TCPStore(_LOOPBACK, port, is_master=False, timeout=datetime.timedelta(seconds=timeout_s))
        with _group(rank, timeout_s, {"store": store}):
            # Plain pickle: torch's own would share tensors through this process, which is about to end.
            pipe.send_bytes(pickle.dumps(("done", worker(rank, *arguments))))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(_why(error)))


def _why(error: BaseException) -> tuple[str, str]:
    """(lost peer, refused or failed; the reason in a line)."""
    if isinstance(error, LayoutError):
        return "refused", str(error)
    if isinstance(error, OSError) and error.filename:
        return "refused", f"{error.filename}: {error.strerror}"
    lost_peer = isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST_PEER)
    return "lost peer" if lost_peer else "failed", traceback.format_exception_only(error)[-1].strip().splitlines()[0]


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()


def _collect(processes: list[BaseProcess], pipes: list[connection.Connection]) -> list[Any]:
    """All results in rank order; on the first failure waits briefly for the others' reasons and raises the first cause."""
    results: dict[int, Any] = {}
    failures: dict[int, tuple[str, str]] = {}
    waiting = dict(enumerate(pipes))
    deadline: float | None = None
    while waiting and (deadline is None or time.monotonic() < deadline):
        ready = connection.wait(
            list(waiting.values()), None if deadline is None else max(0.0, deadline - time.monotonic())
        )
        for index in [index for index, pipe in waiting.items() if pipe in ready]:
            try:
                kind, content = pickle.loads(waiting.pop(index).recv_bytes())
            except EOFError:
                processes[index].join()
                kind, content = "died", _how_it_died(processes[index].exitcode)
            if kind == "done":
                results[index] = content
            else:
                failures[index] = (kind, content)
                deadline = deadline or time.monotonic() + _SPEAK_UP_S
    if failures:
        # A rank that only lost its peer is a consequence; the one that died or raised is the cause.
        index, (kind, reason) = min(failures.items(), key=lambda item: (item[1][0] == "lost peer", item[0]))
        raise (RankRefused if kind == "refused" else RankFailed)(
            f"rank {index} of {len(processes)} failed and the others were stopped: {reason}"
        )
    return [results[index] for index in range(len(processes))]


def _how_it_died(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its process was killed by {signal.Signals(-exit_code).name}"
    return f"its process ended with exit code {exit_code} and no result"


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
