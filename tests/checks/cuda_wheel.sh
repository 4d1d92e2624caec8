#!/usr/bin/env bash
# The wheel that is shipped, built with CUDA: starts all that is in it, with a driver or without one.
#
#   tests/checks/cuda_wheel.sh
#
# Exit status: 0 when all of it started; 1 otherwise. It needs the CUDA toolkit, and no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
deploy/wheel.sh --cuda "$directory"
python3 -m venv "$directory/installed"
installed=$directory/installed/bin
"$installed/pip" install --quiet --no-index "$directory"/lockstep_rl-*.whl
"$installed/python" -c "from lockstep.core import abi; assert abi.load().lockstep_has_cuda()"
for name in trainer_agent raas_receiver lockstepctl; do "$installed/$name" --version; done
bytes=$(stat -c %s "$directory"/lockstep_rl-*.whl)
echo "$bytes bytes"
((bytes < 60 << 20))
