"""The C++ tests of a pack that need a GPU, by themselves and under compute-sanitizer."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from gpu_models import gpu_only

PROGRAMS = Path(__file__).resolve().parents[2] / "programs"
NCCL = "nccl_exchange_test"  # packed where NCCL is
TESTS = sorted({NCCL, *(program.name for program in (PROGRAMS / "program").glob("*_test"))})
# Of the C library: a program that a tool starts without the pack's loader has the machine's own.
C_LIBRARY = re.compile(r"ld-linux|lib(c|m|dl|pthread|rt|resolv|util|anl|nss_\w+)\.so")
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


@gpu_only
@pytest.mark.parametrize("name", TESTS)
def test_a_program_passes(name):
    if not (PROGRAMS / name).exists():
        pytest.skip("not packed: NCCL was not there")
    if name == NCCL and torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    subprocess.run([PROGRAMS / name, "--durations", "yes"], check=True, timeout=60)


@gpu_only
@pytest.mark.skipif(not os.access(SANITIZER, os.X_OK), reason="no compute-sanitizer is installed")
@pytest.mark.parametrize("name", [name for name in TESTS if name != NCCL])
def test_compute_sanitizer_finds_nothing(name, tmp_path):
    """It does not see through the pack's launcher and loader: the machine's C library is taken, and the pack's libraries."""
    for library in (PROGRAMS / "lib").iterdir():
        if not C_LIBRARY.match(library.name):
            (tmp_path / library.name).symlink_to(library)
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}
    program = PROGRAMS / "program" / name
    listed = subprocess.run([program, "--list-test-names-only"], env=environment, stderr=subprocess.PIPE, text=True)
    if re.search("GLIBC|cannot open shared object", listed.stderr):
        pytest.skip(f"it does not start without the pack's loader: {listed.stderr}")
    # Errors that calls return are the tests' own business: some ask for what must be refused.
    options = ["--error-exitcode", "99", "--report-api-errors", "no", "--target-processes", "all"]
    subprocess.run([SANITIZER, *options, program], env=environment, check=True, timeout=120)
