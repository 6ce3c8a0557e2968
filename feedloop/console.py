"""What all verbs share: `--workspace`, `--json`, one lock a workspace, and errors as one sentence with an exit code."""

import contextlib
import fcntl
import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from contracts.errors import BadInput
from contracts.workspace import Workspace


@contextlib.contextmanager
def exclusive(workspace: Workspace) -> Iterator[None]:
    """Keeps a second writer out of the workspace; the lock goes with the process, also when it is killed."""
    try:
        workspace.root.mkdir(parents=True, exist_ok=True)
        file = (workspace.root / ".lock").open("w")
    except OSError as error:
        raise BadInput(f"workspace {workspace.root} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"another feedloop run is at work in {workspace.root}; wait for it or name another --workspace"
            ) from None
        yield


def _fail(error: BaseException, as_json: bool) -> None:
    known = isinstance(error, BadInput)
    sentence = str(error) if known else f"{type(error).__name__}: {error}"
    if not known:
        traceback.print_exception(error, file=sys.stderr)
    print(f"feedloop: {sentence}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": sentence}))
    raise SystemExit(2 if known else 1)


def verb(function: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Makes `function(workspace, **options) -> report` a verb with `--workspace` and `--json`."""

    @click.option("--workspace", "root", type=click.Path(path_type=Path), default=Path("workspace"), show_default=True,
                  help="Folder with everything a run makes.")  # fmt: skip
    @click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object on stdout.")
    @functools.wraps(function)
    def command(root: Path, as_json: bool, **options: Any) -> None:
        try:
            report = function(Workspace(root), **options)
        except (KeyboardInterrupt, click.exceptions.Exit):
            raise
        except OSError as error:
            # A full disk or a folder without permission is the machine's matter, not a fault of the code.
            _fail(BadInput(f"{error.strerror or error}: {error.filename}") if error.filename else error, as_json)
        except Exception as error:
            _fail(error, as_json)
        else:
            if as_json:
                print(json.dumps(report, default=str))
            else:
                show(report)

    return command


def show(report: dict[str, Any], indent: int = 0) -> None:
    """The report for people, on stdout."""
    for name, value in report.items():
        if isinstance(value, dict):
            print(f"{' ' * indent}{name}:")
            show(value, indent + 2)
        else:
            print(
                f"{' ' * indent}{name}: {value:.5g}" if isinstance(value, float) else f"{' ' * indent}{name}: {value}"
            )
