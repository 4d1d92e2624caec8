#!/usr/bin/env python3
"""Counts what a test run really ran, and ends with the minutes of its stages and the line "N passed, N failed".

    summarize.py [--bazel EVENTS.json=STATUS]... [--pytest JUNIT.xml=STATUS]... [--expected-skips FILE]
                 [--check NAME=STATUS]... [--stage NAME=SECONDS]... [--note TEXT]...

STATUS is what the tool exited with. EVENTS.json is what `bazel test --build_event_json_file` wrote: it names exactly the tests of that run, cached ones with
their reports, so a report left over from an earlier run is never counted. A test case is one <testcase> of a JUnit
report. A test target that was not built, crashed, timed out or left no readable report counts as one failure, and so
does a tool that failed without any failed case, and a case that was skipped though FILE does not expect it. A note is
printed just above the count, and changes nothing of it. Exit status: 0 when nothing failed, else 1.
"""

import argparse
import fnmatch
import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    passed: int = 0
    skipped: int = 0
    failures: "list[str]" = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures


def read_expected_skips(file: Path) -> "list[str]":
    """Patterns of CLASSNAME.NAME or TARGET.NAME, a line each; "# ..." is why. Those behind "unless root" hold where the user is not root."""
    patterns = []
    for line in file.read_text().splitlines():
        pattern, _, _ = line.partition("#")
        needs_root = pattern.startswith("unless root: ")
        if pattern.strip() and not (needs_root and os.geteuid() == 0):
            patterns.append(pattern.removeprefix("unless root: ").strip())
    return patterns


def tally_junit(report: Path, label: str, expected_skips: "list[str] | None" = None) -> Tally:
    """Counts a JUnit report's cases; with ``expected_skips``, any other that was skipped has failed. Raises OSError or
    ParseError when it cannot be read."""
    tally = Tally()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failures.append(f"{label}: {case.get('name')}")
        elif case.find("skipped") is not None:
            name = f"{case.get('classname') or label}.{case.get('name')}"
            if expected_skips is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in expected_skips):
                tally.skipped += 1
            else:
                tally.failures.append(f"{label}: {name} was skipped: {case.find('skipped').get('message')}")
        else:
            tally.passed += 1
    return tally


@dataclass
class BazelTest:
    status: str = "NOT BUILT"
    report: "Path | None" = None


def read_bazel_tests(events: Path) -> "dict[str, BazelTest]":
    """Every test target of the run, whether or not it came to be run."""
    tests: "dict[str, BazelTest]" = {}
    for line in events.read_text().splitlines():
        event = json.loads(line)
        identity = event["id"]
        if "testSize" in event.get("configured", {}):
            tests.setdefault(identity["targetConfigured"]["label"], BazelTest())
        elif "testResult" in event:
            test = tests.setdefault(identity["testResult"]["label"], BazelTest())
            test.status = event["testResult"].get("status", "NO STATUS")
            for output in event["testResult"].get("testActionOutput", []):
                if output["name"] == "test.xml":
                    test.report = Path(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
    return tests


def tally_bazel_test(label: str, test: BazelTest, expected_skips: "list[str] | None") -> Tally:
    """One target's cases; it never passes silently when Bazel says that it did not."""
    try:
        if test.report is None:
            return Tally(failures=[f"{label}: {test.status}, no report"])
        tally = tally_junit(test.report, label, expected_skips)
    except (OSError, ElementTree.ParseError):
        return Tally(failures=[f"{label}: {test.status}, its report cannot be read"])
    if test.status != "PASSED" and not tally.failures:
        tally.failures.append(f"{label}: {test.status}, though no case of it failed")
    return tally


def tally_tool(name: str, tally: Tally, status: int, harmless: "set[int]") -> Tally:
    """A tool that failed for a reason of its own is a failure, too."""
    if status not in harmless and not tally.failures:
        tally.failures.append(f"{name} ended with status {status}, though no test failed")
    return tally


def tally_bazel(events: Path, status: int, expected_skips: "list[str] | None") -> Tally:
    tally = Tally()
    if events.exists():
        for label, test in sorted(read_bazel_tests(events).items()):
            tally.add(tally_bazel_test(label, test, expected_skips))
    return tally_tool("bazel", tally, status, {0})


def tally_pytest(report: Path, status: int, expected_skips: "list[str] | None") -> Tally:
    no_tests_selected = 5
    try:
        tally = tally_junit(report, "pytest", expected_skips)
    except (OSError, ElementTree.ParseError):
        tally = Tally()
    return tally_tool("pytest", tally, status, {0, no_tests_selected})


def tally_check(name: str, status: int) -> Tally:
    return Tally(passed=1) if status == 0 else Tally(failures=[f"{name}: ended with status {status}"])


def parse_named_number(text: str) -> "tuple[str, int]":
    name, _, number = text.rpartition("=")
    return name, int(number)


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description="Counts a test run.")
    parser.add_argument("--expected-skips", type=Path)
    for numbered in ("--bazel", "--pytest", "--check", "--stage"):
        parser.add_argument(numbered, type=parse_named_number, action="append", default=[])
    parser.add_argument("--note", action="append", default=[])
    options = parser.parse_args(arguments)

    total = Tally()
    expected = read_expected_skips(options.expected_skips) if options.expected_skips else None
    for events, status in options.bazel:
        total.add(tally_bazel(Path(events), status, expected))
    for report, status in options.pytest:
        total.add(tally_pytest(Path(report), status, expected))
    for name, status in options.check:
        total.add(tally_check(name, status))

    for name, seconds in options.stage:
        print(f"{seconds / 60:7.1f} min  {name}")
    for failure in total.failures:
        print(f"FAILED {failure}")
    if total.skipped:
        print(f"{total.skipped} skipped")
    for note in options.note:
        print(f"NOTE {note}")
    print(f"{total.passed} passed, {len(total.failures)} failed")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
