"""The form in which every benchmark states what it measured."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from contracts.errors import BadInput
from contracts.files import canonical_json, write_atomically

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Claim:
    """One figure beside its peer. `goal` is a comparison in words, `met` whether the figures satisfy it."""

    name: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    goal: str = ""
    met: bool = True


@dataclass
class Result:
    """What one run of a benchmark found."""

    sizes: dict[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """What this machine cannot show and was not asked for: listed as not measured, but no failure of the run."""

    part: str = ""
    """Of a benchmark that other runs measure the rest of: kept in a file of its own."""

    kept: bool = True
    """False for a look at one part, which replaces no full run."""

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "machine": machine(),
            "sizes": self.sizes,
            "claims": [asdict(c) for c in self.claims],
            "not_measured": [*self.not_measured, *self.elsewhere],
        }


def machine() -> str:
    """The machine in words: processor, cores, memory, Python."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    memory_gb = psutil.virtual_memory().total / 1e9
    return f"{model}, {os.cpu_count()} cores, {memory_gb:.0f} GB, Python {platform.python_version()}"


def run(name: str, measure: Callable[..., Result], options: Mapping[str, str] | None = None) -> None:
    """The command line of a benchmark: `--quick` for under a minute, `--json` for one object as the last line.

    `options`: further ones by name, with their help; `measure(quick, **given)` gets those that were given.

    A full run is kept under `benchmarks/results/NAME.json`, from which `benchmarks.table` writes the README's table.
    Exit 0 when all is measured, 1 when something is not.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=measure.__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, ends within a minute; not kept")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is one JSON object")
    for option, meaning in (options or {}).items():
        parser.add_argument(f"--{option}", help=meaning)
    arguments = parser.parse_args()
    given = {option: getattr(arguments, option) for option in options or {} if getattr(arguments, option) is not None}
    try:
        result = measure(arguments.quick, **given)
    except BadInput as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    for claim in result.claims:
        beside = f" | {claim.peer}: {claim.peer_value:.4g} {claim.unit}" if claim.peer_value is not None else ""
        ratio = f" | ratio {claim.value / claim.peer_value:.3f}" if claim.peer_value else ""
        goal = f" | goal: {claim.goal}: {'met' if claim.met else 'MISSED'}" if claim.goal else ""
        print(f"{claim.name}: {claim.value:.4g} {claim.unit}{beside}{ratio}{goal}")
    for missing in (*result.not_measured, *result.elsewhere):
        print(f"not measured: {missing}")
    if result.kept and not arguments.quick:
        write_atomically(RESULTS / f"{name}{result.part and '-'}{result.part}.json", canonical_json(result.as_dict()))
    if arguments.json:
        print(json.dumps(result.as_dict()))
    raise SystemExit(1 if result.not_measured else 0)
