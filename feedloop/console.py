"""What all verbs share: `--workspace`, `--json`, one lock a workspace, and errors as one sentence with an exit code."""

import contextlib
import errno
import fcntl
import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from contracts.errors import BadInput
from contracts.swap import LOCK, finish_swap
from contracts.workspace import Workspace


@contextlib.contextmanager
def exclusive(workspace: Workspace) -> Iterator[None]:
    """Keeps a second writer out of the workspace; the lock goes with the process, also when it is killed.

    A swap of logs that a killed one left is finished first.
    """
    try:
        workspace.root.mkdir(parents=True, exist_ok=True)
        file = (workspace.root / LOCK).open("w")
    except OSError as error:
        raise BadInput(f"workspace {workspace.root} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"another feedloop run is at work in {workspace.root}; wait for it or name another --workspace"
            ) from None
        finish_swap(workspace.root)
        yield


_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def _fail(error: BaseException, as_json: bool) -> NoReturn:
    known = isinstance(error, BadInput)
    sentence = str(error) if known else f"{type(error).__name__}: {error}"
    if not known:
        traceback.print_exception(error, file=sys.stderr)
    print(f"feedloop: {sentence}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": sentence}))
    raise SystemExit(2 if known else 1)


def fail_usage(error: click.ClickException, as_json: bool) -> NoReturn:
    """Ends with exit code 2 and the sentence of a wrong option or argument."""
    where = f" (see `{error.ctx.command_path} --help`)" if isinstance(error, click.UsageError) and error.ctx else ""
    _fail(BadInput(f"{error.format_message().rstrip('.')}{where}"), as_json)


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
            of_machine = error.filename or error.errno in _OF_THE_MACHINE
            where = error.filename or root
            _fail(BadInput(f"{where}: {error.strerror or error}") if of_machine else error, as_json)
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
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            print(f"{' ' * indent}{name}:")
            for one in value:
                print(" " * (indent + 2) + ", ".join(f"{key}: {part}" for key, part in one.items() if part != ""))
        else:
            print(
                f"{' ' * indent}{name}: {value:.5g}" if isinstance(value, float) else f"{' ' * indent}{name}: {value}"
            )
