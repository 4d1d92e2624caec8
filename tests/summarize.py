#!/usr/bin/env python3
"""Counts what a test run really ran, and ends with the minutes of its stages and the line "N passed, N failed".

    summarize.py [--bazel EVENTS.json=STATUS]... [--pytest JUNIT.xml=STATUS]... [--expected-skips FILE]
                 [--check NAME=STATUS]... [--stage NAME=SECONDS]...

tests/run.sh and tests/nightly.sh call it. STATUS is what the tool exited with. EVENTS.json is what
`bazel test --build_event_json_file` wrote: it names the reports of that run's tests, cached ones too, so a report of an
earlier run is never counted. A test case is one <testcase> of a JUnit report. A test that crashed, timed out or left no
readable report counts as one failure. So does a case that was skipped though FILE does not expect it, and a tool that
failed without a failed case, such as Bazel where a test was not built. Exit status: 0 when nothing failed, else 1.
"""

import argparse
import fnmatch
import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any


def read_expected_skips(file: Path) -> "list[str]":
    """Patterns of CLASSNAME.NAME or TARGET.NAME, a line each; "# ..." is why. Those behind "unless root" hold where the
    user is not root."""
    patterns = []
    for line in file.read_text().splitlines():
        pattern, _, _ = line.partition("#")
        needs_root = pattern.startswith("unless root: ")
        if pattern.strip() and not (needs_root and os.geteuid() == 0):
            patterns.append(pattern.removeprefix("unless root: ").strip())
    return patterns


class Tally:
    """The run so far. ``expected_skips``: patterns of the cases that may be skipped; None: all."""

    def __init__(self, expected_skips: "list[str] | None") -> None:
        self.expected_skips = expected_skips
        self.passed, self.skipped = 0, 0
        self.failures: "list[str]" = []

    def add_report(self, report: "Path | None", label: str) -> bool:
        """Whether the report can be read."""
        try:
            cases = list(ElementTree.parse(report or "").iter("testcase"))
        except (OSError, ElementTree.ParseError):
            return False
        for case in cases:
            name = f"{case.get('classname') or label}.{case.get('name')}"
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failures.append(f"{label}: {case.get('name')}")
            elif skip is None:
                self.passed += 1
            elif self.expected_skips is None or any(fnmatch.fnmatchcase(name, one) for one in self.expected_skips):
                self.skipped += 1
            else:
                self.failures.append(f"{label}: {name} was skipped: {skip.get('message')}")
        return True

    def add_bazel_test(self, label: str, result: "dict[str, Any]") -> None:
        """``result``: what Bazel's event says of it."""
        status, before, report = result.get("status", "NO STATUS"), len(self.failures), None
        for output in result.get("testActionOutput", []):
            if output["name"] == "test.xml":
                report = Path(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
        if not self.add_report(report, label):
            self.failures.append(f"{label}: {status}, no report that can be read")
        elif status != "PASSED" and len(self.failures) == before:
            self.failures.append(f"{label}: {status}, though no case of it failed")

    def add_bazel(self, events: Path, status: int) -> None:
        before = len(self.failures)
        for line in events.read_text().splitlines() if events.exists() else []:
            event = json.loads(line)
            if "testResult" in event:
                self.add_bazel_test(event["id"]["testResult"]["label"], event["testResult"])
        if status != 0 and len(self.failures) == before:
            self.failures.append(f"bazel ended with status {status}, though no test failed")

    def add_pytest(self, report: Path, status: int) -> None:
        no_tests_selected, before = 5, len(self.failures)
        readable = self.add_report(report, "pytest")
        fine = status == no_tests_selected or (status == 0 and readable)
        if not fine and len(self.failures) == before:
            self.failures.append(f"pytest ended with status {status}, though no test failed")

    def add_check(self, name: str, status: int) -> None:
        if status == 0:
            self.passed += 1
        else:
            self.failures.append(f"{name}: ended with status {status}")


def named_number(text: str) -> "tuple[str, int]":
    name, _, number = text.rpartition("=")
    return name, int(number)


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description="Counts a test run.")
    parser.add_argument("--expected-skips", type=Path)
    for numbered in ("--bazel", "--pytest", "--check", "--stage"):
        parser.add_argument(numbered, type=named_number, action="append", default=[])
    options = parser.parse_args(arguments)

    tally = Tally(read_expected_skips(options.expected_skips) if options.expected_skips else None)
    for events, status in options.bazel:
        tally.add_bazel(Path(events), status)
    for report, status in options.pytest:
        tally.add_pytest(Path(report), status)
    for name, status in options.check:
        tally.add_check(name, status)

    for name, seconds in options.stage:
        print(f"{seconds / 60:7.1f} min  {name}")
    for failure in tally.failures:
        print(f"FAILED {failure}")
    if tally.skipped:
        print(f"{tally.skipped} skipped")
    print(f"{tally.passed} passed, {len(tally.failures)} failed")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
