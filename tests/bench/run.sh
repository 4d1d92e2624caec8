#!/usr/bin/env bash
# Builds and runs the benchmarks; each measures its baseline in the same run. Prints a table and draws plots.
#
#   tests/bench/run.sh                 everything, a few minutes on two cores
#   tests/bench/run.sh --only NAME     one figure (several times: several)
#   tests/bench/run.sh --quick         small and few: whether the benchmarks still work, no figures to quote
#   tests/bench/run.sh --json FILE     {"machine", "results": [{"name", "value", "unit", "baseline", "ratio", "spread"}],
#                                       "not_measured": [names that this machine or user cannot measure],
#                                       "series": {name: {"unit", "rows": [{...}]}}: what the plots show}
#   tests/bench/run.sh --plots DIR     where SVGs go: of a whole run to docs/figures, of a quick one nowhere
#
# Exit status: 0 everything ran; 1 a benchmark failed; 64 bad usage; 69 something could not be installed or built.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exit
fi
deploy/install.sh --build
bazel build --noshow_progress --ui_event_filters=-info //tests/bench:all //trainer_agent/agent:trainer_agent \
  //export_plugin:liblockstep.so //raas_receiver/receiver:raas_receiver //ctl:lockstepctl || exit 69
exec python3 tests/bench/run.py "$@"
