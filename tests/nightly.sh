#!/usr/bin/env bash
# What takes too long for tests/run.sh, by stages. It ends with the minutes of each and the line "N passed, N failed".
#
#   tests/nightly.sh [STAGE...]        all of them unless named:
#     asan, tsan      every C++ test under sanitizers
#     mutants         about a hundred faults in the product, each of which its test must find
#     fuzz            each decoder's fuzzer, two minutes
#     damage          10,000 lives of a receiver whose replicas lose bits, others each day
#     tidy            clang-tidy over every C++ source
#     cuda            the build with CUDA, and its wheel; needs nvcc and no GPU
#     distributions   the wheel inside other releases of Debian; the kernels for AArch64; 500 sudden ends of ranks
#     engines         whole vLLM and SGLang servers: other families, several ranks and servers, adapters, the demo
#     layouts         families and topologies of Megatron's bridges
#     frameworks      trainers' frameworks that are not among the packages of tests/run.sh
#     sweep           every causal model of transformers
#     bench           every benchmark, small, and its plots
#     soak            half an hour of faults, others each day; the report has their seed
#     radosgw         logs in Ceph's object gateway; many readers, a writer that dies, a store that is away
#     slurm           a job on three nodes of Slurm
#     rehearsal       the pack for a machine with a GPU, and its tests on the CPU; needs nvcc and no GPU
#
# Exit status: 0 when everything passed; 1 when something failed; 64 bad usage; 69 something could not be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

STAGES=(asan tsan mutants fuzz damage tidy cuda distributions engines layouts frameworks sweep bench soak radosgw slurm rehearsal)
RESULTS=$PWD/.cache/nightly

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

pytest() {
  .cache/venv/bin/python -m pytest -c tests/pytest.ini --rootdir=. -m nightly --junitxml="$RESULTS/$stage.xml" "$@"
}

run_stage() {
  case $1 in
    asan | tsan) tests/checks/sanitizers.sh "$1" ;;
    mutants) tests/mutants.sh ;;
    fuzz) tests/fuzz/run.sh --seconds-each 120 ;;
    damage)
      LOCKSTEP_SEED=$((10#$(date +%Y%j) * 10000)) LOCKSTEP_SEEDS=10000 \
        bazel-bin/raas_receiver/session/damage_property_test > "$RESULTS/damage.log" 2>&1 || { tail -n 40 "$RESULTS/damage.log" && return 1; }
      ;;
    tidy) python3 tests/checks/tidy.py ;;
    cuda) bazel build --config=cuda //... && tests/checks/cuda_wheel.sh ;;
    distributions)
      pytest tests/integration tests/kernels --deselect tests/integration/test_radosgw.py --deselect tests/integration/test_log_storm.py \
        --deselect tests/integration/test_demo.py
      ;;
    engines) pytest tests/engines tests/integration/test_demo.py ;;
    layouts) pytest tests/layouts ;;
    frameworks) tests/frameworks.sh ;;
    sweep) tests/sweep.sh --all ;;
    bench) bazel build //tests/bench/... && pytest tests/bench ;;
    soak) tests/soak/run.sh --minutes 30 --seed "$(date +%Y%m%d)" --logs "$RESULTS" --json "$RESULTS/soak.json" ;;
    radosgw) pytest tests/integration/test_radosgw.py tests/integration/test_log_storm.py ;;
    slurm) pytest tests/docs ;;
    rehearsal)
      tests/gpu/pack.sh && PYTHON=.cache/venv/bin/python LOCKSTEP_GPU_DEVICE=cpu .gpu/tests/gpu/run.sh --out "$RESULTS/gpu"
      ;;
  esac
}

main() {
  local stage status wanted=("$@") summary=(--expected-skips tests/expected_skips.txt)
  [[ ${1:-} != -h && ${1:-} != --help ]] || { usage && return; }
  for stage in "${wanted[@]}"; do
    [[ " ${STAGES[*]} " == *" $stage "* ]] || { echo "nightly.sh: no stage '$stage'; see --help" >&2 && exit 64; }
  done
  ((${#wanted[@]} > 0)) || wanted=("${STAGES[@]}")

  SECONDS=0
  deploy/install.sh --dev
  tests/install_python.sh
  bazel build -- //... -//tests/bench/...
  summary+=(--stage "install and build=$SECONDS")
  rm -rf "$RESULTS" && mkdir -p "$RESULTS"
  for stage in "${wanted[@]}"; do
    SECONDS=0 status=0
    run_stage "$stage" || status=$?
    summary+=(--stage "$stage=$SECONDS")
    if [[ -e $RESULTS/$stage.xml ]]; then
      summary+=(--pytest "$RESULTS/$stage.xml=$status")
    else
      summary+=(--check "$stage=$status")
    fi
  done
  python3 tests/summarize.py "${summary[@]}"
}

main "$@"
