#!/usr/bin/env bash
# Runs what needs a GPU, of what tests/gpu/pack.sh has packed: GPU and bus as they are, C++ tests, Python tests, figures,
# and the story: a training that an engine follows. It takes at most nine minutes. It needs a GPU with its driver, and a
# python3 with PyTorch; neither Bazel nor a library of ours. Some steps need pytest, and the story transformers, too.
# $PYTHONPATH may name more of Python.
#
#   tests/gpu/run.sh [--out DIRECTORY] [--seconds N] [--only STEP]...
#                                    in the checkout that it was packed in, or in a pack anywhere; N: 530 unless given
#   PYTHON=... tests/gpu/run.sh      the interpreter that has PyTorch, when it is not python3
#
# --only runs the probe and the steps of that name ("figures: *" is all of that kind), and adds them to the last.json that
# DIRECTORY has of the same pack on the same GPU; gpu_last.py --merge does so with files. What steps keep in /dev/shm is
# removed after each; one that needs more than is free there is not run.
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
