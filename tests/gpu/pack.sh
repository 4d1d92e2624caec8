#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine with a GPU, in one directory that may be copied there: programs, the
# library and the C++ tests that are tagged gpu, all built with CUDA, with the shared libraries that they need; the Python
# package and the Python tests; the digest of the sources.
#
#   tests/gpu/pack.sh [DIRECTORY]      .gpu/ of the checkout unless given; made anew
#
# Needs the CUDA toolkit (CUDA_HOME) and no GPU. Tests of NCCL are packed where NCCL is (NCCL_HOME). Prints the size.
#
# Exit status: 0 packed; 65 it is larger than 56 MiB, or has symbolic links, and is gone; else Bazel's or of deploy/bundle.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."

MOST_BYTES=$((56 << 20)) # what carries it takes 64 MiB, the sources among them
PROGRAMS=(//trainer_agent/agent:trainer_agent //raas_receiver/receiver:raas_receiver //ctl:lockstepctl)
QUIET=(--noshow_progress --ui_event_filters=-info)
PYTHON_SOURCES=(python/lockstep tests/pytest.ini tests/gpu 'tests/engines/*.py' 'tests/integration/*.py' 'tests/layouts/*.py')

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exit
fi

# //a/b:c as bazel-bin/a/b/c.
built() { local label=${1#//} && echo "bazel-bin/${label/://}"; }

# Tests that are tagged gpu.
gpu_tests() { bazel query "${QUIET[@]}" 'attr(tags, "\bgpu\b", tests(//...))'; }

# Builds all with CUDA, and prints the paths of the tests that are tagged gpu. Bazel passes over those that need what is not
# here; one that an earlier build left must not be taken for one of this one.
build() {
  local labels label test tests=()
  labels=$(gpu_tests)
  for label in $labels; do
    test=$(built "$label")
    tests+=("$test")
    rm -f "$test"
  done
  bazel build "${QUIET[@]}" --config=cuda --build_tag_filters=gpu //... >&2
  bazel build "${QUIET[@]}" --config=cuda "${PROGRAMS[@]}" //export_plugin:liblockstep.so >&2
  for test in "${tests[@]}"; do [[ ! -x $test ]] || echo "$test"; done
}

# Files of the checkout, also new ones, at the same paths in the pack.
copy_sources() {
  git ls-files -z --cached --others --exclude-standard -- "${PYTHON_SOURCES[@]}" |
    while IFS= read -r -d '' file; do [[ ! -f $file ]] || printf '%s\0' "$file"; done |
    xargs -0 cp --parents -t "$1"
}

# bin/PATH, which starts programs/NAME wherever the pack is. A link would not arrive: not all that carries files keeps them.
write_wrapper() {
  local wrapper=$1/bin/$2 up
  mkdir -p "${wrapper%/*}"
  up=$(realpath -m --relative-to="${wrapper%/*}" "$1/programs")
  cat >"$wrapper" <<WRAPPER
#!/bin/sh
exec "\${0%/*}/$up/${2##*/}" "\$@"
WRAPPER
  chmod 755 "$wrapper"
}

# Ends the script, and removes the directory, when it has what may not be carried.
refuse_links() {
  local links
  links=$(find "$1" -type l)
  if [[ -n $links ]]; then
    rm -rf "$1"
    printf 'pack.sh: symbolic links do not arrive everywhere: %s\n' "$links" >&2
    exit 65
  fi
}

refuse_large() {
  local bytes
  bytes=$(du -sb "$1" | cut -f 1)
  if ((bytes > MOST_BYTES)); then
    du -ab "$1" | sort -rn | sed -n 2,12p >&2
    rm -rf "$1"
    echo "pack.sh: $bytes bytes are more than the $MOST_BYTES that may be carried; the largest of them are above" >&2
    exit 65
  fi
  echo "$1: $bytes bytes of at most $MOST_BYTES"
}

main() {
  local pack=${1:-.gpu} tests programs=() label program
  pack=$(realpath -m "$pack")
  rm -rf "$pack"
  tests=$(build)
  mapfile -t tests <<<"$tests"
  for label in "${PROGRAMS[@]}"; do programs+=("$(built "$label")"); done

  mkdir -p "$pack"
  deploy/bundle "$pack/programs" "${programs[@]}" "${tests[@]}"
  printf '%s\n' "${tests[@]##*/}" >"$pack/cpp_tests"
  for program in "${programs[@]#bazel-bin/}"; do write_wrapper "$pack" "$program"; done
  copy_sources "$pack"
  strip --strip-unneeded -o "$pack/python/lockstep/liblockstep.so" bazel-bin/export_plugin/liblockstep.so
  python3 tests/gpu/gpu_last.py --sources >"$pack/sources.json" # last: with it the directory is a pack
  refuse_links "$pack"
  refuse_large "$pack"
}

main "$@"
