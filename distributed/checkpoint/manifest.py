"""What a checkpoint's `manifest.json` says, its names and types checked as it is read."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from distributed.errors import LayoutError
from distributed.planner.described import sentence_of

MANIFEST, FORMAT = "manifest.json", 1
_METADATA = ".metadata"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class Manifest(_Part):
    """`files`: SHA-256 by name; `parameters`: shape by global name; `states`: what lies beside each parameter."""

    facts: Any
    optimizer: str
    files: dict[str, str]
    parameters: dict[str, list[Annotated[int, Field(ge=0)]]]
    states: dict[Annotated[str, StringConstraints(pattern="^(optimizer|beside)/.")], Literal["entries", "number"]]

    @field_validator("files")
    @classmethod
    def _with_metadata(cls, files: dict[str, str]) -> dict[str, str]:
        if _METADATA not in files:
            raise ValueError(f"files lacks {_METADATA}")
        return files


class Told(_Part):
    """How a training went until the end of an epoch; a figure may be infinite, none may be missing.

    `seconds` are those of the steps, `run_seconds` of all of it over all its runs; older checkpoints do not say these.
    """

    best_epoch: int = Field(ge=-1)
    best_validation: float
    history: list[dict[str, float]] = Field(min_length=1)
    steps: int = Field(ge=0)
    skipped_steps: int = Field(ge=0)
    largest_norm: float
    routed: dict[str, list[int]]
    seconds: float = Field(gt=0, allow_inf_nan=False)
    run_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)


class EpochFacts(_Part):
    """Of an epoch of a training that was begun with `settings`."""

    settings: dict[str, Any]
    average_updates: int | None
    told: Told


class EpochManifest(Manifest):
    """Of an epoch's checkpoint."""

    facts: EpochFacts


def read_manifest(path: Path, kind: type[Manifest] = Manifest) -> dict[str, Any]:
    """The manifest of the checkpoint `path` as it was written; `LayoutError` when it is not there or is not as `kind` says."""
    where = f"checkpoint {path}: {MANIFEST}"
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError:
        raise LayoutError(f"there is no checkpoint at {path}") from None
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{where} is not JSON: {error}") from None
    if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
        raise LayoutError(f"checkpoint {path} has format {manifest.get('format')}; this version reads {FORMAT}")
    try:
        kind.model_validate(manifest)
    except ValidationError as error:
        raise LayoutError(f"{where} is damaged: {sentence_of(error)}") from None
    return manifest
