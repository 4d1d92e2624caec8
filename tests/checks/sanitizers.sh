#!/usr/bin/env bash
# The C++ tests under sanitizers, in an output base of their own, so that the binaries in bazel-bin stay as they are.
#
#   tests/checks/sanitizers.sh asan [TARGETS]   address and undefined behaviour, every C++ test
#   tests/checks/sanitizers.sh tsan [TARGETS]   races, every C++ test but those tagged no-tsan: they link the
#                                               distribution's gRPC, which is not instrumented
#
# Exit status: Bazel's; 64 bad usage.
set -euo pipefail
cd "$(dirname "$0")/../.."

case ${1:-} in
  asan) config=(--config=asan --config=ubsan) ;;
  tsan) config=(--config=tsan) ;;
  *) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" >&2 && exit 64 ;;
esac
shift
# Not //...: that would follow bazel-NAME, links to these sources that the other output base left here.
if (($# == 0)); then
  mapfile -t targets < <(git ls-files '*/BUILD' ':!bazel' | sed 's|\(.*\)/BUILD|//\1:all|')
  set -- "${targets[@]}"
fi
exec nice bazel --output_base="$PWD/.cache/sanitizers" test "${config[@]}" --build_tests_only --keep_going \
  --symlink_prefix=/ --noshow_progress --ui_event_filters=-info "$@"
