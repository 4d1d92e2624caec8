"""Runs the C++ tests that depend on changed files for memory errors and undefined behaviour, as long as it may take.

    sanitize_changed.py --minutes N [--since COMMIT]

Changed is what differs from COMMIT; from where this branch left the main branch unless given, or from ten commits before
where that is the commit itself. When the minutes are over it ends, and lists the tests that were not run: that is no
failure, tests/nightly.sh runs all of them. Exit status: 0 when no test failed; 1 otherwise.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAIN_BRANCHES = ("origin/HEAD", "origin/main", "main")
OUTPUT_BASE = ROOT / ".cache/sanitizers"  # as sanitizers.sh has it
QUIET = ["--noshow_progress", "--ui_event_filters=-info"]


def git(*arguments: str) -> str:
    """What git prints; nothing where it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def base() -> str:
    """The commit that a change is judged against."""
    head = git("rev-parse", "HEAD")
    for branch in MAIN_BRANCHES:
        merge_base = git("merge-base", "HEAD", branch)
        if merge_base and merge_base != head:
            return merge_base
    return git("rev-parse", "--verify", "--quiet", "HEAD~10") or git("rev-list", "--max-parents=0", "HEAD")


def package_of(file: Path) -> "Path | None":
    return next((folder for folder in file.parents if (ROOT / folder / "BUILD").exists()), None)


def labels(files: "list[str]") -> "list[str]":
    """Of changed files that are there; of a changed BUILD file, all of its package."""
    found = []
    for file in map(Path, files):
        package = package_of(file)
        if package is None or not (ROOT / file).exists() or package == Path("."):
            continue
        name = ":all" if file.name == "BUILD" else f":{file.relative_to(package)}"
        found.append(f"//{package}{name}")
    return found


def bazel(command: str, *arguments: str, **options: object) -> "subprocess.Popen[str]":
    full = ["bazel", f"--output_base={OUTPUT_BASE}", command, *QUIET, *arguments]
    return subprocess.Popen(full, cwd=ROOT, text=True, **options)


def tests_of(changed: "list[str]") -> "list[str]":
    """The tests that depend on these labels. Files that no target has are passed over."""
    if not changed:
        return []
    # Not //...: that would follow bazel-NAME, links to these sources that the other output base left here.
    rooms = [f"//{Path(file).parent}:all" for file in git("ls-files", "*/BUILD", ":!bazel").splitlines()]
    expression = f"tests(rdeps({' + '.join(rooms)}, set({' '.join(changed)})))"
    query = bazel("query", "--keep_going", expression, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return query.communicate()[0].split()


def outcomes(events: Path) -> "dict[str, str]":
    """The status of each test that ended."""
    ended = {}
    for line in events.read_text().splitlines() if events.exists() else []:
        event = json.loads(line)
        if "testResult" in event:
            ended[event["id"]["testResult"]["label"]] = event["testResult"].get("status", "NO STATUS")
    return ended


def run(tests: "list[str]", minutes: float) -> int:
    with tempfile.TemporaryDirectory() as directory:
        events = Path(directory, "events.json")
        options = ["--config=asan", "--config=ubsan", "--keep_going", "--symlink_prefix=/"]
        testing = bazel("test", *options, f"--build_event_json_file={events}", *tests)
        try:
            status, in_time = testing.wait(minutes * 60), True
        except subprocess.TimeoutExpired:
            testing.send_signal(signal.SIGINT)
            status, in_time = testing.wait(), False
        ended = outcomes(events)
    failed = sorted(test for test, outcome in ended.items() if outcome != "PASSED")
    not_run = sorted(set(tests) - set(ended))
    print(f"sanitize_changed: {len(ended)} of {len(tests)} tests ran, {len(failed)} failed: {' '.join(failed) or '-'}")
    if not_run and not in_time:
        print(f"sanitize_changed: not run within {minutes:g} minutes: {' '.join(not_run)}")
    return 1 if failed or (in_time and status != 0) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--since", default="")
    options = parser.parse_args()
    since = options.since or base()
    tests = tests_of(labels(git("diff", "--name-only", since).splitlines()))
    print(f"sanitize_changed: {len(tests)} tests depend on what changed since {since[:12]}", flush=True)
    return run(tests, options.minutes) if tests else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
