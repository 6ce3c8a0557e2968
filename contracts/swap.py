"""A log's folders change places as one: after a kill at any moment the swap is finished by the next who looks."""

import contextlib
import fcntl
import shutil
from pathlib import Path

from contracts.files import sync_directory

LOCK = ".lock"
"""The file that a writer of a workspace holds locked."""
_PARTS = ("lake", "truth")
# The names tell how far a swap came: `.arriving` holds the whole new log while the old one moves to `.retired`;
# `.arrived` is the same folder once all of the old one is out of the way.
_ARRIVING, _ARRIVED, _RETIRED = ".arriving", ".arrived", ".retired"


def swap_in(root: Path, incoming: Path) -> None:
    """Puts the log in the folder `incoming` in place of the one in `root`; an `OSError` leaves both as they were."""
    incoming.mkdir(parents=True, exist_ok=True)
    finish_swap(root, incoming)


def finish_swap(root: Path, incoming: Path | None = None) -> None:
    """Carries a swap that was begun, or that `incoming` begins, to its end; for who holds the lock of `root`."""
    arriving, arrived, retired = root / _ARRIVING, root / _ARRIVED, root / _RETIRED
    if not arriving.exists() and not arrived.exists() and retired.exists():
        shutil.rmtree(retired)  # the last swap was whole, only its sweeping was cut off
    moves: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        moves.append((source, target))
        source.rename(target)

    try:
        if incoming is not None:
            move(incoming, arriving)
        if arriving.exists():
            retired.mkdir(exist_ok=True)
            for part in _PARTS:
                if (root / part).exists():
                    move(root / part, retired / part)
            move(arriving, arrived)
        if arrived.exists():
            for part in _PARTS:
                if (arrived / part).exists():
                    move(arrived / part, root / part)
            sync_directory(root)
    except BaseException:
        for source, target in reversed(moves):
            if not source.exists():
                target.rename(source)
        with contextlib.suppress(OSError):
            retired.rmdir()
        raise
    shutil.rmtree(arrived, ignore_errors=True)
    shutil.rmtree(retired, ignore_errors=True)


def settle(root: Path) -> None:
    """Finishes a swap in `root` that was cut off; one whose process is still at it, holding the lock, is left to it."""
    if not (root / _ARRIVING).exists() and not (root / _ARRIVED).exists():
        return
    with (root / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finish_swap(root)
