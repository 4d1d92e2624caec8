#!/usr/bin/env bash
# Makes what a release has, from this checkout. The version is that of the file VERSION.
#
#   deploy/release.sh [--cuda | --no-cuda] [DIRECTORY]
#
# DIRECTORY is dist/ unless given. It must be empty, or not there yet. The script puts there:
#
#   lockstep_rl-*.whl             the Python package, by deploy/wheel.sh
#   cuda/lockstep_rl-*.whl        the same for weights in GPU memory too
#   lockstep_VERSION-1_*.deb      the package for Debian 12 and 13, by deploy/deb.sh
#   lockstep-DAEMON-VERSION.tar.gz, .json   each image's root file system and configuration, by deploy/images
#   CHANGELOG-VERSION.md          what changed
#   SHA256SUMS                    over all of these
#
# The wheel with CUDA is made where nvcc is (CUDA_HOME). --cuda fails where it is not; --no-cuda leaves the wheel out.
#
# Exit status: 0 made; 64 bad usage; 65 CHANGELOG.md has no section of this version; 69 something to build with is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

PROGRAMS=(trainer_agent/agent/trainer_agent raas_receiver/receiver/raas_receiver ctl/lockstepctl)
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

say() { echo "release.sh: $*" >&2; }

fail() {
  say "$2"
  exit "$1"
}

# The section of that version in CHANGELOG.md, with its heading.
changes() { awk -v version="$1" '/^## / { on = $2 == version } on' CHANGELOG.md; }

image() {
  local name=$1 file
  file=$target/lockstep-${name//_/-}-$version
  deploy/images/assemble.py "deploy/images/$name.Dockerfile" "$work/bundle" "$work/$name" "VERSION=$version" >"$file.json"
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --directory="$work/$name" . |
    gzip -n >"$file.tar.gz"
}

main() {
  local cuda=auto
  target=dist
  while (($# > 0)); do
    case $1 in
      --cuda) cuda=true ;;
      --no-cuda) cuda=false ;;
      -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" && return ;;
      -*) fail 64 "unknown argument '$1'; see --help" ;;
      *) target=$1 ;;
    esac
    shift
  done
  target=$(realpath -m "$target")
  version=$(cat VERSION)
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  [[ ! -e $target || -z $(ls -A "$target") ]] || fail 64 "$target is not empty; remove it"
  [[ -n $(changes "$version") ]] || fail 65 "CHANGELOG.md has no section of $version"
  [[ -r $CERTIFICATES ]] || fail 69 "$CERTIFICATES is not there: install ca-certificates"
  if [[ $cuda == auto ]]; then
    cuda=false
    if [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then cuda=true; fi
  fi
  git diff-index --quiet HEAD -- || say "this checkout has changes that no commit has"
  ! grep -q "^## $version .*not released" CHANGELOG.md || say "CHANGELOG.md says that $version is not released yet"

  umask 022
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$target"
  deploy/wheel.sh "$target" >/dev/null
  deploy/bundle "$work/bundle" "${PROGRAMS[@]/#/bazel-bin/}"
  deploy/deb.sh "$work/bundle" "$target" >/dev/null
  cp "$CERTIFICATES" "$work/bundle/certificates.pem"
  image trainer_agent
  image raas_receiver
  changes "$version" >"$target/CHANGELOG-$version.md"
  if $cuda; then deploy/wheel.sh --cuda "$target/cuda" >/dev/null; else say "left out: the wheel with CUDA"; fi
  (cd "$target" && find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
  (cd "$target" && find . -type f -printf '%10s %P\n' | sort -k 2)
}

main "$@"
