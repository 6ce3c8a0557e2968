"""The one Spark session: local by default, any master by setting, UTC, quiet, bound to loopback when local."""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from contracts.errors import BadInput
from contracts.machine import java
from contracts.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOGGING = Path(__file__).with_name("log4j2.properties")
LEAST_MEMORY_MB = 512
"""Spark itself asks for a heap of 450 MB."""


class SparkSettings(Settings):
    """How Spark runs; every field can be set by its environment variable."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    master: str = Field(
        "local[2]", alias="SPARK_MASTER", description="SPARK_MASTER: where the work runs",
        pattern=r"^(local(\[([1-9]\d{0,3}|\*)(, ?\d+)?\])?|local-cluster\[.+\]|spark://\S+|k8s://\S+|yarn)$",
    )  # fmt: skip
    driver_memory: str = Field(
        "2g", alias="FEEDLOOP_SPARK_MEMORY", pattern=r"^\d+[mg]$",
        description="FEEDLOOP_SPARK_MEMORY: heap of the driver, which in local mode does all the work, as 2g or 900m",
    )  # fmt: skip
    executor_memory: str = Field(
        "2g", alias="FEEDLOOP_SPARK_EXECUTOR_MEMORY", pattern=r"^\d+[mg]$",
        description="FEEDLOOP_SPARK_EXECUTOR_MEMORY: heap of each executor of a cluster, as 2g or 900m",
    )  # fmt: skip
    executor_cores: int = Field(
        0, alias="FEEDLOOP_SPARK_EXECUTOR_CORES", ge=0, le=1024,
        description="FEEDLOOP_SPARK_EXECUTOR_CORES: tasks that an executor of a cluster runs at once; 0: all that it is given",
    )  # fmt: skip
    driver_host: str = Field(
        "", alias="FEEDLOOP_SPARK_DRIVER_HOST",
        description="FEEDLOOP_SPARK_DRIVER_HOST: name or address at which executors of a cluster reach this machine",
    )  # fmt: skip
    java_options: str = Field(
        "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        alias="FEEDLOOP_SPARK_JAVA_OPTIONS",
        description="FEEDLOOP_SPARK_JAVA_OPTIONS: options of the driver's and the executors' Java. The default compiles plans quickly and "
        "not deeply, which halves the processor time of jobs of minutes; clear it for jobs of hours. The code of many plans "
        "does not fit Java's 48 MB for that",
    )
    shuffle_partitions: int = Field(
        4, alias="FEEDLOOP_SPARK_PARTITIONS", ge=1, le=100_000,
        description="FEEDLOOP_SPARK_PARTITIONS: parts of each shuffle",
    )  # fmt: skip

    @field_validator("driver_memory")
    @classmethod
    def _bootable(cls, memory: str) -> str:
        megabytes = int(memory[:-1]) * (1024 if memory.endswith("g") else 1)
        most = psutil.virtual_memory().total >> 20
        if not LEAST_MEMORY_MB <= megabytes <= most:
            raise ValueError(f"Spark boots on {LEAST_MEMORY_MB}m at least, and this machine has {most}m")
        return memory


def session(app: str = "feedloop", settings: SparkSettings | None = None) -> "SparkSession":
    """The running session, or a new one. `BadInput` when the machine has no Java that Spark boots on, or
    Spark does not start with these settings.

    Starting takes some 15 seconds: make one per process and pass it on.
    """
    settings = settings or SparkSettings()
    os.environ.update(java.environment())
    # Without these the Python workers may be another interpreter than this one.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    options = {
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": settings.driver_memory,
        # The deep plans of many joins overflow the JVM's default stack.
        "spark.driver.extraJavaOptions": f"-Xss16m -Dlog4j2.configurationFile={_LOGGING.as_uri()} {settings.java_options}".strip(),
        "spark.driver.maxResultSize": "0",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "true",
        # What is kept in memory is read a few times and dropped: packing it takes longer than all that reading.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # On a busy machine a small broadcast or a heartbeat may wait for minutes; that is no failure.
        "spark.sql.broadcastTimeout": "3600",
        "spark.network.timeout": "1800s",
        "spark.executor.heartbeatInterval": "60s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        options |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    else:
        options |= _of_cluster(settings)
    # The pandas that is pinned was run with this Spark; the parts used here work.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    builder = SparkSession.builder.master(settings.master).appName(app)
    for name, value in options.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        given = ", ".join(f"{name}={value}" for name, value in settings.model_dump(by_alias=True).items())
        raise BadInput(f"Spark does not start with {given}: {_cause(str(error))}") from error


def _cause(told: str) -> str:
    """What went wrong, in one line: of an error out of Java its own line, after the call that failed, and its first cause."""
    lines = [line.strip().removeprefix(": ") for line in told.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        if "stopped SparkContext" in lines[1]:
            return "the master did not answer, or ended the application (Cannot call methods on a stopped SparkContext)"
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        return f"{lines[1].rstrip('.')}, because of {causes[-1]}" if causes else lines[1]
    return lines[0] if lines else "it does not say why"


def _of_cluster(settings: SparkSettings) -> dict[str, str]:
    options = {
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.extraJavaOptions": f"-Xss16m {settings.java_options}".strip(),
    }
    if settings.executor_cores:
        options["spark.executor.cores"] = str(settings.executor_cores)
    if settings.driver_host:
        options["spark.driver.host"] = settings.driver_host
    return options


_MACHINES = ("No space left on device", "Disk quota exceeded", "Read-only file system", "File too large")


@contextmanager
def machine_faults() -> Iterator[None]:
    """`BadInput`, in place of Spark's stack trace, where the disk under Spark's scratch folder refuses."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = next((words for words in _MACHINES if words in str(error)), None)
        if found is None:
            raise
        scratch = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
        raise BadInput(
            f"Spark cannot write to its scratch folder {scratch}: {found}; make room there, or name another folder in "
            "SPARK_LOCAL_DIRS"
        ) from error


def stop() -> None:
    """Ends the running session and its Java, if there is one, so that its memory is free again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is None:
        return
    running.stop()
    if SparkContext._gateway is not None:
        # The Java process outlives the session otherwise.
        SparkContext._gateway.shutdown()
        SparkContext._gateway.proc.stdin.close()
        SparkContext._gateway.proc.wait(timeout=30)
        SparkContext._gateway = SparkContext._jvm = None
