"""tests/summarize.py on reports made by hand: the last line must never be better than the run was."""

import json

import pytest
import summarize

PASS = '<testsuites><testsuite tests="9"><testcase name="a"/><testcase name="b"/></testsuite></testsuites>'
MIXED = (
    '<testsuites><testsuite tests="7"><testcase name="a"/><testcase name="b"><failure/></testcase>'
    '<testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase></testsuite></testsuites>'
)


class Run:
    """One bazel run's event file, built event by event."""

    def __init__(self, directory):
        self.directory = directory
        self.events = []

    def tested(self, label, status, report):
        path = self.directory / f"{len(self.events)} test.xml"
        if report is not None:
            path.write_text(report)
        outputs = [{"name": "test.log", "uri": "file:///log"}, {"name": "test.xml", "uri": path.as_uri()}]
        result = {"status": status, "testActionOutput": outputs}
        self.events.append({"id": {"testResult": {"label": label}}, "testResult": result})
        return self

    def write(self):
        path = self.directory / "events.json"
        path.write_text("\n".join(json.dumps(event) for event in self.events))
        return path


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def last_line(capsys, *arguments):
    status = summarize.main([str(argument) for argument in arguments])
    return status, capsys.readouterr().out.splitlines()[-1]


def test_cases_are_counted_rather_than_assertions(run, capsys):
    events = run.tested("//a:t", "PASSED", PASS).tested("//b:t", "PASSED", PASS).write()
    assert last_line(capsys, "--bazel", f"{events}=0") == (0, "4 passed, 0 failed")


def test_failures_and_errors_are_failed_and_skips_are_neither(run, capsys):
    events = run.tested("//a:t", "FAILED", MIXED).write()
    assert last_line(capsys, "--bazel", f"{events}=3") == (1, "1 passed, 2 failed")


@pytest.mark.parametrize("report", [None, "", "<testsuites><testsuite>"], ids=["none", "empty", "torn"])
def test_a_binary_that_crashed_counts_as_one_failure(run, capsys, report):
    events = run.tested("//a:t", "FAILED", report).tested("//b:t", "PASSED", PASS).write()
    assert last_line(capsys, "--bazel", f"{events}=3") == (1, "2 passed, 1 failed")


def test_a_failed_target_whose_cases_all_passed_counts_as_one_failure(run, capsys):
    events = run.tested("//a:t", "TIMEOUT", PASS).write()
    assert last_line(capsys, "--bazel", f"{events}=3") == (1, "2 passed, 1 failed")


def test_a_tool_that_failed_by_itself_counts_as_one_failure(run, capsys, tmp_path):
    missing = tmp_path / "missing"
    assert last_line(capsys, "--bazel", f"{missing}=1") == (1, "0 passed, 1 failed")
    assert last_line(capsys, "--pytest", f"{missing}=2") == (1, "0 passed, 1 failed")


def test_selecting_no_python_test_is_no_failure(capsys, tmp_path):
    assert last_line(capsys, "--pytest", f"{tmp_path / 'missing'}=5") == (0, "0 passed, 0 failed")


def test_bazel_pytest_and_checks_add_up(run, capsys, tmp_path):
    events = run.tested("//a:t", "PASSED", PASS).write()
    junit = tmp_path / "pytest.xml"
    junit.write_text(MIXED)
    arguments = ["--bazel", f"{events}=0", "--pytest", f"{junit}=1", "--check", "format=1", "--check", "x=0"]
    assert last_line(capsys, *arguments) == (1, "4 passed, 3 failed")


def test_an_unexpected_skip_counts_as_a_failure(run, tmp_path, capsys):
    report, expected = tmp_path / "pytest.xml", tmp_path / "skips.txt"
    skipped = '<testcase classname="tests.engines" name="{}"><skipped message="no GPU"/></testcase>'
    report.write_text(f"<testsuites><testsuite>{skipped.format('a')}{skipped.format('b')}</testsuite></testsuites>")
    expected.write_text("# Why\n*engines.a  # because\nunless root: *nothing*\n")
    arguments = ("--pytest", f"{report}=0", "--expected-skips", expected)
    status = summarize.main([str(argument) for argument in arguments])
    out = capsys.readouterr().out
    assert (status, out.splitlines()[-1]) == (1, "0 passed, 1 failed")
    assert "FAILED pytest: tests.engines.b was skipped: no GPU" in out and "1 skipped" in out

    expected.write_text("*:t.c\n")
    events = run.tested(
        "//a:t", "PASSED", MIXED.replace('"b"><failure/>', '"b">').replace("<error/>", "<skipped/>")
    ).write()
    assert last_line(capsys, "--bazel", f"{events}=0", "--expected-skips", expected) == (1, "2 passed, 1 failed")
