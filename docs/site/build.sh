#!/usr/bin/env bash
# Makes the documentation a site, which needs no network: a page for each document that git tracks, a menu and a search. A
# dead link or anchor, or a page that the menu lacks, is an error. Its packages come from PyPI once, into .cache/site-venv.
#
#   docs/site/build.sh [DIRECTORY]   builds it there, in place of a site that is there; in .cache/site unless given
#   docs/site/build.sh --serve       shows it at http://127.0.0.1:8000 while you write
#   docs/site/build.sh --install     only installs what builds it
#
# Exit status: 0 done; 1 something in the pages is wrong; 64 bad usage; 69 something could not be installed.
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV=.cache/site-venv
REQUIREMENTS=docs/site/requirements.txt

fail() {
  echo "build.sh: $2" >&2
  exit "$1"
}

install() {
  cmp -s "$REQUIREMENTS" "$VENV/requirements.txt" && return
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check -r "$REQUIREMENTS" ||
    fail 69 "the packages of $REQUIREMENTS could not be installed; check the network"
  cp "$REQUIREMENTS" "$VENV/requirements.txt"
}

mkdocs() { NO_MKDOCS_2_WARNING=1 "$VENV/bin/mkdocs" "$1" --config-file docs/site/mkdocs.yml "${@:2}"; }

build() {
  local site
  site=$(realpath -m "$1")
  # mkdocs empties the directory first.
  [[ ! -e $site || -e $site/index.html || -z $(ls -A "$site") ]] || fail 64 "$site has files and no index.html: it is no site"
  install
  mkdocs build --site-dir "$site"
}

case ${1:-} in
  -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" ;;
  --install) install ;;
  --serve) install && mkdocs serve ;;
  -*) fail 64 "unknown option '$1'; see --help" ;;
  *) build "${1:-.cache/site}" ;;
esac
