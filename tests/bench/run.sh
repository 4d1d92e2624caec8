#!/usr/bin/env bash
# Builds and runs the benchmarks; each measures its baseline in the same run. Prints every figure when it is measured,
# and draws plots.
#
#   tests/bench/run.sh                 everything: about 30 minutes on two cores, and up to 20 GiB of memory
#   tests/bench/run.sh --only NAME     one figure, or all of a program such as bridge (several times: several)
#   tests/bench/run.sh --quick         small and few: whether the benchmarks still work, no figures to quote; a minute
#   tests/bench/run.sh --json FILE     {"machine", "quick", "finished": whether the run came to its end,
#                                       "results": [{"name", "value", "unit", "baseline", "ratio", "spread", "model_bytes"}],
#                                       "not_measured": [names that this machine or user cannot measure],
#                                       "series": {name: {"unit", "rows": [{...}]}}: what the plots show,
#                                       "seconds": {program: that it took}}; written again with each figure
#   tests/bench/run.sh --plots DIR     where SVGs go: of a whole run to docs/figures, of a quick one nowhere
#   tests/bench/run.sh --isa avx2      kernels do without what came after AVX2, as on processors without AVX-512; hashes of whole
#                                      buffers do not
#
# Where memory is too short for a program's model it measures a smaller one and says so; the size is part of each result.
#
# Exit status: 0 everything ran; 1 a benchmark failed; 64 bad usage; 69 something could not be installed or built.
#
# How long each takes, roughly, on two cores:
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=.cache/venv/bin/python

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
  exec python3 tests/bench/common/figures.py
fi
[[ -x $PYTHON ]] || { echo "run.sh: $PYTHON is missing: tests/run.sh --python installs it" >&2 && exit 69; }
deploy/install.sh --build
bazel build --noshow_progress --ui_event_filters=-info //tests/bench/... //trainer_agent/agent:trainer_agent \
  //export_plugin:liblockstep.so //raas_receiver/receiver:raas_receiver //ctl:lockstepctl || exit 69
exec "$PYTHON" tests/bench/common/run.py "$@"
