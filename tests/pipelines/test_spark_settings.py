"""A Spark that does not start is bad input that names the variables it was to start with."""

import os
import subprocess
import sys

import pytest

START = """
from contracts.errors import BadInput
from pipelines.spark import session
try:
    session()
except BadInput as error:
    print(error)
"""


@pytest.mark.spark
def test_java_options_that_java_refuses_are_named():
    answer = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=True,
        env={**os.environ, "FEEDLOOP_SPARK_JAVA_OPTIONS": "-Xnonsense"},
    )  # fmt: skip
    assert "FEEDLOOP_SPARK_JAVA_OPTIONS=-Xnonsense" in answer.stdout and "Traceback" not in answer.stderr
