"""The rows that become samples: impressions inside the split's windows, with the moment their features are as of."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.lake import Lake
from contracts.tables import IMPRESSIONS, POSTS, REQUESTS
from pipelines.frames import frame
from pipelines.keys import KEYS

WINDOWS = ("train", "validation", "test")
KEY = KEYS["impressions"]
"""What tells two impressions apart. A position may come twice in a request, as where ads are counted apart."""


def sampled_impressions(spark: SparkSession, lake: Lake, dataset: Dataset) -> DataFrame:
    """Impressions requested and shown inside one window and closed at the log's end.

    Columns: the identity columns of `contracts.samples.SAMPLES`, `requested_at`, and `post`, a struct of what was known
    of the post at `requested_at` (null when nothing was). Impressions without a logged request are left out.
    """
    split = dataset.split()
    start, end = split.train[0], split.test[1]
    requests = frame(spark, lake, REQUESTS, ("request_id", "requested_at"), start, end)
    shown = frame(
        spark, lake, IMPRESSIONS,
        ("request_id", "user_id", "post_id", "author_id", "position", "shown_at", "viewed_ms", "policy", "propensity"),
        start, end,
    )  # fmt: skip
    rows = (
        shown.join(requests, "request_id")
        .withColumn("split", _window_of(split.as_dict()))
        .where(F.col("split").isNotNull() & (F.col("shown_at") + dataset.attribution_us <= dataset.end))
        .withColumn("viewed", F.col("viewed_ms") > 0)
        .drop("viewed_ms")
    )
    versions = frame(spark, lake, POSTS).groupBy("post_id").agg(
        F.array_sort(F.collect_list(F.struct("known_at", "created_at", "kind", "topic", "visibility", "origin_post_id"))).alias("versions")
    )  # fmt: skip
    return rows.join(versions, "post_id", "left").withColumn("post", latest_known("versions")).drop("versions")


def check_keys(rows: DataFrame, spark: SparkSession, lake: Lake) -> None:
    """`BadInput` where two of `rows` have one KEY, so that a join would multiply them: the table that repeats its key,
    how many rows there do and the first of them."""
    if _repeated(rows, KEY) is None:
        return
    for spec in (REQUESTS, IMPRESSIONS):
        key = KEYS[spec.name]
        if again := _repeated(frame(spark, lake, spec, key), key):
            count, first = again
            raise BadInput(
                f"table {spec.name}: {count} rows repeat a {' and '.join(key)}, the first is {', '.join(map(str, first))}"
            )


def _repeated(rows: DataFrame, key: tuple[str, ...]) -> tuple[int, tuple[int, ...]] | None:
    """How many rows share their key with another, and the least such key; None when none does."""
    again = rows.groupBy(*key).count().where("count > 1")
    count, first = again.agg(F.sum("count"), F.min(F.struct(*key))).first()
    return (count, tuple(first)) if count else None


def latest_known(versions: str) -> Column:
    """The last struct of the array column `versions` (ordered by its `known_at`) known before `requested_at`, or null."""
    return F.try_element_at(F.filter(versions, lambda row: row["known_at"] < F.col("requested_at")), F.lit(-1))


def _window_of(windows: dict) -> Column:
    """The window that holds both `requested_at` and `shown_at`; null outside."""
    name = F.lit(None).cast("string")
    for window in WINDOWS:
        start, end = windows[window]
        inside = [F.col(at).between(start, end - 1) for at in ("requested_at", "shown_at")]
        name = F.when(inside[0] & inside[1], F.lit(window)).otherwise(name)
    return name
