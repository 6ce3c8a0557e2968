"""Files that are either whole or absent: atomic replace, content hashes, canonical JSON."""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from contracts.errors import BadInput, first_fault

Record = TypeVar("Record")


def sync_directory(path: Path) -> None:
    """Makes renames inside `path` survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Puts `content` at `path`: a reader sees the old file or the new one, whole. `BadInput` when the disk refuses."""
    write_together({path: content})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """As `write_atomically` for several files; none is replaced before all contents lie whole beside their places."""
    staged: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            staged[path] = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            path.parent.mkdir(parents=True, exist_ok=True)
            with staged[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in staged.items():
            temporary.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    finally:
        for temporary in staged.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    for path in staged:
        sync_directory(path.parent)


def canonical_json(value: Any) -> bytes:
    """The same bytes for the same value: sorted keys, two-space indent, final newline."""
    return (json.dumps(value, sort_keys=True, indent=2, default=str) + "\n").encode()


def read_json(path: Path) -> Any:
    """The parsed file; `BadInput` names the file when it is absent or is not JSON."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid JSON: {error}") from None


def read_record(path: Path, kind: type[Record]) -> Record:
    """The dataclass `kind` from the JSON object in `path`; `BadInput` names the file when it does not hold one."""
    return record_of(read_json(path), path, kind)


def record_of(value: Any, path: Path, kind: type[Record]) -> Record:
    """The dataclass `kind` from JSON that `path` held; `BadInput` names the file and the first field of another type."""
    try:
        kind(**value)
        return cast(Record, _typed(cast(Hashable, kind)).validate_python(value))
    except (TypeError, ValidationError) as error:
        what = first_fault(error) if isinstance(error, ValidationError) else error
        raise BadInput(f"{path} is damaged, it does not describe a {kind.__name__}: {what}") from None


@functools.cache
def _typed(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


def hash_bytes(content: bytes) -> str:
    """Sha-256 of `content`, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def hash_file(path: Path) -> str:
    """Sha-256 of the file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_value(value: Any) -> str:
    """Sha-256 of the canonical JSON of `value`, hexadecimal."""
    return hash_bytes(canonical_json(value))
