#!/usr/bin/env bash
# Installs the Python packages of the tests from PyPI, pinned, in .cache/venv, and beside them the code of engines, each in
# a directory of its own. Nothing to do where the pins have not changed since the last time.
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
  # Kernels for GPUs, most of a gigabyte.
  [[ $2 == "$VENV" ]] || find "$2/${2##*/}" -name '*.so' -delete
  cp "$1" "$2/requirements.txt"
}

install tests/requirements.txt "$VENV"
# Only processes that ask for them see these.
for engine in vllm sglang; do
  install "tests/requirements-$engine.txt" ".cache/$engine" --no-deps --target ".cache/$engine"
done
