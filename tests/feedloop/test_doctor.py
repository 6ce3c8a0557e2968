"""The doctor tells what is there, names every lack with its cure, and survives the breakage that it looks for."""

import json
import sys

import pytest

from contracts.errors import BadInput
from contracts.machine import java, redis_server
from contracts.machine.redis_server import RedisServer
from feedloop.machine import doctor
from feedloop.machine.doctor import Finding

ROWS = {
    "Python", "Cores", "Memory", "Disk", "Java", "Spark", "Redis", "torch", "faiss", "lightgbm", "lleaves", "onnxruntime",
    "implicit", "OpenMP", "gloo", "CUDA", "NCCL", "Browser", "Airflow",
}  # fmt: skip


def named(findings: list[Finding], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return doctor.examine()


def test_the_environment_that_runs_the_tests_has_everything_needed(findings):
    assert {finding.name for finding in findings} == ROWS
    assert [finding for finding in findings if finding.needed and not finding.ok] == []


def test_every_lack_comes_with_what_to_do(findings):
    assert [finding for finding in findings if not finding.ok and not finding.advice] == []


def test_versions_are_those_of_the_running_libraries(findings):
    import pyspark
    import torch

    assert named(findings, "torch").found == torch.__version__
    assert named(findings, "Spark").found.startswith(pyspark.__version__)
    assert named(findings, "CUDA").ok == torch.cuda.is_available()


def test_the_json_report_is_one_object_that_says_whether_all_is_there(findings):
    told = json.loads(doctor.report(json=True, findings=findings))
    assert told["complete"] is True
    assert {row["name"] for row in told["findings"]} == ROWS


def test_a_missing_need_makes_the_machine_incomplete_and_a_missing_extra_does_not():
    there = Finding("A", True, "1.0")
    extra = Finding("B", False, "none", "make b", needed=False)
    need = Finding("C", False, "none", "make c")
    assert json.loads(doctor.report(json=True, findings=[there, extra]))["complete"] is True
    assert json.loads(doctor.report(json=True, findings=[there, extra, need]))["complete"] is False
    text = doctor.report(findings=[there, extra, need])
    assert "LACKS  C" in text
    assert "-> make c" in text


def test_without_a_java_the_row_says_how_to_get_one(monkeypatch):
    def none():
        raise BadInput("Spark needs Java 17 or later and none was found: install one.")

    monkeypatch.setattr(java, "find", none)
    row = doctor._java()
    assert not row.ok
    assert "Java 17" in row.advice


@pytest.mark.redis
def test_a_redis_url_is_asked_and_its_password_not_shown(monkeypatch, tmp_path):
    with RedisServer(tmp_path) as server:
        monkeypatch.setenv("REDIS_URL", server.url)
        assert doctor._redis() == Finding("Redis", True, f"{server.url} answers")
    monkeypatch.setenv("REDIS_URL", f"redis://:hunter2@127.0.0.1:{server.port}/0")
    row = doctor._redis()
    assert not row.ok
    assert "hunter2" not in row.found + row.advice


def test_looking_starts_no_server(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(redis_server.RedisServer, "_start", lambda self: pytest.fail("the doctor started a server"))
    assert doctor._redis().ok


def test_a_library_that_kills_its_process_is_a_finding_and_not_the_end(monkeypatch, tmp_path):
    """A native library built for another processor ends the process that loads it (here: by abort)."""
    (tmp_path / "faiss.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    probe = doctor._probe()
    row = doctor._library("faiss", probe)
    assert not row.ok
    assert "ended with -6" in row.found


def test_a_library_that_does_not_load_names_its_error_and_the_others_are_still_seen(monkeypatch, tmp_path):
    (tmp_path / "lightgbm.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    probe = doctor._probe()
    row = doctor._library("lightgbm", probe)
    assert not row.ok
    assert "libgomp.so.1" in row.found
    assert "apt-get install libgomp1" in row.advice
    assert doctor._library("faiss", probe).ok
