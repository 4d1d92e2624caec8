#!/usr/bin/env bash
# Fuzzes every decoder: builds the targets with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and lets each run
# from its seeds and its corpus on. Prints a line for each: executions, edges covered, what was found.
#
#   tests/fuzz/run.sh --minutes N [NAME...]        so many minutes for all targets together
#   tests/fuzz/run.sh --seconds-each N [NAME...]   so many seconds for each
#   tests/fuzz/run.sh --build [NAME...]            builds the programs
#   --keep                                         also adds inputs that cover more than the corpus to corpus/NAME.txt
#
# Without names it is all targets, those of tests/fuzz/corpus. Whatever is made is in .cache/fuzz: a build of its own,
# which leaves that of g++ alone, and per target its log, what it came across, and what broke a rule.
#
# Exit status: 0 nothing was found; 1 otherwise; 64 bad usage; 69 it cannot be built.
set -euo pipefail
cd "$(dirname "$0")/../.."

SCRATCH=$PWD/.cache/fuzz
BAZEL=(bazel --output_base="$SCRATCH/bazel" --max_idle_secs=60)
KEPT_INPUTS=24 KEPT_BYTES=512  # what --keep adds to a corpus at most, and of what size
# A slow input is a finding, too; what a decoder takes for one is thousands of times less.
LIMITS=(-timeout=20 -rss_limit_mb=2048)

usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

fail() {
  echo "run.sh: $2" >&2
  exit "$1"
}

all_names() { basename -a -s .txt tests/fuzz/corpus/*.txt; }

# Sets `bin`.
build() {
  local began=$SECONDS
  "${BAZEL[@]}" build --config=fuzz --symlink_prefix=/ --noshow_progress --ui_event_filters=-info \
    "${@/%/_fuzzer}" || fail 69 "the targets cannot be built with clang"
  bin=$("${BAZEL[@]}" info --config=fuzz --noshow_progress --ui_event_filters=-info bazel-bin)/tests/fuzz
  echo "built $# programs in $((SECONDS - began)) s"
}

# Runs a target's program; its log is $dir/log. $1: the program; $2: seconds.
run_program() {
  mkdir -p "$dir/new"
  rm -rf "$dir/seeds" "$dir/found"
  mkdir -p "$dir/seeds" "$dir/found"
  "$1" --seeds-to="$dir/seeds" || fail 1 "$1 has no seeds"
  "$1" "${LIMITS[@]}" -max_total_time="$2" -print_final_stats=1 \
    -artifact_prefix="$dir/found/" "$dir/new" "$dir/seeds" >"$dir/log" 2>&1
}

# The last number that follows $1 in the log.
last_number() { grep -oE "$1 *[0-9]+" "$dir/log" | tail -n 1 | grep -oE '[0-9]+$' || echo 0; }

fuzz() {
  local name=$1 seconds=$2 dir=$SCRATCH/$1 status=0
  run_program "$bin/${name}_fuzzer" "$seconds" || status=$?
  printf '%-16s %9d executions in %4d s, %5d edges covered, ' "$name" "$(last_number '^#')" "$seconds" "$(last_number 'cov:')"
  if ((status == 0)); then
    echo "nothing found"
    return
  fi
  echo "FOUND: $(grep -m 1 -E 'broken rule|ERROR|runtime error' "$dir/log" || tail -n 1 "$dir/log")"
  local input
  for input in "$dir"/found/*; do echo "  reproduce it: $bin/${name}_fuzzer $input"; done
  echo "  log: $dir/log"
  return 1
}

# Adds to the corpus what covers edges that neither it nor the seeds cover: few inputs, and small ones.
keep() {
  local name=$1 dir=$SCRATCH/$1 file
  rm -rf "$dir/merged" && cp -r "$dir/seeds" "$dir/merged"
  "$bin/${name}_fuzzer" "${LIMITS[@]}" -set_cover_merge=1 -use_counters=0 "$dir/merged" "$dir/new" >"$dir/merge.log" 2>&1
  find "$dir/merged" -type f ! -name 'seed-*' -size -"$((KEPT_BYTES + 1))"c | while read -r file; do
    od -An -v -tx1 "$file" | tr -d ' \n' && echo
  done | awk '{ print length, $0 }' | sort -n | awk -v most="$KEPT_INPUTS" 'NR <= most { print $2 }' \
    >>"tests/fuzz/corpus/$name.txt"
}

main() {
  local mode='' amount=0 keep=false names=() known name status=0
  mapfile -t known < <(all_names)
  while (($# > 0)); do
    case $1 in
      --minutes | --seconds-each)
        mode=$1 amount=${2:-}
        [[ $amount =~ ^[1-9][0-9]{0,5}$ ]] || fail 64 "$1 needs a whole number from 1 to 999999"
        shift
        ;;
      --build) mode=$1 ;;
      --keep) keep=true ;;
      -h | --help) usage && return ;;
      -*) fail 64 "unknown argument '$1'; see --help" ;;
      *)
        [[ " ${known[*]} " == *" $1 "* ]] || fail 64 "there is no target '$1'; there are: ${known[*]}"
        names+=("$1")
        ;;
    esac
    shift
  done
  [[ -n $mode ]] || fail 64 "say for how long: --minutes N or --seconds-each N; see --help"
  ((${#names[@]} > 0)) || names=("${known[@]}")
  deploy/install.sh --dev || exit 69

  local labels=("${names[@]/#///tests/fuzz:}") bin=''
  build "${labels[@]}"
  [[ $mode != --build ]] || return 0
  [[ $mode != --minutes ]] || amount=$((amount * 60 / ${#names[@]}))
  for name in "${names[@]}"; do
    fuzz "$name" "$amount" || status=1
    ! $keep || keep "$name"
  done
  return $status
}

main "$@"
