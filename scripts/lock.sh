#!/usr/bin/env bash
# Writes requirements.lock from pyproject.toml: every package but torch, for Python 3.11 and later, with hashes.
#
# torch is left out because its builds differ (CPU, CUDA, ROCm): set-up installs the one it is told first, and the lock
# then names only torch's own pure-Python dependencies, so that nothing here pulls in another build of it.
# More arguments go to `uv pip compile`: `scripts/lock.sh --upgrade` moves every pin to the newest release allowed.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-.venv/bin/uv}
PYTHON=${PYTHON:-.venv/bin/python}

wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
"$PYTHON" - >"$wanted" <<'PY'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for line in project["dependencies"] + extras["embedded"] + extras["dev"]:
    if not line.startswith("torch"):
        print(line)
# what torch 2.13 and 2.14 declare of pure Python, and what builds the project itself
print("filelock", "typing-extensions>=4.10.0", "setuptools>=77.0.3", "sympy>=1.13.3", "networkx>=2.5.1", sep="\n")
PY

"$UV" pip compile "$wanted" --universal --python-version 3.11 --generate-hashes --quiet \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
  --output-file requirements.lock "$@"
{
  echo "# Written by scripts/lock.sh from pyproject.toml. torch is left out on purpose: see that script."
  cat requirements.lock
} >requirements.lock.new
mv requirements.lock.new requirements.lock
if grep -qE '^(torch==|nvidia-)|^--|://' requirements.lock; then
  echo "requirements.lock names torch, its CUDA packages or a package index: see the lines above" >&2
  exit 1
fi
echo "requirements.lock: $(grep -cE '^[a-z].*==' requirements.lock) packages"
