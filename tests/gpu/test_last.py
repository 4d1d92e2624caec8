"""tests/gpu/run.sh on files made up for it; the committed record, and that documents say no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

from gpu_last import LAST, ROOT, note, table

CRASHES = """
import os, pathlib, subprocess
def test_passes():
    pass
def test_crashes():
    pathlib.Path(__file__).with_name("pid").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    pathlib.Path(os.environ["LOCKSTEP_TEST_SHARED"], "left").touch()
    os.abort()
"""
GOES_ON = """
import json, os
def test_passes(record_property):
    assert os.listdir(os.environ["LOCKSTEP_TEST_SHARED"]) == []
    record_property("figure", json.dumps({"name": "rate", "value": 5.0, "unit": "GB/s"}))
def test_fails():
    assert False
"""


def run(path: Path, device: str, *files: Path) -> "tuple[subprocess.CompletedProcess[str], Path]":
    command = [ROOT / "tests/gpu/run.sh", "--out", path / "out", *files]
    environment = {**os.environ, "PYTHON": sys.executable, "LOCKSTEP_GPU_DEVICE": device, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True), path / "out/last.json"


def test_a_file_whose_process_crashes_has_failed_and_what_it_left_is_gone_before_the_next(tmp_path):
    crashes, goes_on = tmp_path / "test_gpu_crashes.py", tmp_path / "test_gpu_goes_on.py"
    crashes.write_text(CRASHES)
    goes_on.write_text(GOES_ON)
    ended, last = run(tmp_path, "cpu", crashes, goes_on)
    assert ended.returncode == 1, ended.stderr
    found = json.loads(last.read_text())
    assert found["failed"] == ["test_gpu_crashes.the process crashed or was not done", "test_gpu_goes_on.test_fails"]
    assert found["passed"] == ["test_gpu_goes_on.test_passes"] and found["figures"][0]["name"] == "rate"
    assert ended.stdout.endswith(table(found) + "\n") and "| `rate` | 5 GB/s |" in ended.stdout
    pid = (tmp_path / "pid").read_text()
    assert not Path("/proc", pid).exists() or "(sleep) Z" in Path("/proc", pid, "stat").read_text()


def test_without_a_gpu_nothing_is_run_and_nothing_counts(tmp_path):
    ended, last = run(tmp_path, "cuda")
    assert (ended.returncode, last.exists()) == (77, False)
    assert "reaches no GPU" in ended.stderr and ended.stdout.startswith("run.sh: 0 of ")


def test_the_committed_record_is_of_a_gpu_and_documents_have_its_figures():
    last = json.loads(LAST.read_text())
    assert last["device"] != "no GPU" and last["driver"] != "none" and last["date"] and last["passed"]
    assert table(last) in (ROOT / "docs/performance.md").read_text(), "python3 tests/gpu/gpu_last.py --table"
    assert note(last).startswith(f"GPU code last ran on {last['device']}")


def test_a_commit_that_git_does_not_know_leaves_the_date_in_the_note():
    last = {**json.loads(LAST.read_text()), "commit": "0" * 40}
    assert note(last).endswith("Git does not tell what has changed since")
