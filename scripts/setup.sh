#!/usr/bin/env bash
# Makes .venv: torch first, then everything else from requirements.lock, then the project itself in editable form.
#
# Safe to run again (it does only what changed) and safe to run twice at once (one waits for the other).
#   PYTHON       the Python to build on; else the first of python3.11, python3.12, python3 that is 3.11 or 3.12
#   TORCH_SPEC   what to give pip for torch; default torch==2.13.0. An installed torch is kept when it satisfies this.
#   SETUP_FORCE  1 runs every step even when the stamp says that nothing changed
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.ready
UV_VERSION=0.13.9
TORCH_SPEC=${TORCH_SPEC:-torch==2.13.0}

say() { echo "setup: $*" >&2; }

exec 9>.venv.lock
flock 9

# What the environment was built from; the stamp keeps it, so a changed file is noticed by content and not by its date.
fingerprint=$({ echo "$UV_VERSION $TORCH_SPEC"; cat requirements.lock pyproject.toml; } | sha256sum | cut -d' ' -f1)
if [ "${SETUP_FORCE:-0}" != 1 ] && [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$fingerprint" ] && [ -x "$VENV/bin/python" ]; then
  touch "$STAMP"
  exit 0
fi

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  say "no Python 3.11 or 3.12 found; install one, or name it: PYTHON=/path/to/python make setup"
  return 1
}

if ! "$VENV/bin/python" -c '' 2>/dev/null; then
  python=$(find_python)
  say "making $VENV with $("$python" --version)"
  if ! "$python" -m venv "$VENV"; then
    say "$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
    exit 1
  fi
fi
python=$VENV/bin/python

say "torch ($TORCH_SPEC)"
"$python" -m pip install --quiet --disable-pip-version-check "$TORCH_SPEC" 2> >(grep -v "is ignored: it is neither a file nor a directory" >&2 || true)
"$python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" 2> >(grep -v "is ignored: it is neither a file nor a directory" >&2 || true)

say "the packages of requirements.lock"
"$VENV/bin/uv" pip install --quiet --python "$python" --require-hashes --requirements requirements.lock

say "feedloop itself"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

echo "$fingerprint" >"$STAMP"
say "ready: $VENV"
