#!/usr/bin/env bash
# Installs what is missing, builds all but benchmarks, and runs every test but those of tests/nightly.sh. It ends with the
# minutes of each stage and the line "N passed, N failed". Above stands when GPU code last ran on a GPU, and what has changed
# since: no test here needs one.
#
#   tests/run.sh                      everything
#   tests/run.sh --cpp | --python     only the C++ unit tests, or only pytest (everything is built for it, too)
#   tests/run.sh -k EXPRESSION        only the Python tests that match, nightly ones too (implies --python)
#   tests/run.sh --nocache_test_results   C++ tests that passed and read the same files as then, too
#   tests/run.sh --config=NAME        an option for Bazel
#   tests/run.sh --check NAME=STATUS  counts a check that the caller made as one more test
#   tests/run.sh --stage NAME=SECONDS lists a stage that the caller ran, before those of this script
#
# Exit status: 0 when everything passed; 1 when something failed; 64 bad usage; 69 something could not be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

RESULTS=.cache/test-results
COMPILED=~/.cache/lockstep-bazel  # .bazelrc
MOST_COMPILED=20000000000         # bytes
TARGETS=(//... -//tests/bench/...)
WORKERS=$((2 * $(nproc)))  # tests of daemons wait for them as often as they compute
unset PYTHONDONTWRITEBYTECODE  # else each process that imports vLLM compiles it first: 5 s

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# Adds the stage that ends here, which began where the last one ended, to those that the summary lists.
end_of_stage() { summary+=(--stage "$1=$SECONDS") SECONDS=0; }

# Bazel only adds to what it keeps for other checkouts: what was read longest ago goes.
prune_compiled() {
  [[ -d $COMPILED ]] || return 0
  (cd "$COMPILED" && find . -type f -printf '%A@ %s %p\n' | sort -rn |
    awk -v most="$MOST_COMPILED" '(sum += $2) > most { print $3 }' | xargs -r rm -f)
}

# Runs Python tests and adds them to the summary, as $1; further arguments are pytest's.
run_pytest() {
  local report=$RESULTS/pytest-$1.xml status=0
  .cache/venv/bin/python -m pytest -c tests/pytest.ini --rootdir=. --junitxml="$report" "${@:2}" || status=$?
  summary+=(--pytest "$report=$status")
}

main() {
  local cpp=true python=true bazel_options=() pytest_options=(-m "not nightly")
  local summary=(--expected-skips tests/expected_skips.txt)
  while (($# > 0)); do
    case $1 in
      --cpp) python=false ;;
      --python) cpp=false ;;
      -k) cpp=false pytest_options=(-k "${2:?-k needs an expression}") && shift ;;
      --config=* | --nocache_test_results) bazel_options+=("$1") ;;
      --check) summary+=(--check "${2:?--check needs NAME=STATUS}") && shift ;;
      --stage) summary+=(--stage "${2:?--stage needs NAME=SECONDS}") && shift ;;
      -h | --help) usage && return ;;
      *) echo "run.sh: unknown argument '$1'; see --help" >&2 && exit 64 ;;
    esac
    shift
  done

  SECONDS=0
  deploy/install.sh --test
  end_of_stage "install"
  rm -rf "$RESULTS" && mkdir -p "$RESULTS"
  prune_compiled

  local installing="" bazel_command="build" status=0
  if $python; then
    tests/install_python.sh &
    installing=$!
  fi
  $cpp && bazel_command="test"
  bazel_options+=(--keep_going --build_event_json_file="$RESULTS/bazel.json")
  bazel "$bazel_command" "${bazel_options[@]}" -- "${TARGETS[@]}" || status=$?
  end_of_stage "$($cpp && echo "build and C++ tests" || echo "build")"
  if $cpp; then
    summary+=(--bazel "$RESULTS/bazel.json=$status")
  elif [[ $status != 0 ]]; then
    summary+=(--check "build=$status")
  fi
  [[ -z $installing ]] || wait "$installing"  # ends this script with its status when it failed

  # Bazel's 3 and 4: built, but a test failed, or there is none. Python tests of binaries that were not built would lie.
  if $python && [[ $status == [034] ]]; then
    run_pytest "side-by-side" -n "$WORKERS" --dist loadfile --no-loadscope-reorder "${pytest_options[@]}" \
      --ignore=tests/scale --ignore=tests/soak tests python/tests
    run_pytest "alone" "${pytest_options[@]}" tests/scale tests/soak
    end_of_stage "Python tests"
  fi

  echo "NOTE $(python3 tests/gpu/gpu_last.py)"
  echo "NOTE $(python3 tests/docs/prose.py --count)"
  python3 tests/summarize.py "${summary[@]}"
}

main "$@"
