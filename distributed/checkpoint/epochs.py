"""Training that goes on where it stopped: a checkpoint after every epoch, of which the last and the best are kept."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distributed.agree import on_first
from distributed.average import MovingAverage
from distributed.checkpoint.manifest import EpochManifest, read_manifest
from distributed.checkpoint.store import load_checkpoint, save_checkpoint
from distributed.errors import LayoutError
from distributed.work import Work

_OWN = re.compile("epoch-([0-9]{4}|[1-9][0-9]{4,})")


@dataclass
class EpochCheckpoints:
    """Folders `epoch-0000`, … in `folder`, which all ranks see. `settings` (JSON) must be those that the folder was begun
    with; the layout may be another. All ranks call every method together."""

    folder: Path
    work: Work
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None
    settings: dict[str, Any]

    def last(self) -> int | None:
        """The last epoch that there is; None: the training begins."""
        return on_first(self.work.mesh, lambda: max(_epochs_in(self.folder), default=None))

    def load(self, epoch: int) -> dict[str, Any]:
        """Puts the weights, the optimizer and the average of an epoch in place; returns what `save` was told."""
        on_first(self.work.mesh, lambda: self._compare(self._path(epoch)))
        facts = load_checkpoint(self._path(epoch), self.work.module, self.work.data, self.optimizer, self.work.mesh,
                                self._beside())  # fmt: skip
        if self.average is not None:
            self.average.updates = facts["average_updates"]
        return facts["told"]

    def save(self, epoch: int, best_epoch: int, told: dict[str, Any]) -> None:
        """Keeps this epoch, `told` (JSON) with it, and lets go of those that are neither the last nor the best."""
        facts = {"told": told, "settings": self.settings,
                 "average_updates": None if self.average is None else self.average.updates}  # fmt: skip
        save_checkpoint(self._path(epoch), self.work.module, self.work.data, self.optimizer, self.work.mesh, facts,
                        self._beside())  # fmt: skip
        on_first(self.work.mesh, lambda: self._keep_only(epoch, best_epoch))

    def _keep_only(self, *kept: int) -> None:
        for old in _epochs_in(self.folder) - set(kept):
            shutil.rmtree(self._path(old))

    def _path(self, epoch: int) -> Path:
        return _path(self.folder, epoch)

    def _beside(self) -> dict[str, Any]:
        return {} if self.average is None else {"average": self.average.tensors}

    def _compare(self, path: Path) -> None:
        facts = read_manifest(path, EpochManifest)["facts"]
        begun = facts["settings"]
        _refuse_another(self.folder, begun, self.settings, {*begun, *self.settings})
        if (self.average is None) != (facts["average_updates"] is None):
            raise LayoutError(f"checkpoint {path} is damaged: average_updates is {facts['average_updates']}")


def begin_checkpoints(folder: Path, settings: Mapping[str, Any]) -> None:
    """Before any rank starts: makes the folder and sees that it can be written.

    `LayoutError` when its last checkpoint is damaged, or of a training whose settings are not those of `settings` (JSON; as far
    as they are known here).
    `OSError` with the path when it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    for last in sorted(_epochs_in(folder))[-1:]:
        begun = read_manifest(_path(folder, last), EpochManifest)["facts"]["settings"]
        _refuse_another(folder, begun, settings, settings)


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:04d}"


def _epochs_in(folder: Path) -> set[int]:
    """What else lies there, and be it called alike, is not this training's."""
    named = ((path, _OWN.fullmatch(path.name)) for path in folder.glob("epoch-*"))
    return {int(match[1]) for path, match in named if match and path.is_dir() and not path.is_symlink()}


def _refuse_another(folder: Path, begun: Mapping[str, Any], wanted: Mapping[str, Any], names: Iterable[str]) -> None:
    wanted = json.loads(json.dumps(dict(wanted)))
    for name in sorted(names):
        if begun.get(name) != wanted.get(name):
            raise LayoutError(f"checkpoints in {folder} were begun with {name} = {begun.get(name)}, not "
                              f"{wanted.get(name)}; another training needs another folder")  # fmt: skip
