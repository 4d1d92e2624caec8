#!/usr/bin/env bash
# Runs what needs a GPU, of what tests/gpu/pack.sh has packed: GPU and bus as they are, C++ tests, Python tests, figures;
# within ten minutes. Needs a GPU with its driver, and a python3 with PyTorch, pytest and safetensors; neither Bazel nor a
# library of ours.
#
#   tests/gpu/run.sh [--out DIRECTORY] [--seconds N]     in the checkout that it was packed in, or in a pack anywhere
#   PYTHON=... tests/gpu/run.sh                          the interpreter that has PyTorch, when it is not python3
#
# DIRECTORY (out/ of the pack unless given) has from the first moment on
#
#   results.json  what came of each step: passed, failed, or not run, and why; which one is running; figures
#   log.txt       what the steps printed
#   last.json     for tests/gpu/last.json: what ran of which sources on which GPU. Only where there is one
#
# The table comes last. Exit status: 0 all that could be run passed; 1 something failed; 64 bad usage; 69 nothing is packed;
# 77 nothing could be run: no GPU, or no PyTorch that reaches it.
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exit
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
[[ -e $root/sources.json ]] || root=$root/.gpu
[[ -e $root/sources.json ]] || { echo "run.sh: $root has no pack; run tests/gpu/pack.sh" >&2 && exit 69; }
exec "${PYTHON:-python3}" "$root/tests/gpu/gpu_steps.py" "$@"
