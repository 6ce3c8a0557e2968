"""Artifacts: versioned folders (models, indexes, reports) that appear whole or not at all, each with a manifest."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import BadInput
from contracts.files import canonical_json, hash_file, hash_value, read_record, sync_directory, write_atomically


@dataclass
class Artifact:
    """A folder of files with what it was made from. `version` is the hash of parents, settings and files."""

    kind: str
    path: Path
    version: str = ""
    parents: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    feature_version: str | None = None
    files: dict[str, str] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        """Path of one of its files; `BadInput` when it is absent."""
        path = self.path / name
        if not path.exists():
            raise BadInput(f"artifact {self.kind} {self.version or self.path} has no file {name}")
        return path


@dataclass
class _Recorded:
    """An artifact's manifest as it lies on disk."""

    kind: str
    version: str
    parents: dict[str, str]
    settings: dict[str, Any]
    metrics: dict[str, Any]
    feature_version: str | None
    files: dict[str, str]

    def at(self, path: Path) -> Artifact:
        """The artifact whose folder is `path`."""
        return Artifact(path=path, **self.__dict__)


class ArtifactStore:
    """`<root>/<kind>/<version>/` folders and `<root>/<kind>/CURRENT`, the version in force."""

    def __init__(self, root: Path):
        self.root = Path(root)

    @contextlib.contextmanager
    def create(self, kind: str, *, parents: dict[str, str] | None = None, settings: dict[str, Any] | None = None,
               feature_version: str | None = None) -> Iterator[Artifact]:  # fmt: skip
        """Yields an artifact whose `path` is an empty folder to fill; on a clean exit it becomes CURRENT, atomically.

        Fill `metrics` before the exit. On an exception nothing remains.
        """
        home = self.root / kind
        home.mkdir(parents=True, exist_ok=True)
        for stale in home.glob(".building-*"):
            if not _alive(int(stale.name.rsplit("-", 1)[1])):
                shutil.rmtree(stale, ignore_errors=True)
        building = home / f".building-{os.getpid()}"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        artifact = Artifact(kind, building, parents=dict(parents or {}), settings=dict(settings or {}),
                            feature_version=feature_version)  # fmt: skip
        try:
            yield artifact
            names = sorted(str(path.relative_to(building)) for path in building.rglob("*") if path.is_file())
            artifact.files = {name: hash_file(building / name) for name in names}
            artifact.version = hash_value([artifact.parents, artifact.settings, artifact.files, feature_version])[:16]
            record = {name: value for name, value in artifact.__dict__.items() if name != "path"}
            write_atomically(building / "manifest.json", canonical_json(record))
            final = home / artifact.version
            if final.exists() and self._is_whole(kind, artifact.version):
                shutil.rmtree(building)
            else:
                shutil.rmtree(final, ignore_errors=True)
                building.rename(final)
                sync_directory(home)
            artifact.path = final
            write_atomically(home / "CURRENT", f"{artifact.version}\n".encode())
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    def versions(self, kind: str) -> list[str]:
        """All whole versions of `kind`, oldest first."""
        folders = [
            path.parent for path in (self.root / kind).glob("*/manifest.json") if not path.parent.name.startswith(".")
        ]
        return [path.name for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns)]

    def load(self, kind: str, version: str | None = None) -> Artifact:
        """The artifact in force, or of `version`; `BadInput` when there is none or a file of it was changed."""
        home = self.root / kind
        if version is None:
            current = home / "CURRENT"
            if not current.is_file():
                raise BadInput(f"no {kind} artifact in {self.root}: run the step that makes it first")
            version = current.read_text(errors="replace").strip()
        path = home / version
        if not (path / "manifest.json").is_file():
            raise BadInput(
                f"{kind} artifact {version} is not in {home}; there are: {', '.join(self.versions(kind)) or 'none'}"
            )
        artifact = read_record(path / "manifest.json", _Recorded).at(path)
        self.verify(artifact)
        return artifact

    def _is_whole(self, kind: str, version: str) -> bool:
        try:
            self.load(kind, version)
        except BadInput:
            return False
        return True

    def verify(self, artifact: Artifact) -> None:
        """`BadInput` that names the first file whose bytes are not those of the manifest."""
        for name, digest in artifact.files.items():
            if hash_file(artifact.file(name)) != digest:
                raise BadInput(
                    f"artifact {artifact.kind} {artifact.version}: file {name} was changed after it was written"
                )


def _alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
