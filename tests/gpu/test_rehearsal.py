"""The tests that a machine with a GPU runs, on the CPU: they can do what they ask for. That proves nothing of a GPU."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from gpu_run import Run, Shared, Step

pytestmark = pytest.mark.nightly
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIGURES = """
import sys, torch, gpu_figures, gpu_probe
gpu_figures.MODEL_BYTES = gpu_figures.LEAST_BYTES = 12_000_000
gpu_figures.NARROW, gpu_figures.WIDE, gpu_figures.REPEATS = 512, 2048, 2
torch.cuda.synchronize = lambda *device: None
torch.cuda.mem_get_info = lambda: (1 << 30, 1 << 30)
gpu_probe.pinned = lambda size: torch.empty(size, dtype=torch.uint8)
gpu_figures.FIGURES[sys.argv[1]]()
"""
FOLDERS = ("python", "tests", "tests/gpu", "tests/integration", "tests/layouts")
LEAST = 15  # cases that can be rehearsed


@pytest.fixture
def bare(tmp_path):
    """A directory for PYTHONPATH in which there is PyTorch, and nothing that a machine with a GPU may lack."""
    for name in ("numpy", "safetensors", "transformers", "xxhash"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('there is no {name} here', name='{name}')\n")
    return tmp_path


def test_what_needs_no_gpu_of_the_gpu_tests_passes_on_the_cpu(tmp_path, bare):
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "tests/pytest.ini", f"--rootdir={ROOT}", "-q"]
    ended = subprocess.run(
        [*command, f"--junitxml={report}", *sorted(HERE.glob("test_gpu_*.py"))],
        env={**os.environ, "LOCKSTEP_GPU_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(bare)},
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


@pytest.mark.parametrize("name", ["publish", "stream", "fp32", "pause"])
def test_figures_are_measured_and_said_as_the_runner_takes_them(name, tmp_path, bare):
    python_path = ":".join(map(str, [bare, *(ROOT / folder for folder in FOLDERS)]))
    environment = {"LOCKSTEP_GPU_DEVICE": "cpu", "PYTHONPATH": python_path}
    step = Step(name, (sys.executable, "-c", FIGURES, name), 120, environment=environment)
    with Shared() as shared:
        run = Run(tmp_path / "out", [step], {}, 120, shared)
        run.go()
    figures = run.figures()
    assert figures, run.log.read_text()
    for figure in figures:
        assert figure["value"] > 0 and figure["model_bytes"] > 6_000_000
        assert "goal" in figure and figure["ratio"] > 0
