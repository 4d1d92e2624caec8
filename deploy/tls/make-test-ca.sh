#!/usr/bin/env bash
# A CA and certificates to try mutual TLS with, and for tests. For a fleet, use one that keeps its key elsewhere
# (docs/security.md).
#
#   deploy/tls/make-test-ca.sh DIR                  a CA in DIR, and certificates for the daemons and people of one host
#   deploy/tls/make-test-ca.sh DIR NAME=SANS ...    with certificates for these: "infer-0=DNS:infer-0,IP:10.0.0.7"
#   deploy/tls/make-test-ca.sh --days N DIR ...     that are valid for N days; -1: expired yesterday
#
# DIR/NAME gets tls.crt, tls.key and ca.crt, the names that cert-manager gives them. A CA that is in DIR already signs
# again; files are replaced whole, so daemons may be reading them.
#
# Exit status: 0 all there; 64 bad usage; 69 there is no openssl.
set -euo pipefail

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

fail() {
  echo "make-test-ca.sh: $2" >&2
  exit "$1"
}

new_key() { (umask 077 && openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null); }

make_ca() {
  [[ -e $1/ca.key ]] && return
  new_key "$1/ca.key"
  openssl req -x509 -new -key "$1/ca.key" -days 30 -subj "/CN=Lockstep test CA" -out "$1/ca.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
}

# Of the CA in $1, for name $2 with SANs $3, valid for $4 days.
make_certificate() {
  local directory=$1/$2 extensions
  mkdir -p "$directory"
  new_key "$directory/tls.key.new"
  extensions="subjectAltName=$3"$'\n'"keyUsage=critical,digitalSignature"$'\n'"extendedKeyUsage=serverAuth,clientAuth"
  openssl req -new -key "$directory/tls.key.new" -subj "/CN=$2" |
    openssl x509 -req -CA "$1/ca.crt" -CAkey "$1/ca.key" -days "$4" -extfile <(echo "$extensions") \
      -out "$directory/tls.crt.new" 2>/dev/null
  cp "$1/ca.crt" "$directory/ca.crt.new"
  local file
  for file in tls.key tls.crt ca.crt; do mv "$directory/$file.new" "$directory/$file"; done
}

main() {
  local days=30 item
  [[ ${1-} == -h || ${1-} == --help ]] && usage && return
  if [[ ${1-} == --days ]]; then
    [[ ${2-} =~ ^-?[0-9]+$ ]] || fail 64 "--days takes a number; see --help"
    days=$2
    shift 2
  fi
  [[ -n ${1-} ]] || fail 64 "which directory? see --help"
  command -v openssl >/dev/null || fail 69 "no openssl here; apt-get install openssl"
  local directory=$1
  shift
  if (($# == 0)); then
    set -- agent=DNS:localhost,IP:127.0.0.1,URI:spiffe://lockstep.test/agent \
      receiver-0=DNS:localhost,IP:127.0.0.1,URI:spiffe://lockstep.test/receiver-0 \
      receiver-1=DNS:localhost,IP:127.0.0.1,URI:spiffe://lockstep.test/receiver-1 \
      operator=URI:spiffe://lockstep.test/operator observer=URI:spiffe://lockstep.test/observer
  fi
  mkdir -p "$directory"
  make_ca "$directory"
  for item in "$@"; do
    [[ $item == ?*=?* ]] || fail 64 "$item is not NAME=SANS; see --help"
    make_certificate "$directory" "${item%%=*}" "${item#*=}" "$days"
  done
}

main "$@"
