"""The schedules parse in a real Airflow, call only verbs that exist, keep the order, and really train and publish."""

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("airflow", reason="Airflow lives in an environment of its own: make airflow-test")

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = Path(sys.executable).with_name("airflow")
FEEDLOOP = Path(os.environ.get("FEEDLOOP_BIN", ROOT / ".venv" / "bin" / "feedloop"))


@pytest.fixture(scope="session")
def database() -> None:
    subprocess.run([AIRFLOW, "db", "migrate"], check=True, capture_output=True, timeout=240)


@pytest.fixture(scope="session")
def dags(database):
    from airflow.dag_processing.dagbag import BundleDagBag

    bag = BundleDagBag(dag_folder=str(ROOT / "airflow_dags"), bundle_path=ROOT / "airflow_dags")
    assert bag.import_errors == {}
    return bag.dags


def run_dag(dag_id: str, settings: dict[str, object], timeout_s: int = 250) -> str:
    """One whole run in this process's Airflow; every task really runs. Returns Airflow's log."""
    run = subprocess.run(
        [AIRFLOW, "dags", "test", dag_id, "--conf", json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "FEEDLOOP_TASK_RETRIES": "0"},
        check=False,
    )
    return run.stdout + run.stderr


@pytest.fixture
def recorder(tmp_path):
    """A command line that writes down its arguments, one a line and a blank line a call, and fails where told to."""
    program = tmp_path / "feedloop recorder"
    program.write_text(
        "#!/bin/sh\n"
        f'for argument do printf "%s\\n" "$argument"; done >>"{tmp_path}/calls"; echo >>"{tmp_path}/calls"\n'
        f'[ -f "{tmp_path}/fail-$1" ] && exit 1\n'
        'echo "{}"\n'
    )
    program.chmod(0o755)

    def calls() -> list[list[str]]:
        written = tmp_path / "calls"
        text = written.read_text() if written.exists() else ""
        return [call.splitlines() for call in text.split("\n\n") if call]

    return program, calls


def test_there_are_the_nightly_and_the_hourly_schedule(dags):
    assert set(dags) == {"daily_training", "hourly_update"}


def test_two_runs_of_one_schedule_never_overlap_and_missed_ones_are_not_caught_up(dags):
    for dag in dags.values():
        assert dag.max_active_runs == 1
        assert dag.catchup is False


def test_every_task_is_tried_again_and_has_an_end(dags):
    for dag in dags.values():
        assert dag.dagrun_timeout
        for task in dag.tasks:
            assert task.retries >= 1, task.task_id
            assert timedelta(0) < task.execution_timeout < dag.dagrun_timeout, task.task_id


def test_nothing_is_published_that_replay_has_not_judged(dags):
    dag = dags["daily_training"]
    everything = {task.task_id for task in dag.tasks}
    assert dag.get_task("replay").get_flat_relative_ids(upstream=True) == everything - {"replay", "publish"}
    assert dag.get_task("publish").upstream_task_ids == {"replay"}


@pytest.mark.skipif(not FEEDLOOP.exists(), reason=f"no command line at {FEEDLOOP}")
def test_every_verb_that_a_task_calls_exists(dags):
    called = set()
    for dag in dags.values():
        for task in dag.tasks:
            called.update(re.findall(r'"\$FEEDLOOP" ((?:train )?[a-z]+)', task.bash_command))
    assert {"simulate", "ingest", "train ranker", "publish", "update"} <= called
    for verb in sorted(called):
        run = subprocess.run([FEEDLOOP, *verb.split(), "--help"], capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"feedloop {verb}: {run.stderr}"


def test_what_a_person_sets_reaches_the_command_as_text_and_never_as_shell(recorder, database, tmp_path):
    program, calls = recorder
    workspace = f"{tmp_path}/a space; touch {tmp_path}/pwned; $(touch {tmp_path}/pwned)"
    settings = {
        "feedloop": str(program),
        "workspace": workspace,
        "source": "hetrec",
        "source_path": '/logs/it\'s "here"',
    }
    log = run_dag("daily_training", settings)
    assert "state=success" in log, log[-3000:]
    assert not (tmp_path / "pwned").exists()
    tail = ["--workspace", workspace, "--json"]
    assert calls()[0] == ["ingest", "hetrec", '/logs/it\'s "here"', *tail]
    assert calls()[1:3] == [["features", *tail], ["samples", *tail]]
    assert sorted(calls()[3:6]) == [
        ["train", "prerank", *tail],
        ["train", "ranker", "--nproc", "1", *tail],
        ["train", "recall", *tail],
    ]
    assert calls()[6:] == [["replay", *tail], ["publish", *tail]]


def test_a_failed_replay_publishes_nothing(recorder, database, tmp_path):
    program, calls = recorder
    (tmp_path / "fail-replay").touch()
    log = run_dag("daily_training", {"feedloop": str(program), "workspace": str(tmp_path / "workspace")})
    assert "state=failed" in log
    assert calls()[-1][0] == "replay"


def test_the_hourly_update_waits_for_a_task_that_has_the_workspace(recorder, database, tmp_path):
    program, calls = recorder
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    held = subprocess.Popen(
        [
            "flock",
            workspace / ".schedule.lock",
            "sh",
            "-c",
            f"sleep 15; echo held >>{tmp_path}/calls; echo >>{tmp_path}/calls",
        ]
    )
    log = run_dag("hourly_update", {"feedloop": str(program), "workspace": str(workspace)})
    held.wait()
    assert "state=success" in log, log[-3000:]
    assert calls() == [["held"], ["update", "--workspace", str(workspace), "--json"]]


@pytest.mark.skipif(not FEEDLOOP.exists(), reason=f"no command line at {FEEDLOOP}")
@pytest.mark.timeout(1500)
def test_the_nightly_schedule_really_trains_and_publishes_on_a_small_environment(database, tmp_path, monkeypatch):
    """A real log, Spark, three trainings, replay and a real Redis server; nothing is replaced by a stand-in."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    workspace = tmp_path / "workspace"
    settings = {"feedloop": str(FEEDLOOP), "workspace": str(workspace), "users": 200, "days": 14, "seed": 3}
    try:
        log = run_dag("daily_training", settings, timeout_s=1400)
        assert "state=success" in log, log[-6000:]
        assert (workspace / "reports" / "replay.json").is_file()
        assert (workspace / "artifacts" / "ranker").is_dir()
        publications = list((workspace / "run" / "redis").glob("appendonlydir/*.aof"))
        assert publications, "the published version is in the server's log"
    finally:
        stop = "import sys; from contracts.machine import redis_server; redis_server.stop(sys.argv[1])"
        subprocess.run([ROOT / ".venv" / "bin" / "python", "-c", stop, workspace / "run" / "redis"], check=False)
