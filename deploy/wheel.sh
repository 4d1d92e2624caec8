#!/usr/bin/env bash
# Builds the Python package as a wheel with liblockstep.so inside.
#
#   deploy/wheel.sh [DIRECTORY]        where the wheel goes; dist/ unless given
#   deploy/wheel.sh --cuda [DIRECTORY] for trainers whose weights are in GPU memory; needs the CUDA toolkit (CUDA_HOME)
#   PYTHON=python3.11 deploy/wheel.sh  the interpreter to build with; it needs pip and setuptools
#
# Then, where the trainer or the inference engine runs: pip install lockstep-*.whl
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exit
fi
config=()
if [[ ${1:-} == --cuda ]]; then
  config=(--config=cuda)
  shift
fi
target=$(realpath -m "${1:-dist}")
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT

bazel build --noshow_progress --ui_event_filters=-info "${config[@]}" //export_plugin:liblockstep.so
cp -rL python/. LICENSE "$source"
install -m 755 bazel-bin/export_plugin/liblockstep.so "$source/lockstep/liblockstep.so"
mkdir -p "$target"
"${PYTHON:-python3}" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$target" "$source"
ls "$target"/lockstep-*.whl
