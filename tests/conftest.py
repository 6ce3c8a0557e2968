"""What the tests share: the real datasets, a real Redis server, one Spark session, a seeded generator."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

_BEGUN = time.monotonic()
ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--within SECONDS`: where a run has an end, the tests that it has no time for are named and not cut in the middle."""
    parser.addoption(
        "--within", type=float, metavar="SECONDS", help="begin no test later; those left are skipped by name"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what would begin too late."""
    within_s = item.config.getoption("--within")
    if within_s is not None and time.monotonic() - _BEGUN > within_s:
        pytest.skip(f"NOT RUN, the {within_s:.0f} s of this run were over: {item.nodeid}")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets: FEEDLOOP_SHARED, else ../shared/data beside the checkout."""
    named = os.environ.get("FEEDLOOP_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real datasets at {folder}; set FEEDLOOP_SHARED to a folder that has them")
    return folder


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server process of this test run's own; never the one that REDIS_URL names, since tests empty it."""
    from contracts.machine.redis_server import RedisServer

    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator["object"]:
    """A client of the run's server, which is empty when the test begins."""
    import redis

    client = redis.Redis.from_url(redis_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(scope="module")
def spark() -> "object":
    """The run's one Spark session, since a start takes as long as many tests; a new one if a module before stopped it."""
    return pytest.importorskip("pipelines.spark", reason="the pipelines are not here").session()


def pytest_sessionfinish() -> None:
    """Stops Spark, if a test started it."""
    pyspark_sql = sys.modules.get("pyspark.sql")
    session = pyspark_sql.SparkSession.getActiveSession() if pyspark_sql else None
    if session is not None:
        session.stop()


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The program of a Chromium; the tests that drive it as root pass `--no-sandbox`."""
    from feedloop.machine import browser

    found = browser.find()
    if found is None:
        pytest.skip("no chromium on the PATH: make browser")
    return found


@pytest.fixture
def rng() -> np.random.Generator:
    """Randomness with a seed: the same test draws the same numbers."""
    return np.random.default_rng(20240601)
