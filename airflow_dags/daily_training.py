"""The nightly turn of the loop: yesterday's log in, features, samples, models, replay, and the new version served.

Every task is one verb of the command line and may be run again: a verb replaces its output as a whole or leaves the old
one. A version reaches people only when replay, which judges it on the logged test window, has ended well.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param, TaskGroup
from feedloop_command import DEFAULT_ARGS, PLACE, verb

with DAG(
    dag_id="daily_training",
    description="log -> features -> samples -> recall, pre-rank, ranker -> replay -> publish",
    doc_md=__doc__,
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    # The trainings would share one machine's cores; raise it where tasks run on machines of their own.
    max_active_tasks=1,
    dagrun_timeout=timedelta(hours=12),
    default_args=DEFAULT_ARGS,
    tags=["feedloop"],
    params={
        **PLACE,
        "source": Param(
            "environment",
            type="string",
            minLength=1,
            description='"environment" simulates a log; any other name is an adapter of `feedloop ingest`.',
        ),
        "source_path": Param("", type="string", description="Where the adapter reads."),
        "users": Param(2000, type="integer", minimum=1, description="People in the environment."),
        "days": Param(28, type="integer", minimum=1, description="Days of log that the environment writes."),
        "seed": Param(7, type="integer", minimum=0, description="The same seed gives the same log."),
        "nproc": Param(1, type="integer", minimum=1, description="Ranks that train the ranker on the task's machine."),
    },
) as dag:
    log = verb(
        "log",
        """bash -c '
  if [ "$SOURCE" = environment ]; then
    exec "$FEEDLOOP" simulate --users "$USERS" --days "$DAYS" --seed "$SEED" "$@"
  fi
  exec "$FEEDLOOP" ingest "$SOURCE" "$SOURCE_PATH" "$@"
' log""",
        settings={
            "SOURCE": "{{ params.source }}",
            "SOURCE_PATH": "{{ params.source_path }}",
            "USERS": "{{ params.users }}",
            "DAYS": "{{ params.days }}",
            "SEED": "{{ params.seed }}",
        },
        doc="The log: simulated, or read by an adapter.",
    )
    features = verb("features", '"$FEEDLOOP" features', doc="Spark: the state of every feature counter.")
    samples = verb("samples", '"$FEEDLOOP" samples', doc="Spark: impressions with features as of that moment.")

    with TaskGroup("train", tooltip="The models, each on the time-split samples"):
        models = [
            verb("recall", '"$FEEDLOOP" train recall', doc="All recall paths and the weights of their merge."),
            verb("prerank", '"$FEEDLOOP" train prerank', doc="LightGBM lambdarank, grouped by request."),
            verb(
                "ranker",
                '"$FEEDLOOP" train ranker --nproc "$NPROC"',
                settings={"NPROC": "{{ params.nproc }}"},
                at_most=timedelta(hours=6),
                doc="The multi-task ranker, calibrated.",
            ),
        ]

    replay = verb("replay", '"$FEEDLOOP" replay', doc="The gate: policies judged on the logged test window.")
    publish = verb("publish", '"$FEEDLOOP" publish', doc="The new version into Redis, switched to at once.")

    log >> features >> samples >> models >> replay >> publish
