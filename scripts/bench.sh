#!/usr/bin/env bash
# Runs every benchmark, one after the other, then writes the table; arguments go to each benchmark.
# A benchmark that could not measure something does not stop the rest, but makes the whole fail at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
for file in benchmarks/*.py; do
  name=$(basename "$file" .py)
  # The table is written at the end; names with a leading underscore are shared parts.
  case $name in _* | table) continue ;; esac
  grep -q '__main__' "$file" || continue
  echo "== $name" >&2
  .venv/bin/python -m "benchmarks.$name" "$@" || failed+=("$name")
done
.venv/bin/python -m benchmarks.table
if [ ${#failed[@]} -gt 0 ]; then
  echo "not everything could be measured: ${failed[*]}" >&2
  exit 1
fi
