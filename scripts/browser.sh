#!/usr/bin/env bash
# Installs the system's Chromium when there is none and it may; otherwise says what will be skipped. Never fails a build.
set -euo pipefail
cd "$(dirname "$0")/.."

exec 9>.venv.browser.lock
flock 9

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "browser: installing chromium" >&2
  export DEBIAN_FRONTEND=noninteractive
  if apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; then
    exit 0
  fi
fi
echo "browser: no chromium here and none could be installed; the tests that drive a browser will be skipped" >&2
