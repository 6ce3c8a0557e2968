"""Training that goes on where it stopped: a checkpoint after every epoch, of which the last and the best are kept."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distributed.agree import on_first
from distributed.average import MovingAverage
from distributed.checkpoint.store import load_checkpoint, save_checkpoint
from distributed.errors import LayoutError
from distributed.work import Work

_FOLDERS = "epoch-[0-9][0-9][0-9][0-9]"


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
        found = on_first(self.work.mesh, lambda: sorted(self.folder.glob(_FOLDERS)))
        return int(found[-1].name.removeprefix("epoch-")) if found else None

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
        on_first(self.work.mesh, lambda: self._keep_only(self._path(epoch), self._path(best_epoch)))

    def _keep_only(self, *kept: Path) -> None:
        for old in self.folder.glob("epoch-*"):
            if old not in kept:
                shutil.rmtree(old)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:04d}"

    def _beside(self) -> dict[str, Any]:
        return {} if self.average is None else {"average": self.average.tensors}

    def _compare(self, path: Path) -> None:
        begun = _begun_with(path)
        _refuse_another(self.folder, begun, self.settings, {*begun, *self.settings})


def begin_checkpoints(folder: Path, settings: Mapping[str, Any]) -> None:
    """Before any rank starts: makes the folder and sees that it can be written.

    `LayoutError` when it holds a training whose settings are not those of `settings` (JSON; as far as they are known here).
    `OSError` with the path when it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    for path in sorted(folder.glob(_FOLDERS))[-1:]:
        _refuse_another(folder, _begun_with(path), settings, settings)


def _begun_with(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / "manifest.json").read_text())["facts"]["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        raise LayoutError(f"checkpoint {path} is damaged: its manifest.json does not say how it was begun") from None


def _refuse_another(folder: Path, begun: Mapping[str, Any], wanted: Mapping[str, Any], names: Iterable[str]) -> None:
    wanted = json.loads(json.dumps(dict(wanted)))
    for name in sorted(names):
        if begun.get(name) != wanted.get(name):
            raise LayoutError(f"checkpoints in {folder} were begun with {name} = {begun.get(name)}, not "
                              f"{wanted.get(name)}; another training needs another folder")  # fmt: skip
