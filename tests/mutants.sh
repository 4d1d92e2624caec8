#!/usr/bin/env bash
# Plants the faults of tests/mutants.txt in the product, one by one. The test that a fault's line names must fail: it is the
# home of the claim that the fault breaks. The sources are those of HEAD, in a worktree in .cache/mutants.
#
#   tests/mutants.sh [--file PREFIX]   --file: only faults in files whose paths begin so
#   tests/mutants.sh --check           only sees that the files here have the text that each fault replaces, once
#
# A row has the fault's line in the list; found, SURVIVED, moved (the text is not there once) or unbuilt; seconds; the fault's
# file; the test, and its first case that failed.
#
# Exit status: 0 when every home found its faults; 1 when one did not; 64 bad usage; 69 a home fails without a fault.
set -euo pipefail
cd "$(dirname "$0")/.."

KEPT=$PWD/.cache/mutants
mkdir -p "$KEPT"
PROGRAMS=(//export_plugin:liblockstep.so //trainer_agent/agent:trainer_agent //raas_receiver/receiver:raas_receiver
  //ctl:lockstepctl //export_plugin/example:tensor_parallel_trainer)  # what Python tests start

# Splits a line of the list into file, test, old and new.
parse() {
  file=${1%% *} test=${1#* } old=${1#* | } new=${1#* ==>}
  test=${test%% | *} old=${old%% ==>*} new=${new# }
  old=${old//\\n/$'\n'} new=${new//\\n/$'\n'}
}

# Reads `file` into `text`. False if the text has not exactly one `old`.
read_source() { text=$(cat "$file") && without=${text//"$old"/} && ((${#text} - ${#without} == ${#old})); }

# Runs C++ tests or Python tests. 0: all passed; 1: one failed, or did not end; 2: not built.
run_tests() {
  if [[ $1 == //* ]]; then
    bazel test --noshow_progress --test_arg=--abort --test_timeout=120 "$@" || return $(($? == 3 ? 1 : 2))
  else
    bazel build --noshow_progress "${PROGRAMS[@]}" || return 2
    timeout $((300 * $#)) "$KEPT/../venv/bin/python" -m pytest -c tests/pytest.ini --rootdir=. -x -q "$@" || return $(($? == 1 || $? == 124 ? 1 : 2))
  fi
} > "$KEPT/log" 2>&1

# Runs the test of the fault that was parsed, and prints a row. True if the test found the fault.
try() {
  local first="" status=0 verdicts=(SURVIVED found unbuilt moved)
  SECONDS=0
  read_source || status=3
  if ((status == 0)); then
    {  # A fault may leave names unused, which -Werror forbids.
      [[ $file != *.cc ]] || printf '#pragma GCC diagnostic ignored "-Wunused-%s"\n' parameter variable but-set-variable function
      printf '%s\n' "${text/"$old"/"$new"}"
    } > "$file"
    run_tests "$test" || status=$?
    git checkout --quiet --force -- "$file"
    # Catch2 names a case below a line of dashes, pytest and Bazel do so in their summaries.
    first=$(sed -nE '/^-{79}$/{n;p;q}; s/^(FAILED|ERROR) [^:]*::(.*)/\2/; s/^TIMEOUT: .*/no end in time/; T; s/ - .*//; p; q' "$KEPT/log")
  fi
  printf '%3s %-8s %3s s  %s %s: %s\n' $((at + 1)) "${verdicts[status]}" $SECONDS "$file" "$test" "$first"
  ((status == 1))
}

main() {
  local prefix="" check=false list at file test old new text without faults=() cpp=() python=() lost=0
  while (($# > 0)); do
    case $1 in
      --file) prefix=${2:?--file needs a prefix} && shift ;;
      --check) check=true ;;
      -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0" && return ;;
      *) echo "mutants.sh: unknown argument '$1'; see --help" >&2 && exit 64 ;;
    esac
    shift
  done

  mapfile -t list < tests/mutants.txt
  for at in "${!list[@]}"; do
    parse "${list[at]}"
    [[ $file == "$prefix"* && $file != "#"* ]] || continue
    faults+=("$at")
    if [[ $test == //* ]]; then cpp+=("$test"); else python+=("$test"); fi
    ! $check || read_source || { ((++lost)) && echo "tests/mutants.txt:$((at + 1)): moved in $file: $old"; }
  done
  ! $check || return $((lost > 0))

  [[ -e $KEPT/tree/.git ]] || git worktree add --quiet --detach --force "$KEPT/tree"
  git -C "$KEPT/tree" checkout --quiet --detach --force "$(git rev-parse HEAD)"
  cd "$KEPT/tree"
  trap 'bazel shutdown' EXIT
  if { ((${#cpp[@]} > 0)) && ! run_tests "${cpp[@]}"; } || { ((${#python[@]} > 0)) && ! run_tests "${python[@]}"; }; then
    tail -n 40 "$KEPT/log" && echo "mutants.sh: a home fails without a fault" && exit 69
  fi >&2
  for at in "${faults[@]}"; do
    parse "${list[at]}"
    try || ((++lost))
  done
  echo "$((${#faults[@]} - lost)) faults found, $lost not"
  return $((lost > 0))
}

main "$@"
