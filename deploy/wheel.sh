#!/usr/bin/env bash
# Builds the Python package as a wheel with liblockstep.so inside, and trainer_agent, raas_receiver and lockstepctl with
# their libraries (deploy/bundle), as commands. It needs nothing else.
#
#   deploy/wheel.sh [DIRECTORY]        where the wheel goes; dist/ unless given
#   deploy/wheel.sh --cuda [DIRECTORY] for weights in GPU memory too, the one to ship: it loads where there is no GPU and
#                                      no driver. Needs the CUDA toolkit (CUDA_HOME)
#   PYTHON=python3.11 deploy/wheel.sh  the interpreter to build with; python3, or Debian's own, unless given. It needs pip
#                                      and setuptools 70.1, or setuptools and wheel: Debian's python3-pip has them
#
# Exit status: 0 built; 69 no interpreter here can build wheels.
#
# Then, where the trainer or the inference engine runs: pip install lockstep_rl-*.whl. The platform in its name is that of the
# library, by the newest symbols that it asks the C library for; the programs bring theirs.
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

# As in manylinux_2_34_x86_64.
platform_of() {
  local newest
  newest=$(objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
  newest=${newest#GLIBC_}
  echo "manylinux_${newest//./_}_$(uname -m)"
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

bazel build --noshow_progress --ui_event_filters=-info "${config[@]}" \
  //export_plugin:liblockstep.so //trainer_agent/agent:trainer_agent //raas_receiver/receiver:raas_receiver //ctl:lockstepctl
cp -rL python/. LICENSE "$source"
library=$source/lockstep/liblockstep.so
strip --strip-unneeded -o "$library" bazel-bin/export_plugin/liblockstep.so
deploy/bundle "$source/lockstep/programs" \
  bazel-bin/{trainer_agent/agent/trainer_agent,raas_receiver/receiver/raas_receiver,ctl/lockstepctl}
printf '[bdist_wheel]\nplat_name = %s\n' "$(platform_of "$library")" >"$source/setup.cfg"
mkdir -p "$target"
"$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$target" "$source"
ls "$target"/lockstep_rl-*.whl
