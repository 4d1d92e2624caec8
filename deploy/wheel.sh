#!/usr/bin/env bash
# Builds the Python package as a wheel with liblockstep.so inside.
#
#   deploy/wheel.sh [DIRECTORY]        where the wheel goes; dist/ unless given
#   deploy/wheel.sh --cuda [DIRECTORY] for trainers whose weights are in GPU memory; needs the CUDA toolkit (CUDA_HOME)
#   PYTHON=python3.11 deploy/wheel.sh  the interpreter to build with; python3, or Debian's own, unless given. It needs pip
#                                      and setuptools 70.1, or setuptools and wheel: Debian's python3-pip has them
#
# Exit status: 0 built; 69 no interpreter here can build wheels.
#
# Then, where the trainer or the inference engine runs: pip install lockstep-*.whl
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exit
fi

fail() {
  echo "wheel.sh: $2" >&2
  exit "$1"
}

# What an interpreter lacks to build a wheel; nothing when it lacks nothing.
lacking() {
  local python=$1
  command -v "$python" >/dev/null || { echo "is not there"; return; }
  "$python" -c 'import pip' 2>/dev/null || { echo "has no pip"; return; }
  "$python" -c 'import setuptools' 2>/dev/null || { echo "has no setuptools"; return; }
  "$python" -c 'import setuptools.command.bdist_wheel' 2>/dev/null ||
    "$python" -c 'import wheel.bdist_wheel' 2>/dev/null || echo "has neither setuptools 70.1 nor wheel"
}

# The wheel is for every Python 3, so any interpreter may build it: Debian's where a virtual environment's cannot.
builder() {
  local python found=()
  for python in "$@"; do
    [[ -n $(lacking "$python") ]] || { echo "$python"; return; }
    found+=("$python $(lacking "$python");")
  done
  fail 69 "cannot build a wheel: ${found[*]} install Debian's python3-pip (with apt-get), or setuptools and wheel with pip"
}

if [[ -n ${PYTHON:-} ]]; then python=$(builder "$PYTHON"); else python=$(builder python3 /usr/bin/python3); fi
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
"$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$target" "$source"
ls "$target"/lockstep-*.whl
