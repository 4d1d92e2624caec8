#!/usr/bin/env bash
# Installs the Debian packages that Lockstep is built with, and only those that are missing: on a machine that has them
# it needs neither root nor a network, and takes a moment. docs/dependencies.md says what each one is for.
#
#   deploy/install.sh [--build]   what a build, the wheel and the demo need (the default)
#   deploy/install.sh --test      that, and what tests/run.sh needs
#   deploy/install.sh --ci        that, and what .ci/run needs
#   deploy/install.sh --dev       that, and what tests/nightly.sh needs
#   deploy/install.sh --list ...  prints the missing packages and installs nothing
#
# Exit status: 0 all there; 64 bad usage; 69 packages are missing and could not be installed.
set -euo pipefail

BUILD_PACKAGES=(
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  g++ pkg-config python3 python3-numpy python3-pip python3-venv
  catch2 libabsl-dev libasio-dev libcli11-dev libcurl4-openssl-dev libexpat1-dev libgrpc++-dev libhwy-dev libprotobuf-dev libspdlog-dev
  libssl-dev libtomlplusplus-dev libxxhash-dev libzstd-dev nlohmann-json3-dev prometheus-cpp-dev protobuf-compiler
  protobuf-compiler-grpc
)
TEST_PACKAGES=(ca-certificates chromium chromium-driver curl git groff-base iproute2 lintian mmdebstrap prometheus shellcheck)
CI_PACKAGES=(clang-format)
DEV_PACKAGES=(ceph-common ceph-mon ceph-osd clang clang-tidy debootstrap g++-aarch64-linux-gnu iperf3 libclang-rt-14-dev munge nginx-light
  radosgw slurm-client slurmctld slurmd)

fail() {
  echo "install.sh: $2" >&2
  exit "$1"
}

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

install_packages() {
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || fail 69 "not root and there is no sudo; as root run: apt-get install -y $*"
    as_root=(sudo)
  fi
  echo "install.sh: installing $*" >&2
  "${as_root[@]}" apt-get update -q >&2 || fail 69 "apt-get update failed; check the network and /etc/apt/sources.list"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" >&2 ||
    fail 69 "apt-get could not install: $* (Lockstep builds on Debian 12)"
}

main() {
  local packages=("${BUILD_PACKAGES[@]}") list_only=false argument
  for argument in "$@"; do
    case $argument in
      --build) ;;
      --test) packages+=("${TEST_PACKAGES[@]}") ;;
      --ci) packages+=("${TEST_PACKAGES[@]}" "${CI_PACKAGES[@]}") ;;
      --dev) packages+=("${TEST_PACKAGES[@]}" "${CI_PACKAGES[@]}" "${DEV_PACKAGES[@]}") ;;
      --list) list_only=true ;;
      -h | --help) usage && return ;;
      *) fail 64 "unknown argument '$argument'; see --help" ;;
    esac
  done
  command -v dpkg-query >/dev/null || fail 69 "no dpkg here: install the equivalents of: ${packages[*]}"

  local missing
  mapfile -t missing < <(missing_packages "${packages[@]}")
  if $list_only; then
    ((${#missing[@]} == 0)) || printf '%s\n' "${missing[@]}"
  elif ((${#missing[@]} > 0)); then
    install_packages "${missing[@]}"
  fi
}

main "$@"
