"""tests/kept.py on a checkout made by hand: a result holds no longer than what its test reads."""

import re
import subprocess

import kept
import pytest

ROOT = kept.ROOT
FILES = {
    "tests/test_a.py": "as README.md says",
    "tests/test_b.py": "from test_c import it",
    "tests/test_c.py": "import test_d",
    "tests/test_d.py": "",
    "tests/harness.py": "",
    "README.md": "",
    "docs/other.md": "",
    "agent/agent.cc": "",
    "bazel-bin/trainer_agent/agent/trainer_agent": "program",
    ".gitignore": "bazel-bin\n.cache\n",
}
CASE = '<testcase classname="tests.{}" name="test_it">{}</testcase>'


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(kept, "KEPT", tmp_path / ".cache/kept")
    forget()
    return tmp_path


def keep(checkout, **outcomes: str) -> None:
    report = checkout / ".cache/report.xml"
    report.parent.mkdir(exist_ok=True)
    report.write_text("<testsuites>" + "".join(CASE.format(*case) for case in outcomes.items()) + "</testsuites>")
    kept.keep([str(report)])


def forget() -> None:
    """What one process reads once."""
    kept.common.cache_clear()
    kept.checkout.cache_clear()


def holding() -> "set[str]":
    forget()
    return set(kept.holding())


BOTH = {"tests/test_a.py", "tests/test_b.py"}


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ("tests/test_a.py", {"tests/test_b.py"}),
        ("tests/test_d.py", {"tests/test_a.py"}),  # which does not import it, by another one
        ("tests/harness.py", set()),
        ("bazel-bin/trainer_agent/agent/trainer_agent", set()),
        ("README.md", {"tests/test_b.py"}),  # which names no document
        ("agent/agent.cc", BOTH),  # it is in the program
        ("tests/new.py", set()),
    ],
)
def test_a_result_holds_while_nothing_has_changed_that_its_test_may_read(checkout, changed, left):
    keep(checkout, test_a="", test_b="")
    assert holding() == BOTH
    (checkout / changed).write_text("changed")
    assert holding() == left


@pytest.mark.parametrize("outcome", ["<failure/>", "<error/>"])
def test_what_failed_is_not_kept(checkout, outcome):
    keep(checkout, test_a=outcome, test_b="<skipped/>")
    assert holding() == {"tests/test_b.py"}


def test_a_torn_report_keeps_nothing(checkout):
    (checkout / ".cache").mkdir()
    (checkout / ".cache/report.xml").write_text("<testsuites><testsuite>")
    kept.keep([str(checkout / ".cache/report.xml"), str(checkout / "missing.xml")])
    assert holding() == set()


def test_what_holds_is_left_out_and_reported(checkout, capsys):
    keep(checkout, test_a="", test_b="<failure/>")
    kept.main(["select"])
    assert capsys.readouterr().out == "--ignore=tests/test_a.py\n"
    kept.main(["report", str(checkout / "kept.xml")])
    assert 'name="test_it"' in (checkout / "kept.xml").read_text()


def test_where_nothing_is_kept_nothing_is_left_out(checkout, capsys):
    kept.main(["select"])
    assert capsys.readouterr().out == ""


def test_every_program_that_a_test_starts_is_counted():
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    started = {found for text in sources for found in re.findall(r'BIN / "([\w/]+)"', text)}
    built = re.findall(r'"//([^"]+)"', (ROOT / "deploy/demo/processes.py").read_text())
    started |= {target.replace(":", "/") for target in built}
    benchmarks = {program for program in started if program.startswith("tests/bench/")}
    assert started - benchmarks <= set(kept.PROGRAMS)
