"""The peak memory of a command with all processes that it starts, Java included."""

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

EVERY_S = 0.2


def run_watched(command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that the last line of the command's stdout is, and `peak_mb`: the most that its processes held together.

    Sampled resident memory, added up; what processes share counts in each. Raises CalledProcessError when it fails.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})}) as running:
        peak, done = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(psutil.Process(running.pid), peak, done))
        watcher.start()
        output, _ = running.communicate()
        done.set()
        watcher.join()
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, list(command))
    return {**json.loads(output.splitlines()[-1]), "peak_mb": peak[0] / 1e6}


def _watch(first: psutil.Process, peak: list[int], done: threading.Event) -> None:
    while not done.wait(EVERY_S):
        held = 0
        try:
            processes = [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                held += process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        peak[0] = max(peak[0], held)
