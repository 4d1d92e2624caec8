#!/usr/bin/env bash
# Publishes from real trainers' frameworks, on the CPU, and compares what receivers and engines then hold with what they save.
# Installs them in .cache; needs what tests/run.sh builds and installs.
#
#   tests/frameworks.sh [OPTION OF PYTEST ...]
#
# Frameworks that are not on PyPI, or only as placeholders, are tested from checkouts: NEMO_RL_SOURCE=DIR, SLIME_SOURCE=DIR,
# ASTRAFLOW_SOURCE=DIR.
#
# Exit status: 0 when everything passed; 69 something could not be installed; others are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.cache/venv
FRAMEWORKS=.cache/frameworks
RL=.cache/rl/site-packages  # dill takes what is in site-packages for libraries, and pickles their parts by name

export DS_ACCELERATOR=cpu DS_BUILD_OPS=0  # DeepSpeed compiles nothing

# The packages of the file $1 in the directory $2.
install_packages() {
  cmp -s "$1" "$2/requirements.txt" && return
  rm -rf "$2"
  "$VENV/bin/pip" install --quiet --no-deps --no-compile --no-build-isolation --target "$2" -r "$1" ||
    { echo "frameworks.sh: the packages of $1 could not be installed; check the network" >&2 && exit 69; }
  cp "$1" "$2/requirements.txt"
}

# Pytest with the packages of the directory $1. That options of the caller select nothing of this file is no failure.
run_tests() {
  local result=0
  PYTHONPATH="$1" "$VENV/bin/python" -m pytest -c tests/pytest.ini --rootdir=. "${@:2}" || result=$?
  [[ $result == [05] ]] || status=$result
}

status=0
install_packages tests/requirements-frameworks.txt "$FRAMEWORKS"
run_tests "$FRAMEWORKS" tests/layouts/framework_generators.py tests/frameworks/slime_weight_update.py \
  tests/frameworks/verl_checkpoint_engine.py tests/frameworks/nemo_rl_checkpoint_engine.py "$@"
install_packages tests/requirements-rl.txt "$RL"
run_tests "$RL" tests/frameworks/trl_training.py tests/frameworks/areal_engine.py tests/frameworks/astraflow_weights.py "$@"
exit "$status"
