#!/usr/bin/env bash
# Faults for hours (soak.py): what is shown is compared with the trainers' own hashes all the while.
#
#   tests/soak/run.sh [--minutes N] [--seed S] [--json FILE] [--canary] [--verbose] [--megabytes N] [--logs DIR]
#
# Daemons are those of bazel-bin, or of $LOCKSTEP_TEST_BIN; Python's packages those of tests/run.sh. Disks are filled where
# a tmpfs may be mounted: by root, or where a user may have a namespace. The report says which kinds were not run.
#
# Exit status: 0 nothing was wrong; 1 something was; 64 bad usage.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

namespace=()
if [[ $(id -u) != 0 ]] && unshare -rm true 2>/dev/null; then
  namespace=(unshare -rm)
fi
tests=$root/tests
export PYTHONPATH=$root/python:$tests/integration:$tests/fault:$tests/engines
exec "${namespace[@]}" "$root/.cache/venv/bin/python" "$tests/soak/soak.py" "$@"
