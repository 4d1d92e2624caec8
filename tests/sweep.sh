#!/usr/bin/env bash
# Exports small models of the installed transformers' causal families, and compares what a receiver then holds with what
# save_pretrained writes. Ends with the counts. Needs what tests/run.sh builds and installs.
#
#   tests/sweep.sh             20 of them, drawn by a seed, as tests/run.sh does
#   tests/sweep.sh --all       all of them
#   tests/sweep.sh --seed N    20 others
#
# Exit status: 0 when all are equal, or listed with transformers' reason; 1 otherwise; 64 bad usage.
set -euo pipefail
cd "$(dirname "$0")/.."

RESULTS=.cache/test-results/sweep.xml

while (($# > 0)); do
  case $1 in
    --all) export LOCKSTEP_SWEEP=all ;;
    --seed) export LOCKSTEP_SWEEP_SEED="${2:?--seed needs a number}" && shift ;;
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" && exit ;;
    *) echo "sweep.sh: unknown argument '$1'; see --help" >&2 && exit 64 ;;
  esac
  shift
done

status=0
.cache/venv/bin/python -m pytest -c tests/pytest.ini --rootdir=. -q --junitxml="$RESULTS" \
  tests/layouts/test_causal_models.py || status=$?
.cache/venv/bin/python - "$RESULTS" <<'EOF'
import sys
import xml.etree.ElementTree as ElementTree

cases = [case for case in ElementTree.parse(sys.argv[1]).iter("testcase") if "[" in case.get("name")]
failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
equal = [case for case in cases if case not in failed and "transformers_saves" in case.get("name")]
listed = len(cases) - len(failed) - len(equal)
print(f"{len(equal)} equal to save_pretrained, {listed} listed with transformers' reason, {len(failed)} failed")
EOF
exit "$status"
