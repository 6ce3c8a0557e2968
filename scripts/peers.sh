#!/usr/bin/env bash
# The packages that benchmarks measure against, each in an environment of its own, since they want versions that the project cannot live with.
#   obp    Open Bandit Pipeline 0.5.7 in .venv-peers/obp. Its metadata asks for Python below 3.10 and old releases; it runs on these
#   duckdb DuckDB 2.0.1 in .venv-peers/duckdb
set -euo pipefail
cd "$(dirname "$0")/.."

UV=.venv/bin/uv

obp() {
  local venv=.venv-peers/obp
  [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
  # torch first and by number: an open range takes gigabytes of CUDA. obp imports it at start, nothing here computes with it.
  "$UV" pip install --quiet --python "$venv/bin/python" 'torch==2.13.0'
  "$UV" pip install --quiet --python "$venv/bin/python" 'numpy<3' 'pandas<3' 'scipy<2' 'scikit-learn<2' matplotlib seaborn pyyaml tqdm mypy-extensions
  # uv has no switch for a package whose Python range is out of date; pip has.
  "$venv/bin/python" -m pip install --quiet --no-deps --ignore-requires-python 'obp==0.5.7' pyieoe
  "$venv/bin/python" -c 'import obp; print("obp", obp.__version__)'
}

duckdb() {
  local venv=.venv-peers/duckdb
  [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
  "$UV" pip install --quiet --python "$venv/bin/python" 'duckdb==2.0.1'
  "$venv/bin/python" -c 'import duckdb; print("duckdb", duckdb.__version__)'
}

case ${1:-} in
  obp) obp ;;
  duckdb) duckdb ;;
  *)
    echo "usage: scripts/peers.sh obp|duckdb" >&2
    exit 2
    ;;
esac
