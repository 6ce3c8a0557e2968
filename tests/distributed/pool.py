"""Ranks that are started once and serve many tests: a start costs seconds, a test a tenth of one."""

import atexit
import contextlib
import datetime
import gc
import multiprocessing as mp
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist

from distributed import Rank, RankFailed

_LOOPBACK = "127.0.0.1"
_GRACE_S = 2.0
_DIED = "its process died"
_NOT_JOINED = "could not join the others"
_LOADED, _GO = b"loaded", b"go"


class RankPool:
    """Up to `size` waiting ranks. A hang ends by the collectives' time-out and is a failure that names its ranks."""

    def __init__(self, size: int = 8):
        self._size = size
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []
        self._jobs = 0
        self._store = dist.TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)

    def run(self, worker: Callable[..., Any], arguments: Sequence[Any] = (), nproc: int = 2, *, timeout_s: float = 15.0,
            deadline_s: float = 120.0) -> list[Any]:  # fmt: skip
        """Runs `worker(rank, *arguments)` on `nproc` ranks; results in rank order. `worker` must be importable.

        `timeout_s` bounds each collective, `deadline_s` the whole. `RankFailed` names the first rank that failed, or
        the ranks that were still at work at the deadline; where a rank gave no answer the pool starts anew.
        """
        if nproc > self._size:
            raise ValueError(f"{nproc} ranks were asked of a pool of {self._size}")
        new = range(len(self._processes), nproc)
        for _ in new:
            self._start()
        for index in new:
            # A slow start on a busy machine must not count against the first collective's time-out.
            self._pipes[index].recv_bytes()
        self._jobs += 1
        job = pickle.dumps((worker, tuple(arguments), nproc, f"job{self._jobs}", timeout_s))
        for pipe in self._pipes[:nproc]:
            pipe.send_bytes(job)
        self._wait_until_loaded(nproc, time.monotonic() + deadline_s)
        for pipe in self._pipes[:nproc]:
            pipe.send_bytes(_GO)
        return self._collect(nproc, time.monotonic() + deadline_s)

    def close(self) -> None:
        """Ends all ranks."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed"])
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, len(self._processes), self._store.port), daemon=True)
        process.start()
        there.close()
        self._processes.append(process)
        self._pipes.append(here)

    def _wait_until_loaded(self, nproc: int, deadline: float) -> None:
        # Nor must the imports of a job: on a busy machine one rank may take many seconds longer than another.
        for index, pipe in enumerate(self._pipes[:nproc]):
            try:
                said = pipe.recv_bytes() if pipe.poll(max(0.0, deadline - time.monotonic())) else b"no word in time"
            except EOFError:
                said = _DIED.encode()
            if said != _LOADED:
                self.close()
                raise RankFailed(f"rank {index} of {nproc} could not load its job: {said.decode()}")

    def _collect(self, nproc: int, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, tuple[bool, str]] = {}
        waiting = dict(enumerate(self._pipes[:nproc]))
        while waiting and time.monotonic() < deadline:
            ready = connection.wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
            for index in [index for index, pipe in waiting.items() if pipe in ready]:
                try:
                    good, lost_peer, content = pickle.loads(waiting.pop(index).recv_bytes())
                except EOFError:
                    good, lost_peer, content = False, False, _DIED
                if good:
                    results[index] = content
                else:
                    failures[index] = (lost_peer, content)
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        if waiting or any(reason == _DIED or reason.startswith(_NOT_JOINED) for _, reason in failures.values()):
            self.close()
        if failures:
            index, (_, reason) = min(failures.items(), key=lambda item: (item[1][0], item[0]))
            raise RankFailed(f"rank {index} of {nproc} failed: {reason}")
        if waiting:
            raise RankFailed(f"ranks {sorted(waiting)} of {nproc} hang: no answer at the deadline")
        return [results[index] for index in range(nproc)]


def _serve(pipe: connection.Connection, index: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore(_LOOPBACK, port, is_master=False)
    gc.freeze()
    pipe.send_bytes(b"ready")
    while True:
        try:
            job = pipe.recv_bytes()
        except EOFError:
            return
        try:
            worker, arguments, nproc, prefix, timeout_s = pickle.loads(job)
        except Exception as error:
            pipe.send_bytes(repr(error).encode())
            return
        pipe.send_bytes(_LOADED)
        pipe.recv_bytes()
        try:
            with joined(dist.PrefixStore(prefix, store), index, nproc, timeout_s):
                answer = (True, False, worker(Rank(index, nproc), *arguments))
        except _NotJoined as error:
            answer = (False, True, str(error))
        except Exception as error:
            lost = isinstance(error, dist.DistError) or "peer" in str(error) or "Timed out" in str(error)
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = traceback.format_exception_only(error)[-1].strip()
            answer = (False, lost, f"{reason} ({os.path.basename(where.filename)}:{where.lineno})")
        pipe.send_bytes(pickle.dumps(answer))
        # Groups that a cycle of objects keeps have threads that poll: a hundred jobs later they would be all the machine does.
        gc.collect()


class _NotJoined(RuntimeError):
    """The rank is of no use any more."""


@contextlib.contextmanager
def joined(store: dist.Store, index: int, nproc: int, timeout_s: float) -> Iterator[None]:
    if nproc == 1:
        yield
        return
    try:
        dist.init_process_group(
            "gloo", store=store, rank=index, world_size=nproc, timeout=datetime.timedelta(seconds=timeout_s)
        )
    except Exception as error:
        # PyTorch numbers groups, those that failed too: from now on this rank would look for the others under another number.
        raise _NotJoined(f"{_NOT_JOINED}: {error}") from error
    try:
        # A rank that has nothing to say must not leave while others are still connecting to it.
        dist.barrier()
        yield
    finally:
        dist.destroy_process_group()


_POOL: list[RankPool] = []


def pool() -> RankPool:
    """The test run's one pool."""
    if not _POOL:
        _POOL.append(RankPool())
        atexit.register(_POOL[0].close)
    return _POOL[0]
