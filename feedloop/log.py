"""Brings a log into the workspace: beside the present one first, and in its place only when it is whole."""

import shutil
from collections.abc import Callable

from contracts.workspace import Workspace

_PARTS = ("lake", "truth")


def bring_log(workspace: Workspace, write: Callable[[Workspace], dict]) -> dict:
    """The report of `write(staging workspace)`, whose log takes the place of the present one.

    When `write` fails or is killed, the log that was there is untouched.
    """
    staging = Workspace(workspace.root / ".incoming")
    shutil.rmtree(staging.root, ignore_errors=True)
    try:
        report = write(staging)
        for part in _PARTS:
            old = workspace.root / f".old-{part}"
            shutil.rmtree(old, ignore_errors=True)
            if (workspace.root / part).exists():
                (workspace.root / part).rename(old)
            if (staging.root / part).exists():
                (staging.root / part).rename(workspace.root / part)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging.root, ignore_errors=True)
    return report
