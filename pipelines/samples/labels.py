"""Labels: did an action of the task's kind follow the impression inside its attribution window?"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contracts.dataset import Dataset
from contracts.lake import Lake
from contracts.tables import ACTIONS
from contracts.tasks import TASKS
from pipelines.frames import frame


def with_labels(spark: SparkSession, lake: Lake, dataset: Dataset, rows: DataFrame) -> DataFrame:
    """`rows` plus `label_<task>` (tinyint), null for a task that the log does not have.

    An action that names its request counts for that request's impression alone; one that names none counts for every
    impression of the post by that user whose window holds it.
    """
    kinds = sorted({task.kind for task in TASKS})
    actions = frame(spark, lake, ACTIONS, ("request_id", "user_id", "post_id", "kind", "occurred_at")).where(
        F.col("kind").isin(*kinds)
    )
    followed = F.collect_list(F.struct("kind", "occurred_at"))
    of_request = (
        actions.where("request_id is not null")
        .groupBy("request_id", "user_id", "post_id")
        .agg(followed.alias("of_request"))
    )
    of_post = actions.where("request_id is null").groupBy("user_id", "post_id").agg(followed.alias("of_post"))
    joined = rows.join(of_request, ["request_id", "user_id", "post_id"], "left").join(
        of_post, ["user_id", "post_id"], "left"
    )
    labels = [_label(task.kind, dataset) if task.name in dataset.tasks else F.lit(None) for task in TASKS]
    return joined.select(
        *rows.columns, *(label.cast("tinyint").alias(f"label_{task.name}") for task, label in zip(TASKS, labels))
    )


def _label(kind: str, dataset: Dataset) -> Column:
    shown_at = F.col("shown_at")

    def counts(action: Column) -> Column:
        at = action["occurred_at"]
        return (action["kind"] == kind) & (at >= shown_at) & (at < shown_at + dataset.attribution_us)

    found = [F.coalesce(F.exists(column, counts), F.lit(False)) for column in ("of_request", "of_post")]
    return (found[0] | found[1]).cast("int")
