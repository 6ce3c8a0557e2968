"""Runs a stage of the loop once: a stage whose settings, inputs and code did not change is reused, and says so.

Every stage's outputs appear atomically, so a run killed anywhere leaves whole outputs of finished stages and nothing of
the one it was in; the next run reuses the former and does the latter again, and ends with the same bytes.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from contracts.errors import BadInput
from contracts.files import canonical_json, hash_file, hash_value, read_record, write_atomically
from contracts.progress import say, stage
from contracts.workspace import Workspace


@cache
def code_hash(rooms: tuple[str, ...]) -> str:
    """One hash over the Python files of `rooms` (package names) and of the contracts."""
    digests = {}
    for room in ("contracts", *rooms):
        folder = Path(str(import_module(room).__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            digests[f"{room}/{path.relative_to(folder)}"] = hash_file(path)
    return hash_value(digests)


@dataclass(frozen=True)
class Kept:
    """What lies on disk of a finished stage."""

    fingerprint: str
    report: dict[str, Any]
    seconds: float
    outputs: dict[str, str]


class StageRecord:
    """`<workspace>/stages/<name>.json`: what each finished stage was made from, what it reported, how long it took."""

    def __init__(self, workspace: Workspace, *, fresh: bool = False):
        self.folder = workspace.root / "stages"
        self.fresh = fresh
        self.reports: dict[str, dict] = {}
        self.seconds: dict[str, float] = {}
        self.made: dict[str, dict[str, str]] = {}
        self.reused: list[str] = []

    def run(self, name: str, work: Callable[[], dict], *, settings: dict[str, Any], rooms: tuple[str, ...],
            outputs: Callable[[], dict[str, str]], after: tuple[str, ...] = ()) -> dict:  # fmt: skip
        """The report of stage `name`: the kept one when nothing it depends on changed, else `work()`'s.

        `outputs()`: hashes of what the stage makes, as it lies in the workspace now. A stage whose outputs are not those
        it left (another command replaced them, or they are damaged) runs again, and so does all that was made of them.
        """
        fingerprint = hash_value([settings, code_hash(rooms), {parent: self.made[parent] for parent in after}])
        kept = self._read(name)
        if (
            not self.fresh
            and kept is not None
            and kept.fingerprint == fingerprint
            and kept.outputs == _present(outputs)
        ):
            say(f"= {name}: nothing it depends on changed, reused")
            self.reused.append(name)
        else:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
            begun = time.perf_counter()
            with stage(name):
                report = work()
            kept = Kept(fingerprint, report, round(time.perf_counter() - begun, 2), outputs())
            write_atomically(self.folder / f"{name}.json", canonical_json(asdict(kept)))
        self.reports[name], self.seconds[name], self.made[name] = kept.report, kept.seconds, kept.outputs
        return kept.report

    def _read(self, name: str) -> Kept | None:
        try:
            return read_record(self.folder / f"{name}.json", Kept)
        except BadInput:
            return None


def _present(outputs: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    try:
        return outputs()
    except BadInput:
        return None
