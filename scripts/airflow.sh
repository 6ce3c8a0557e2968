#!/usr/bin/env bash
# Airflow in an environment of its own, .venv-airflow, apart from the project's: it calls only the command line.
#   setup  makes the environment from requirements-airflow.lock, only what changed
#   test   parses the schedules and runs the daily one for real; arguments go to pytest
#   lock   writes requirements-airflow.lock; arguments go to `uv pip compile`
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv-airflow
STAMP=$VENV/.ready
UV=.venv/bin/uv

setup() {
  exec 9>.venv-airflow.lock
  flock 9
  local fingerprint
  fingerprint=$(sha256sum <requirements-airflow.lock | cut -d' ' -f1)
  if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$fingerprint" ]; then return; fi
  echo "airflow: the packages of requirements-airflow.lock" >&2
  [ -x "$VENV/bin/python" ] || .venv/bin/python -m venv --without-pip "$VENV"
  "$UV" pip install --quiet --python "$VENV/bin/python" --require-hashes --requirements requirements-airflow.lock
  echo "$fingerprint" >"$STAMP"
}

run_tests() {
  # The project's own conftest needs the project's packages; these tests need none of them.
  FEEDLOOP_BIN=${FEEDLOOP_BIN:-$PWD/.venv/bin/feedloop} \
    "$VENV/bin/python" -m pytest tests/airflow_dags --confcutdir tests/airflow_dags "$@"
}

lock() {
  printf '%s\n' 'apache-airflow>=3.3,<3.4' 'pytest>=8.3,<10' 'pytest-timeout>=2.3,<3' |
    "$UV" pip compile - --universal --python-version 3.11 --generate-hashes --quiet \
      --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
      --output-file requirements-airflow.lock "$@"
  sed -i '1i # Written by scripts/airflow.sh lock. Airflow lives in an environment of its own.' requirements-airflow.lock
  if grep -qE '^--|://' requirements-airflow.lock; then
    echo "requirements-airflow.lock names a package index: see the lines above" >&2
    exit 1
  fi
  echo "requirements-airflow.lock: $(grep -cE '^[a-z].*==' requirements-airflow.lock) packages"
}

case ${1:-} in
  setup) setup ;;
  test) shift && run_tests "$@" ;;
  lock) shift && lock "$@" ;;
  *)
    echo "usage: scripts/airflow.sh setup | test [pytest arguments] | lock [uv arguments]" >&2
    exit 2
    ;;
esac
