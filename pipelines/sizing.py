"""How Spark runs for a log of a given size, where the environment does not say otherwise."""

from typing import TYPE_CHECKING

from contracts.lake import Lake
from contracts.tables import ACTIONS, IMPRESSIONS, POSTS
from pipelines.spark import SparkSettings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_JOB_ROWS = 5_000_000
"""Rows from which a job runs long enough for deeply compiled plans to earn back the time that compiling them takes."""
ROWS_PER_PART = 1_000_000
"""A part of a shuffle with some 60 bytes a row then fits the memory of its task, sorted or hashed, without spilling."""
DEEPLY_COMPILED = "-XX:+UseParallelGC"


def settings_for(lake: Lake) -> SparkSettings:
    """Settings for jobs over this lake's events: by the rows of its manifests; what the environment sets stands."""
    rows = sum(lake.manifest(spec).rows for spec in (POSTS, IMPRESSIONS, ACTIONS) if lake.exists(spec))
    settings = SparkSettings()
    wanted: dict[str, int | str] = {"shuffle_partitions": max(settings.shuffle_partitions, -(-rows // ROWS_PER_PART))}
    if rows >= LONG_JOB_ROWS:
        wanted["java_options"] = DEEPLY_COMPILED
    return settings.model_copy(
        update={name: value for name, value in wanted.items() if name not in settings.model_fields_set}
    )


def session_for(lake: Lake) -> "SparkSession":
    """The running session, or a new one that runs as `settings_for` says."""
    return session(settings=settings_for(lake))
