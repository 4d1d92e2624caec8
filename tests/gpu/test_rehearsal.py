"""The tests that a machine with a GPU runs, on the CPU: they can do what they ask for. That proves nothing of a GPU."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEAST = 20  # cases that can be rehearsed


def test_what_needs_no_gpu_of_the_gpu_tests_passes_on_the_cpu(tmp_path):
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "tests/pytest.ini", f"--rootdir={ROOT}", "-q"]
    ended = subprocess.run(
        [*command, f"--junitxml={report}", *sorted(HERE.glob("test_gpu_*.py"))],
        env={**os.environ, "LOCKSTEP_GPU_DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [case.find("skipped").get("message") for case in cases if case.find("skipped") is not None]
    assert set(skipped) == {"a rehearsal without a GPU"}
    assert len(cases) - len(skipped) >= LEAST
