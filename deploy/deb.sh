#!/usr/bin/env bash
# Makes the Debian package lockstep from a bundle of the three programs, with dpkg-deb. deploy/release.sh calls this script.
#
#   deploy/deb.sh BUNDLE DIRECTORY    BUNDLE is what deploy/bundle collected; DIRECTORY is where the package goes
#
# The package has the programs with their libraries (/usr/lib/lockstep), manual pages, completions, units, the users' names,
# and configuration in /etc/lockstep. Its version is the programs' own. It installs on Debian 12 and 13.
#
# DEBFULLNAME and DEBEMAIL, as Debian's tools know them, name who made the package.
set -euo pipefail
cd "$(dirname "$0")/.."

PROGRAMS=(trainer_agent raas_receiver lockstepctl)

# Copies standard input to the file $1, which users may read.
put() { install -D -m 644 /dev/stdin "$1"; }

put_compressed() { gzip -9n | put "$1.gz"; }

copyright() {
  cat <<END
Lockstep is under the Apache License, version 2.0: /usr/share/common-licenses/Apache-2.0.

The directory /usr/lib/lockstep has libraries of Debian 12 beside Lockstep's programs. What follows is what each one's
package says of it.
END
  local license
  for license in "$1"/licenses/*; do
    printf '\n---- %s ----\n\n' "${license##*/}"
    cat "$license"
  done
}

changelog() {
  cat <<END
lockstep ($1) unstable; urgency=medium

  * Release ${1%-*}; changelog.gz has what changed.

 -- $maintainer  $(date -uR -d "@$SOURCE_DATE_EPOCH")
END
}

fill() {
  local program
  mkdir -p "$root/usr/lib" "$root/usr/bin"
  cp -r "$bundle" "$root/usr/lib/lockstep"
  rm -r "$root/usr/lib/lockstep/licenses"
  chmod -x "$root"/usr/lib/lockstep/lib/*
  for program in "${PROGRAMS[@]}"; do
    ln -s "../lib/lockstep/$program" "$root/usr/bin/$program"
    "$bundle/$program" --man | put_compressed "$root/usr/share/man/man8/$program.8"
  done
  "$bundle/lockstepctl" completion bash | put "$root/usr/share/bash-completion/completions/lockstepctl"
  "$bundle/lockstepctl" completion zsh | put "$root/usr/share/zsh/vendor-completions/_lockstepctl"
  "$bundle/lockstepctl" completion fish | put "$root/usr/share/fish/vendor_completions.d/lockstepctl.fish"
  put "$root/usr/lib/sysusers.d/lockstep.conf" <deploy/systemd/lockstep.sysusers.conf
  install -D -m 644 -t "$root/usr/lib/systemd/system" deploy/systemd/*.service
  install -D -m 644 -t "$root/etc/lockstep" deploy/config/*.toml
  copyright "$bundle" | put "$root/usr/share/doc/lockstep/copyright"
  put_compressed "$root/usr/share/doc/lockstep/changelog" <CHANGELOG.md
  changelog "$version" | put_compressed "$root/usr/share/doc/lockstep/changelog.Debian"
  put "$root/usr/share/lintian/overrides/lockstep" <deploy/deb/lintian-overrides
}

control() {
  local architecture
  architecture=$(dpkg --print-architecture)
  mkdir "$root/DEBIAN"
  sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@MAINTAINER@/$maintainer/" \
    -e "s/@KIBIBYTES@/$(du -sk "$root" | cut -f 1)/" deploy/deb/control | put "$root/DEBIAN/control"
  (cd "$root" && find etc -type f -printf '/%p\n' | sort) | put "$root/DEBIAN/conffiles"
  (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) | put "$root/DEBIAN/md5sums"
  install -m 755 deploy/deb/{postinst,prerm,postrm} "$root/DEBIAN"
}

main() {
  case ${1:-} in
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" && return ;;
  esac
  (($# == 2)) || { echo "deb.sh: give a bundle and a directory; see --help" >&2 && exit 64; }
  umask 022
  bundle=$1
  version=$("$bundle/trainer_agent" --version | cut -d ' ' -f 2)-1
  maintainer="${DEBFULLNAME:-Lockstep maintainers} <${DEBEMAIL:-maintainers@lockstep.example}>"
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
  export SOURCE_DATE_EPOCH
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  chmod 755 "$root"
  fill
  control
  mkdir -p "$2"
  dpkg-deb --root-owner-group --build "$root" "$2" >/dev/null
  ls "$2/lockstep_${version}"_*.deb
}

main "$@"
