"""Between two nights: what has happened since goes into features and models, and the fresh version is served.

The update waits while the nightly turn has the workspace. When a run is late, the next one brings everything in: missed
hours are not caught up one by one.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from feedloop_command import DEFAULT_ARGS, PLACE, verb

with DAG(
    dag_id="hourly_update",
    description="new events -> features, models -> served",
    doc_md=__doc__,
    schedule="15 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args=DEFAULT_ARGS,
    tags=["feedloop"],
    params=PLACE,
) as dag:
    verb("update", '"$FEEDLOOP" update', at_most=timedelta(hours=3), doc="The incremental update, published.")
