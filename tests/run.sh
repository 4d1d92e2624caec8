#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test. It ends with the minutes of each stage and the line
# "N passed, N failed". Above that line stands whether GPU code is what last ran on a GPU: no test here needs one.
#
#   tests/run.sh                     everything
#   tests/run.sh --cpp | --python    only the C++ unit tests, or only pytest (everything is built for it, too)
#   tests/run.sh -k EXPRESSION       only the Python tests that match (implies --python)
#   tests/run.sh --checks            a look at every fuzzer, sanitizers and clang-tidy too, while the Python tests run
#   tests/run.sh --config=asan ...   options for Bazel
#   tests/run.sh --check NAME=STATUS counts a check that the caller made as one more test
#   tests/run.sh --stage NAME=SECONDS lists a stage that the caller ran, before those of this script
#
# Exit status: 0 when everything passed; 1 when something failed; 64 bad usage; 69 something could not be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.cache/venv
RESULTS=.cache/test-results
COMPILED=~/.cache/lockstep-bazel  # .bazelrc
MOST_COMPILED=20000000000         # bytes

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# Python packages from PyPI, pinned; nothing to do when the pins have not changed since the last time.
install_python() {
  cmp -s tests/requirements.txt "$VENV/requirements.txt" && return
  { python3 -m venv --clear "$VENV" && "$VENV/bin/pip" install --quiet -r tests/requirements.txt; } ||
    not_installed tests/requirements.txt
  cp tests/requirements.txt "$VENV/requirements.txt"
}

# The Python code of an engine, apart from the others' packages: only processes that ask for it see it. vLLM's kernels,
# most of a gigabyte, are for GPUs.
install_engine() {
  local packages=.cache/$1 requirements=tests/requirements-$1.txt
  cmp -s "$requirements" "$packages/requirements.txt" && return
  rm -rf "$packages"
  "$VENV/bin/pip" install --quiet --no-deps --no-compile --target "$packages" -r "$requirements" ||
    not_installed "$requirements"
  find "$packages/$1" -name '*.so' -delete
  cp "$requirements" "$packages/requirements.txt"
}

# Adds the stage that ends here, which began where the last one ended, to those that the summary lists.
end_of_stage() { summary+=(--stage "$1=$SECONDS") SECONDS=0; }

not_installed() {
  echo "run.sh: the Python packages of $1 could not be installed; check the network" >&2
  exit 69
}

# Bazel only adds to what it keeps for other checkouts: what was read longest ago goes.
prune_compiled() {
  [[ -d $COMPILED ]] || return 0
  (cd "$COMPILED" && find . -type f -printf '%A@ %s %p\n' | sort -rn |
    awk -v most="$MOST_COMPILED" '(sum += $2) > most { print $3 }' | xargs -r rm -f)
}

run_check() {
  case $1 in
    fuzz) nice tests/fuzz/run.sh --seconds-each 5 ;;
    asan | tsan) tests/checks/sanitizers.sh "$1" ;;
    tidy) python3 tests/checks/tidy.py ;;
  esac
}

CHECKS=(fuzz asan tsan tidy)

# They compute and give way; Python tests mostly wait.
run_checks() {
  local check status
  for check in "${CHECKS[@]}"; do
    SECONDS=0 status=0
    run_check "$check" >"$RESULTS/$check.log" 2>&1 || status=$?
    echo "--check $check=$status --stage beside-the-Python-tests:$check=$SECONDS" >"$RESULTS/$check.outcome"
  done
}

# Adds what came of them, and shows the log of each that failed.
take_checks() {
  local check outcome
  for check in "${CHECKS[@]}"; do
    outcome=$(cat "$RESULTS/$check.outcome" || echo "--check $check=1")
    read -ra outcome <<<"$outcome"
    summary+=("${outcome[@]}")
    [[ ${outcome[1]} == *=0 ]] || tail -n 60 "$RESULTS/$check.log"
  done
}

main() {
  local cpp=true python=true checks=false bazel_options=() pytest_options=()
  local summary=(--expected-skips tests/expected_skips.txt)
  while (($# > 0)); do
    case $1 in
      --cpp) python=false ;;
      --python) cpp=false ;;
      -k) cpp=false pytest_options+=(-k "${2:?-k needs an expression}") && shift ;;
      --config=*) bazel_options+=("$1") ;;
      --checks) checks=true ;;
      --check) summary+=(--check "${2:?--check needs NAME=STATUS}") && shift ;;
      --stage) summary+=(--stage "${2:?--stage needs NAME=SECONDS}") && shift ;;
      -h | --help) usage && return ;;
      *) echo "run.sh: unknown argument '$1'; see --help" >&2 && exit 64 ;;
    esac
    shift
  done

  SECONDS=0
  deploy/install.sh --dev
  end_of_stage "install"
  rm -rf "$RESULTS" && mkdir -p "$RESULTS"
  prune_compiled

  local bazel_command="build" status=0
  $cpp && bazel_command="test"
  bazel_options+=(--keep_going --build_event_json_file="$RESULTS/bazel.json")
  bazel "$bazel_command" "${bazel_options[@]}" //... || status=$?
  end_of_stage "$($cpp && echo "build and C++ tests" || echo "build")"
  if $cpp; then
    summary+=(--bazel "$RESULTS/bazel.json" --bazel-status "$status")
  elif [[ $status != 0 ]]; then
    summary+=(--check "build=$status")
  fi

  # Bazel's 3 and 4: built, but a test failed, or there is none. Python tests of binaries that were not built would lie.
  if $python && [[ $status == [034] ]]; then
    install_python
    install_engine vllm
    install_engine sglang
    end_of_stage "Python install"
    if $checks; then run_checks & fi
    status=0
    pytest_options+=(-c tests/pytest.ini --rootdir=. --junitxml="$RESULTS/pytest.xml")
    "$VENV/bin/python" -m pytest "${pytest_options[@]}" tests python/tests || status=$?
    end_of_stage "Python tests"
    summary+=(--pytest "$RESULTS/pytest.xml" --pytest-status "$status")
    if $checks; then
      wait
      end_of_stage "checks that took longer"
      take_checks
    fi
  elif $checks; then
    summary+=(--check checks=1)
  fi

  summary+=(--note "$(python3 tests/gpu/gpu_last.py)")
  python3 tests/summarize.py "${summary[@]}"
}

main "$@"
