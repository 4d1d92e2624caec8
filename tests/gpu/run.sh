#!/usr/bin/env bash
# Runs what needs a GPU, in a directory that tests/gpu/pack.sh has made: GPU and bus as they are, C++ tests, Python tests,
# figures, and the story: a training that an engine follows. It needs a GPU with its driver, and a python3 with PyTorch and
# pytest; the story needs transformers and safetensors, too. $PYTHONPATH may name more of Python.
#
#   tests/gpu/run.sh [--out DIRECTORY] [FILE...]   tests/gpu/test_gpu_*.py of this directory unless given
#   PYTHON=... tests/gpu/run.sh                    the interpreter that has PyTorch, when it is not python3
#   LOCKSTEP_GPU_DEVICE=cpu tests/gpu/run.sh       rehearses without a GPU, also in a checkout that is built
#
# Each file runs in a process of its own, for at most five minutes. One that crashes or is not done has failed. What files
# keep in /dev/shm is removed after each. DIRECTORY (out/ unless given) has log.txt, and after each file
#
#   last.json     for tests/gpu/last.json: what passed, failed or was not run on which GPU, and the figures
#
# The table of figures comes last. Exit status: 0 all that could be run passed; 1 something failed; 64 bad usage; 69 no
# pack; 77 nothing could be run: no GPU, or no PyTorch that reaches it, or no pytest.
set -euo pipefail

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# One file's tests. What a process that ended leaves running would take the GPU and the time of the next one.
run_file() {
  rm -rf "$LOCKSTEP_TEST_SHARED" && mkdir "$LOCKSTEP_TEST_SHARED"
  timeout -k 5 300 "$python" -m pytest -c "$root/tests/pytest.ini" --rootdir="$root" -v -rs -s -o faulthandler_timeout=60 \
    -o junit_family=xunit1 --junitxml="$(report_of "$1")" "$1" &
  group=$!
  wait "$group" || status=1
  end_group
}

end_group() { [[ -z $group ]] || kill -KILL -- "-$group" 2>/dev/null || true; }

report_of() { local name=${1##*/} && echo "$scratch/${name%.py}.xml"; }

root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3} out=$root/out files=() group="" status=0
export LOCKSTEP_GPU_DEVICE=${LOCKSTEP_GPU_DEVICE:-cuda}
while (($# > 0)); do
  case $1 in
    --out) out=${2:?--out needs a directory} && shift ;;
    -h | --help) usage && exit ;;
    -*) echo "run.sh: unknown argument '$1'; see --help" >&2 && exit 64 ;;
    *) files+=("$1") ;;
  esac
  shift
done
[[ -e $root/bazel-bin/ctl/lockstepctl ]] || { echo "run.sh: $root is no pack; see tests/gpu/pack.sh" >&2 && exit 69; }
((${#files[@]} > 0)) || files=("$root"/tests/gpu/test_gpu_*.py)

"$python" -c "import sys, pytest, torch
'$LOCKSTEP_GPU_DEVICE' == 'cpu' or torch.cuda.is_available() or sys.exit('PyTorch reaches no GPU')" ||
  { echo "run.sh: 0 of ${#files[@]} files run" && exit 77; }

mkdir -p "$out"
exec > >(tee "$out/log.txt") 2>&1
tee=$!
scratch=$(mktemp -d /dev/shm/lockstep-gpu-XXXXXX)
trap 'end_group; rm -rf "$scratch"; exec >&- 2>&-; wait "$tee"' EXIT
export LOCKSTEP_TEST_SHARED=$scratch/shared

for file in "${files[@]}"; do # pytest writes its report when it ends; this one stays where the process does not end so
  echo '<testcase name="the process crashed or was not done"><failure/></testcase>' >"$(report_of "$file")"
done
for file in "${files[@]}"; do
  run_file "$file"
  "$python" "$root/tests/gpu/gpu_last.py" --record "$scratch"/*.xml >"$scratch/last.json"
  cp "$scratch/last.json" "$out/last.json"
done
"$python" "$root/tests/gpu/gpu_last.py" --table "$out/last.json"
exit "$status"
