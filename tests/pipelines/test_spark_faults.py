"""A disk under Spark's scratch folder that refuses is told in one sentence, and Spark goes on once there is room."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from contracts.errors import BadInput
from pipelines.spark import _cause, machine_faults

pytestmark = pytest.mark.spark


@contextmanager
def files_of_at_most(spark: SparkSession, size: int) -> Iterator[None]:
    """Spark's Java can write no file of more than `size` bytes: to it, the disk is full."""
    process = spark.sparkContext._gateway.proc
    (java,) = [one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java"] or [process]
    before = resource.prlimit(java.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(java.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(java.pid, resource.RLIMIT_FSIZE, before)


def shuffled(spark: SparkSession) -> int:
    return spark.range(200_000).select(F.xxhash64("id").alias("id")).repartition(2, "id").agg(F.count("id")).first()[0]


def test_a_full_scratch_disk_is_one_sentence_that_names_the_folder(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/scratch")
    with files_of_at_most(spark, 4096), pytest.raises(BadInput) as raised, machine_faults():
        shuffled(spark)
    assert str(raised.value) == (
        "Spark cannot write to its scratch folder /scratch: File too large; make room there, or name another folder in "
        "SPARK_LOCAL_DIRS"
    )
    assert shuffled(spark) == 200_000


def test_what_is_no_fault_of_the_disk_stays_sparks_own_error(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"), machine_faults():
        spark.sql("select cast('x' as int)").collect()


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'k8s://x'\n\tat org.apache.spark.SparkContext$",
            "org.apache.spark.SparkException: Could not parse Master URL: 'k8s://x'",
        ),
        (
            "An error occurred while calling None.X.\n: a.ClientException: An error has occurred.\n\tat a.B\nCaused by: a.C: c\n"
            "\tat a.D\nCaused by: java.net.UnknownHostException: x\n\t... 3 more",
            "a.ClientException: An error has occurred, because of java.net.UnknownHostException: x",
        ),
        (
            "An error occurred while calling None.X.\n: java.lang.IllegalStateException: Cannot call methods on a stopped "
            "SparkContext.\nThis stopped SparkContext was created at:\n",
            "the master did not answer, or ended the application (Cannot call methods on a stopped SparkContext)",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.\nmore", "[JAVA_GATEWAY_EXITED] "
         "Java gateway process exited before sending its port number."),
        ("", "it does not say why"),
    ],
)  # fmt: skip
def test_why_spark_does_not_start_is_javas_own_line_and_not_the_call_that_failed(told: str, cause: str) -> None:
    assert _cause(told) == cause
