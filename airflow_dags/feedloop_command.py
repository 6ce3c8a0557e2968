"""What the schedules share: how one verb of the command line becomes a task, and what a person may set.

Airflow puts this folder on the path of its own, so the schedules import this file by its bare name.
"""

import os
from datetime import timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import Param

# A verb that finds the workspace busy fails at once. The tasks of all schedules therefore wait for one another here; the
# lock goes with the process that holds it, also when that is killed.
_COMMAND = """\
set -euo pipefail
mkdir -p "$WORKSPACE"
exec flock --wait "$LOCK_WAIT_S" "$WORKSPACE/.schedule.lock" {command} --workspace "$WORKSPACE" --json
"""


def _absolute(path: str) -> str:
    """A task starts in a folder of its own, so a path that was meant from the scheduler's folder is completed here."""
    return os.path.abspath(path) if os.sep in path else path


DEFAULT_ARGS = {
    "owner": "feedloop",
    "retries": int(os.environ.get("FEEDLOOP_TASK_RETRIES", "2")),
    "retry_delay": timedelta(minutes=2),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=20),
    "execution_timeout": timedelta(hours=2),
}

PLACE = {
    "feedloop": Param(
        _absolute(os.environ.get("FEEDLOOP_BIN", "feedloop")),
        type="string",
        minLength=1,
        description="The command line; the environment variable FEEDLOOP_BIN of the scheduler sets the default.",
    ),
    "workspace": Param(
        os.path.abspath(os.environ.get("FEEDLOOP_WORKSPACE", "workspace")),
        type="string",
        pattern="^/.",
        description="The folder of everything a run makes, as a full path; FEEDLOOP_WORKSPACE sets the default.",
    ),
}


def verb(
    task_id: str,
    command: str,
    *,
    settings: dict[str, str] | None = None,
    at_most: timedelta = DEFAULT_ARGS["execution_timeout"],  # type: ignore[assignment]
    doc: str = "",
) -> BashOperator:
    """One verb as a task: `command` is bash, with "$FEEDLOOP" as the command line and `settings` as its variables.

    What a person can set reaches the shell through variables only, never as text of the script. The task's value is the
    last line on stdout, which is the verb's one JSON object.
    """
    return BashOperator(
        task_id=task_id,
        bash_command=_COMMAND.format(command=command),
        env={
            "FEEDLOOP": "{{ params.feedloop }}",
            "WORKSPACE": "{{ params.workspace }}",
            "LOCK_WAIT_S": str(int(at_most.total_seconds())),
            **(settings or {}),
        },
        append_env=True,
        execution_timeout=at_most,
        doc_md=doc,
    )
