"""An Airflow home of this test run's own, made before anything imports Airflow."""

import os
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_home = tempfile.mkdtemp(prefix="feedloop-airflow-")
os.environ.update(
    AIRFLOW_HOME=_home,
    AIRFLOW__CORE__DAGS_FOLDER=str(ROOT / "airflow_dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_home}/airflow.db",
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=f"{_home}/logs",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
)


def pytest_sessionfinish() -> None:
    shutil.rmtree(_home, ignore_errors=True)
