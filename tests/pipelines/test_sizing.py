"""Spark's settings follow the rows of the log, and what the environment sets stands."""

from dataclasses import replace

import pytest

from contracts.lake import Lake
from contracts.tables import TableSpec
from contracts.workspace import Workspace
from pipelines.sizing import DEEPLY_COMPILED, settings_for
from pipelines.spark import SparkSettings
from tests.pipelines.small_log import random_log, save


@pytest.fixture
def workspace(tmp_path, rng):
    return save(tmp_path, random_log(rng))


def _many(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    small = Lake.manifest

    def manifest(lake: Lake, spec: TableSpec):
        return replace(small(lake, spec), rows=rows)

    monkeypatch.setattr(Lake, "manifest", manifest)


def test_a_small_log_takes_the_settings_of_short_jobs(workspace: Workspace, monkeypatch) -> None:
    for name in ("FEEDLOOP_SPARK_PARTITIONS", "FEEDLOOP_SPARK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert settings_for(workspace.lake) == SparkSettings()


def test_a_log_of_many_rows_gets_more_parts_and_deeply_compiled_plans(workspace: Workspace, monkeypatch) -> None:
    _many(monkeypatch, 20_000_000)
    settings = settings_for(workspace.lake)
    assert settings.shuffle_partitions == 60 and settings.java_options == DEEPLY_COMPILED


def test_what_the_environment_sets_stands_whatever_the_rows(workspace: Workspace, monkeypatch) -> None:
    _many(monkeypatch, 20_000_000)
    monkeypatch.setenv("FEEDLOOP_SPARK_PARTITIONS", "3")
    monkeypatch.setenv("FEEDLOOP_SPARK_JAVA_OPTIONS", "-XX:+UseSerialGC")
    settings = settings_for(workspace.lake)
    assert settings.shuffle_partitions == 3 and settings.java_options == "-XX:+UseSerialGC"
