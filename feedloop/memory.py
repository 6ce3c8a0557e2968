"""Peak memory of this process and everything it started (Spark's Java, training ranks, Redis)."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

SAMPLE_S = 0.25


@dataclass
class Peak:
    """`bytes`: the largest sum of proportional set sizes (shared pages counted once) seen so far."""

    bytes: int = 0


def _tree_bytes(root: psutil.Process) -> int:
    total = 0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
    return total


@contextlib.contextmanager
def watched() -> Iterator[Peak]:
    """Samples the process tree every `SAMPLE_S` seconds while the block runs."""
    peak, done = Peak(), threading.Event()
    root = psutil.Process()

    def sample() -> None:
        while not done.is_set():
            peak.bytes = max(peak.bytes, _tree_bytes(root))
            done.wait(SAMPLE_S)

    thread = threading.Thread(target=sample, name="memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
