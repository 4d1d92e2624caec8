"""A minute of soak, and one in which a wrong byte is planted: run.sh must tell the one from the other."""

import json
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.sh")


def soak(tmp_path, *arguments: str) -> "tuple[subprocess.CompletedProcess, dict]":
    command = [RUN, "--json", tmp_path / "report.json", "--logs", tmp_path, "--verbose", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    print(result.stdout, result.stderr)
    return result, json.loads((tmp_path / "report.json").read_text())


def test_a_minute_of_faults_leaves_nothing_wrong_and_every_receiver_at_the_newest_version(tmp_path):
    result, report = soak(tmp_path, "--minutes", "1")
    assert result.returncode == 0 and report["passed"]
    assert sum(report["faults"].values()) >= 8 and sum(report["pulls"].values()) >= 30
    assert report["checked"]["readings"] > 100 and report["wrong"] == []


def test_a_wrong_byte_in_what_a_receiver_shows_is_named(tmp_path):
    result, report = soak(tmp_path, "--minutes", "2", "--canary")
    assert result.returncode == 1
    assert "near-2: it shows version" in report["wrong"][0] and "wrong tensor layers.2.weight" in report["wrong"][0]
    assert "error: wrong commit: near-2" in result.stdout and report["failures"] == []


@pytest.mark.parametrize("arguments", [["--minutes", "soon"], ["--unknown"]])
def test_bad_usage_ends_with_64(arguments):
    assert subprocess.run([RUN, *arguments], capture_output=True).returncode == 64
