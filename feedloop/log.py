"""Brings a log into the workspace: beside the present one first, and in its place only when it is whole."""

import shutil
from collections.abc import Callable

from contracts.swap import swap_in
from contracts.workspace import Workspace


def bring_log(workspace: Workspace, write: Callable[[Workspace], dict]) -> dict:
    """The report of `write(staging workspace)`, whose log takes the place of the present one.

    When `write` or the swap fails, or is killed, the log that was there is untouched; a swap that is killed is finished
    by the next command in this workspace.
    """
    staging = Workspace(workspace.root / ".incoming")
    shutil.rmtree(staging.root, ignore_errors=True)
    try:
        report = write(staging)
        swap_in(workspace.root, staging.root)
    finally:
        shutil.rmtree(staging.root, ignore_errors=True)
    return report
