"""The CPU kernels for AArch64: each source compiles for every instruction set that Highway makes vectors for there.

No kernel runs: the compiler is a cross compiler. A source with Highway's inner loops must have code for the vectors of
every such machine (NEON, SVE or SVE2), and for all better ones: it chooses at run time.
"""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-g++"  # Debian's g++-aarch64-linux-gnu
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]

# -march -> the targets that Highway must have compiled each kernel for.
MACHINES = {
    "armv8-a": {"N_NEON", "N_SVE", "N_SVE2"},
    "armv8.2-a+sve": {"N_SVE", "N_SVE2"},
    "armv9-a": {"N_SVE2"},
}
SOURCES = sorted(path for path in (ROOT / "kernels").glob("*.cc") if not path.stem.endswith("_test"))


@pytest.fixture(scope="module")
def headers(tmp_path_factory) -> Path:
    """A directory with the headers that kernels use and that are the same for every machine: /usr/include itself would
    bring this machine's C library with them."""
    directory = tmp_path_factory.mktemp("headers")
    for name in ("hwy", "xxhash.h"):
        original = Path("/usr/include") / name
        assert original.exists(), f"{original} is missing; run deploy/install.sh --dev"
        (directory / name).symlink_to(original)
    return directory


def output_of(*command: "str | Path") -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(map(str, command))}: {result.stderr}"
    return result.stdout


def test_there_are_kernels_of_highway_and_others():
    kinds = {"foreach_target.h" in source.read_text() for source in SOURCES}
    assert kinds == {True, False}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_kernel_compiles_for_arm(source, machine, headers, tmp_path):
    compiled = tmp_path / "kernel.o"
    flags = ["-std=c++20", "-O2", f"-march={machine}", *WARNINGS, "-I.", "-isystem", headers]
    output_of(COMPILER, *flags, "-c", source, "-o", compiled)
    if "foreach_target.h" in source.read_text():
        targets = set(re.findall(r"\bN_\w+(?=::)", output_of("aarch64-linux-gnu-nm", "--demangle", compiled)))
        assert MACHINES[machine] <= targets
