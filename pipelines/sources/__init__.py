"""One adapter per log format: each reads a foreign log, checks it, and writes the lake's tables."""

from collections.abc import Callable
from pathlib import Path

from contracts.errors import BadInput
from contracts.files import hash_file
from contracts.workspace import Workspace
from pipelines.sources import hetrec

SOURCES: dict[str, Callable[[Path, Workspace], dict]] = {"hetrec-lastfm": hetrec.ingest}
"""Name on the command line -> adapter (path, workspace) -> report."""


def fingerprint(path: Path) -> dict[str, str]:
    """File name -> content hash of a foreign log's folder; `BadInput` when there is no such folder."""
    if not path.is_dir():
        raise BadInput(f"{path} is not a folder")
    return {str(file.relative_to(path)): hash_file(file) for file in sorted(path.rglob("*")) if file.is_file()}
