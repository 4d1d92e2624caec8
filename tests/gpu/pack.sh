#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine with a GPU, in one directory that may be copied there: programs, the
# library and the C++ tests that are tagged gpu, all built with CUDA, with the shared libraries that they need; the Python
# package and the Python tests. It has no symbolic links.
#
#   tests/gpu/pack.sh [DIRECTORY]      .gpu/ of the checkout unless given; made anew
#
# Needs the CUDA toolkit (CUDA_HOME) and no GPU. Tests of NCCL are packed where NCCL is (NCCL_HOME). Prints the size.
# Exit status: 0 packed; else Bazel's or of deploy/bundle.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."

PROGRAMS=(trainer_agent/agent/trainer_agent raas_receiver/receiver/raas_receiver ctl/lockstepctl)
QUIET=(--noshow_progress --ui_event_filters=-info)
SOURCES=(python/lockstep tests/pytest.ini tests/gpu 'tests/integration/*.py' 'tests/layouts/*.py')

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exit
fi

# Builds all with CUDA, and prints the paths of the tests that are tagged gpu. Bazel passes over those that need what is not
# here; one that an earlier build left must not be taken for one of this one.
build() {
  local labels tests
  labels=$(bazel query "${QUIET[@]}" 'attr(tags, "\bgpu\b", tests(//...))')
  mapfile -t tests < <(sed 's|^//|bazel-bin/|; s|:|/|' <<<"$labels")
  rm -f "${tests[@]}"
  bazel build "${QUIET[@]}" --config=cuda --build_tag_filters=gpu //... >&2
  bazel build "${QUIET[@]}" --config=cuda "${PROGRAMS[@]}" export_plugin/liblockstep.so >&2
  find "${tests[@]}" 2>/dev/null || true
}

# bazel-bin/PATH of the pack, where tests look for a program, starts programs/NAME wherever the pack is. Not all that carries
# files keeps links.
write_wrapper() {
  local wrapper=$1/bazel-bin/$2
  mkdir -p "${wrapper%/*}"
  cat >"$wrapper" <<WRAPPER
#!/bin/sh
exec "\${0%/*}/$(realpath -m --relative-to="${wrapper%/*}" "$1/programs")/${2##*/}" "\$@"
WRAPPER
  chmod 755 "$wrapper"
}

main() {
  local pack=${1:-.gpu} tests program
  pack=$(realpath -m "$pack")
  rm -rf "$pack"
  tests=$(build)
  mapfile -t tests <<<"$tests"

  mkdir -p "$pack"
  deploy/bundle "$pack/programs" "${PROGRAMS[@]/#/bazel-bin/}" "${tests[@]}"
  for program in "${PROGRAMS[@]}"; do write_wrapper "$pack" "$program"; done
  git ls-files -z --cached --others --exclude-standard -- "${SOURCES[@]}" | xargs -0 cp --parents -t "$pack"
  strip --strip-unneeded -o "$pack/python/lockstep/liblockstep.so" bazel-bin/export_plugin/liblockstep.so
  git describe --always --dirty --abbrev=40 >"$pack/commit"
  du -sh "$pack"
}

main "$@"
