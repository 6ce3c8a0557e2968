"""One adapter per log format: each reads a foreign log, checks it, and writes the lake's tables.

Most formats are a mapping file each (`formats/*.toml`), in the language in which a team maps its own logs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from contracts.errors import BadInput
from contracts.files import hash_file
from contracts.workspace import Workspace
from pipelines.sources import hetrec
from pipelines.sources.mapped import ingest_mapped
from pipelines.sources.mapping import load_mapping


def _ingest_format(file: Path, path: Path, workspace: Workspace) -> dict:
    return ingest_mapped(load_mapping(file), path, workspace)


FORMATS = {file.stem: file for file in sorted(Path(__file__).with_name("formats").glob("*.toml"))}
"""Name of a published log's layout -> its mapping file."""
SOURCES: dict[str, Callable[[Path, Workspace], dict]] = {
    "hetrec-lastfm": hetrec.ingest,
    **{name: partial(_ingest_format, file) for name, file in FORMATS.items()},
}
"""Name on the command line -> adapter (path, workspace) -> report."""


def fingerprint(path: Path) -> dict[str, str]:
    """File name -> content hash of a foreign log's folder; `BadInput` when there is no such folder."""
    if not path.is_dir():
        raise BadInput(f"{path} is not a folder")
    return {str(file.relative_to(path)): hash_file(file) for file in sorted(path.rglob("*")) if file.is_file()}
