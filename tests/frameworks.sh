#!/usr/bin/env bash
# Publishes from real trainers' frameworks, on the CPU, and compares what a receiver then holds with what they save.
# Installs them in .cache/frameworks; needs what tests/run.sh builds and installs.
#
#   tests/frameworks.sh [OPTION OF PYTEST ...]
#
# Frameworks whose packages on PyPI are placeholders are tested from checkouts: NEMO_RL_SOURCE=DIR, SLIME_SOURCE=DIR.
#
# Exit status: 0 when everything passed; 69 something could not be installed; others are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.cache/venv
FRAMEWORKS=.cache/frameworks
REQUIREMENTS=tests/requirements-frameworks.txt

export DS_ACCELERATOR=cpu DS_BUILD_OPS=0  # DeepSpeed compiles nothing

install_frameworks() {
  cmp -s "$REQUIREMENTS" "$FRAMEWORKS/requirements.txt" && return
  rm -rf "$FRAMEWORKS"
  "$VENV/bin/pip" install --quiet --no-deps --no-compile --no-build-isolation --target "$FRAMEWORKS" -r "$REQUIREMENTS" ||
    { echo "frameworks.sh: the packages of $REQUIREMENTS could not be installed; check the network" >&2 && exit 69; }
  cp "$REQUIREMENTS" "$FRAMEWORKS/requirements.txt"
}

install_frameworks
PYTHONPATH="$FRAMEWORKS" exec "$VENV/bin/python" -m pytest -c tests/pytest.ini --rootdir=. \
  tests/layouts/framework_generators.py tests/frameworks/slime_weight_update.py tests/frameworks/verl_checkpoint_engine.py \
  tests/frameworks/nemo_rl_checkpoint_engine.py "$@"
