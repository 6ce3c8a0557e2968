"""The job on a Spark standalone cluster, a master and two workers on loopback, leaves the bytes of the local one."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyspark
import pytest
from pyspark.sql import SparkSession

from contracts.machine import java
from contracts.samples import SAMPLES
from contracts.states import STATES
from contracts.workspace import Workspace
from pipelines.features import build_states
from pipelines.samples import build_samples
from tests.pipelines.small_log import random_log, save

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
HOME = Path(pyspark.__file__).parent
JOB = """
import sys
from contracts.workspace import Workspace
from pipelines.features import build_states
from pipelines.samples import build_samples
from pipelines.spark import session
workspace, spark = Workspace(sys.argv[1]), session()
build_states(workspace, spark)
build_samples(workspace, spark)
"""


def daemon(log: Path, *arguments: str) -> subprocess.Popen:
    environment = os.environ | java.environment() | {"SPARK_HOME": str(HOME), "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("w") as file:
        command = [str(HOME / "bin" / "spark-class"), *arguments]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)


def wait_for(log: Path, words: str, process: subprocess.Popen) -> None:
    for _ in range(1200):
        if words in log.read_text():
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"{words!r} did not come: {log.read_text()}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core and 600 MB each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    deploy, here = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--webui-port", "0")
    logs = [tmp_path / f"{name}.log" for name in ("master", "one", "two")]
    started = [daemon(logs[0], f"{deploy}.master.Master", *here, "--port", str(port))]
    try:
        wait_for(logs[0], "I have been elected leader", started[0])
        for log in logs[1:]:
            started.append(
                daemon(log, f"{deploy}.worker.Worker", *here, "--cores", "1", "--memory", "600m", "--work-dir",
                       str(tmp_path / log.stem), address)
            )  # fmt: skip
        for log, process in zip(logs[1:], started[1:]):
            wait_for(log, "Successfully registered with master", process)
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(timeout=60)


def test_a_standalone_cluster_leaves_the_same_bytes_as_one_machine(
    spark: SparkSession, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(np.random.default_rng(5), posts=40, requests=80, slate=4)
    local, cluster = save(tmp_path / "local", log), save(tmp_path / "cluster", log)
    monkeypatch.setenv("FEEDLOOP_FILE_MB", "0.005")
    environment = os.environ | {
        "SPARK_MASTER": master, "FEEDLOOP_SPARK_DRIVER_HOST": "127.0.0.1", "FEEDLOOP_SPARK_MEMORY": "600m",
        "FEEDLOOP_SPARK_EXECUTOR_MEMORY": "600m", "FEEDLOOP_SPARK_PARTITIONS": "2", "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    job = subprocess.run([sys.executable, "-c", JOB, cluster.root], env=environment, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    assert all(list((tmp_path / worker).glob("app-*")) for worker in ("one", "two")), "both workers had a part in it"
    build_states(local, spark)
    build_samples(local, spark)

    def made(workspace: Workspace) -> dict[str, dict]:
        states = {spec.name: workspace.features.manifest(spec).days for spec in STATES.values()}
        return states | {"samples": workspace.samples.manifest(SAMPLES).days}

    assert made(cluster) == made(local)
    assert len(cluster.features.manifest(STATES["tie"]).files()) > 2, "tables of several files a day"
