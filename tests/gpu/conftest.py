"""For the tests that tests/gpu/run.sh runs: the report names the GPU, and keeps figures."""

import json
import os
import re
import subprocess
import sys

import pytest

DEVICE = os.environ.get("LOCKSTEP_GPU_DEVICE")  # "cpu" rehearses
# run.sh sets the variable. Nowhere else are these files collected, skipped or counted.
collect_ignore_glob = [] if DEVICE else ["test_gpu_*.py"]
if DEVICE == "cpu" and "story" not in sys.argv[-1]:
    sys.modules.update(
        dict.fromkeys(("numpy", "safetensors", "transformers", "xxhash"))
    )  # a machine with a GPU may lack them

from integration.conftest import cluster, pytest_runtest_makereport  # noqa: E402, F401

DRIVER = "nvidia-smi --query-gpu=driver_version --format=csv,noheader || cat /proc/driver/nvidia/version"


@pytest.fixture(scope="session", autouse=True)
def machine(record_testsuite_property):
    """The report names the GPU."""
    if DEVICE == "cuda":
        import torch

        release = re.search(r"\d+\.[\d.]+", subprocess.run(DRIVER, shell=True, capture_output=True, text=True).stdout)
        record_testsuite_property("device", torch.cuda.get_device_name(0))
        record_testsuite_property("driver", release[0] if release else f"of CUDA {torch.version.cuda}")


@pytest.fixture
def figure(record_property):
    """Keeps a figure. `of`: what the value is held against, in words; `ratio`: to that. On a GPU the test fails where the
    ratio is below `least` or above `most`."""
    missed = []

    def keep(name, value, unit, of="", ratio=None, least=None, most=None, **more):
        kept = {"name": name, "value": value, "unit": unit, **more}
        if ratio is not None:
            kept.update(of=of, ratio=ratio)
        if least is not None or most is not None:
            met = ratio >= least if most is None else ratio <= most
            kept.update(goal=f">= {least}" if most is None else f"<= {most}", met=met)
            missed.extend([] if met else [f"{name} is {ratio:.3g}, not {kept['goal']}"])
        record_property("figure", json.dumps(kept))
        print(kept)

    yield keep
    assert not missed or DEVICE == "cpu", missed
