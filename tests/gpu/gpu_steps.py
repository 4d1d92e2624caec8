"""What is run on a machine with a GPU, in which order, and how long each may take. `run.sh` is the command."""

import argparse
import datetime
import fnmatch
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gpu_last import NOT_ASKED, merged, read, record
from gpu_run import Run, Shared, Step, write_whole

PACK = Path(__file__).resolve().parents[2]
HERE = PACK / "tests/gpu"
SECONDS = 530  # of the ten minutes that a machine runs one command for
BAD_USAGE = 64
# Of the C library: a program that a tool starts without the pack's loader has the machine's own.
C_LIBRARY = (
    "ld-linux",
    "libc.so",
    "libm.so",
    "libdl",
    "libpthread",
    "librt",
    "libresolv",
    "libutil",
    "libnss_",
    "libanl",
)
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
GPUS_OF = {"nccl_exchange_test": 2}  # that a C++ test needs, where it is more than one
STORY_SECONDS = 150
TEST_SECONDS = {"test_gpu_kills": 150}  # processes that start PyTorch, one after another
LAST = ("test_gpu_ring", "test_gpu_kills")  # behind the figures: should they hang, those are there
FIGURES = {"publish": 120, "stream": 90, "fp32": 90, "pause": 120}
LEAST_BYTES = 1_000_000_000  # of a model in bfloat16 that figures are measured with
SHARED_COPIES = {"publish": 2, "stream": 2, "fp32": 4, "pause": 5}  # of such a model, in shared memory
PROBE = (
    "import sys\n"
    "try:\n"
    "    import torch\n"
    "except ImportError as error:\n"
    "    sys.exit(f'{sys.executable}: {error}')\n"
    "if not torch.cuda.is_available():\n"
    "    sys.exit(f'PyTorch {torch.__version__} reaches no GPU')\n"
    "print(torch.cuda.device_count())\n"
)


def gpus() -> "tuple[int, str]":
    """How many this interpreter reaches; 0, and why."""
    try:
        probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return 0, "PyTorch did not say within 120 s whether there is a GPU"
    if probe.returncode == 0:
        return int(probe.stdout.split()[-1]), ""
    lines = probe.stderr.strip().splitlines()
    return 0, lines[-1] if lines else f"asking PyTorch for GPUs ended with status {probe.returncode}"


def steps(devices: int, scratch: Path) -> "list[Step]":
    """All of them, most telling first. Those that cannot be run here say why."""
    python_path = [str(PACK / "python"), str(HERE), *map(str, helper_folders()), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOCKSTEP_PROGRAMS": str(PACK / "programs"),
        "LOCKSTEP_TEST_BIN": str(PACK / "bin"),
        "LOCKSTEP_GPU_DEVICE": "cuda",
    }

    def python(name: str, limit_s: float, *arguments: str, unless: str = "", shared_bytes: int = 0) -> Step:
        return Step(name, (sys.executable, *arguments), limit_s, unless, environment, shared_bytes)

    no_pytest = "" if importlib.util.find_spec("pytest") else f"{sys.executable} has no pytest"

    found = [
        python("probe", 60, str(HERE / "gpu_probe.py")),
        python("the pack starts", 30, str(HERE / "gpu_starts.py")),
    ]
    tests = (PACK / "cpp_tests").read_text().split()
    found += [_cpp_test(name, devices) for name in tests]
    if "nccl_exchange_test" not in tests:
        found.append(Step("nccl_exchange_test", (), 0, "not packed: NCCL was not there"))
    files = {file.stem: file for file in sorted(HERE.glob("test_gpu_*.py"))}
    later = [name for name in files if name.startswith(LAST)]
    figures = [
        python(
            f"figures: {name}",
            limit,
            str(HERE / "gpu_figures.py"),
            name,
            unless=no_pytest,
            shared_bytes=int(LEAST_BYTES * SHARED_COPIES[name] / 0.9),  # as much is left free
        )
        for name, limit in FIGURES.items()
    ]

    def pytest(names: "list[str]") -> "list[Step]":
        program = str(HERE / "gpu_pytest.py")
        return [python(name, TEST_SECONDS.get(name, 90), program, str(files[name]), unless=no_pytest) for name in names]

    story = python("story", STORY_SECONDS, str(HERE / "gpu_story.py"), unless=no_pytest)  # tests' helpers need it
    found += [*pytest([name for name in files if name not in later]), *figures, story, *pytest(later)]
    return found + [_sanitized(name, scratch) for name in tests if name not in GPUS_OF]


def helper_folders() -> "list[Path]":
    return [PACK / "tests" / folder for folder in ("", "integration", "engines", "layouts")]


def _cpp_test(name: str, devices: int) -> Step:
    needed = GPUS_OF.get(name, 1)
    unless = f"needs {needed} GPUs, and there is {devices}" if devices < needed else ""
    return Step(name, (str(PACK / "programs" / name), "--durations", "yes"), 60, unless)


def _sanitized(name: str, scratch: Path) -> Step:
    """Without the launcher and its loader, which such a tool does not see through: on the machine's own C library, with
    the pack's other libraries."""
    tool = next((found for found in map(shutil.which, SANITIZERS) if found), None)
    program = PACK / "programs/program" / name
    environment = {"LD_LIBRARY_PATH": f"{_libraries(scratch)}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}
    unless = _cannot_start(program, environment) if tool else "no compute-sanitizer is installed"
    # Errors that calls return are the tests' own business: some ask for what must be refused.
    options = ("--error-exitcode", "99", "--report-api-errors", "no", "--target-processes", "all")
    command = (str(tool), *options, str(program))
    return Step(f"compute-sanitizer: {name}", command, 120, unless, environment)


def _libraries(scratch: Path) -> Path:
    """A directory with the pack's libraries but those of the C library."""
    folder = scratch / "libraries"
    folder.mkdir(exist_ok=True)
    for library in (PACK / "programs/lib").iterdir():
        link = folder / library.name
        if not library.name.startswith(C_LIBRARY) and not link.is_symlink():
            link.symlink_to(library)
    return folder


def _cannot_start(program: Path, environment: "dict[str, str]") -> str:
    """Why a program does not start on the machine's own C library; "" when it does."""
    command = [program, "--list-test-names-only"]
    try:
        listed = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start without the pack's loader: {error}"
    wrong = [line for line in listed.stderr.splitlines() if "GLIBC" in line or "cannot open shared object" in line]
    return f"it does not start without the pack's loader: {wrong[0]}" if wrong else ""


def asked(found: "list[Step]", only: "list[str]") -> "list[Step]":
    """All steps, and those that no pattern of `only` names say that they were not asked for; the probe always is, for a
    record names the GPU. ValueError: a pattern names none."""
    names = [step.name for step in found]
    wrong = [pattern for pattern in only if not fnmatch.filter(names, pattern)]
    if wrong:
        raise ValueError(f"no step is called {wrong[0]!r}; steps are {', '.join(names)}")
    wanted = {"probe", *(name for pattern in only for name in fnmatch.filter(names, pattern))}
    return [step if step.name in wanted else replace(step, unless=NOT_ASKED) for step in found]


def earlier_record(path: Path, digest: object) -> "dict[str, object] | None":
    """The record that a run of some steps goes on with. Any other's is removed: it is not this run's."""
    try:
        earlier = read(path)
    except ValueError:
        earlier = None
    if earlier is not None and earlier["digest"] == digest:
        return earlier
    path.unlink(missing_ok=True)
    return None


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> "NoReturn":
        self.print_usage(sys.stderr)
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n")


def main() -> int:
    parser = Parser(description="Runs what needs a GPU.", prog="run.sh")
    parser.add_argument("--out", type=Path, default=PACK / "out")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", action="append", default=[], metavar="STEP")
    options = parser.parse_args()
    out = options.out.absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what steps left is removed then, too

    began = time.monotonic()
    packed = json.loads((PACK / "sources.json").read_text())
    devices, why = gpus()
    with tempfile.TemporaryDirectory() as scratch, Shared() as shared:
        found = steps(devices, Path(scratch))
        try:
            found = asked(found, options.only) if options.only else found
        except ValueError as error:
            parser.error(str(error))
        earlier = earlier_record(out / "last.json", packed["digest"] if options.only else None)
        left = options.seconds - (time.monotonic() - began)
        run = Recorded(out, found, packed, left, shared, earlier)
        if devices == 0:
            run.give_up(f"no GPU: {why}")
        else:
            run.go()
    print(f"\n{run.table()}")
    return run.status()


class Recorded(Run):
    """Also keeps last.json up to date, as soon as a step has seen a GPU. `earlier`: the record that it goes on with."""

    def __init__(
        self,
        directory: Path,
        steps: "list[Step]",
        about: "dict[str, object]",
        seconds: float,
        shared: Shared,
        earlier: "dict[str, object] | None",
    ) -> None:
        self._earlier = earlier
        super().__init__(directory, steps, about, seconds, shared)

    def write(self, running: str) -> None:
        super().write(running)
        state = json.loads(self.results.read_text())
        last = record(state, datetime.date.today().isoformat())
        if last is None:
            return
        both = merged(self._earlier, last) if self._earlier else None
        write_whole(self.results.with_name("last.json"), both or last)


if __name__ == "__main__":
    sys.exit(main())
